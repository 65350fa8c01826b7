//! Matrix products and convolutions. They are bilinear, so each derivative is a product of the same family.

use crate::erased::{Erased, Id};
use crate::{Call, Gradients};
use kiln_ir::ops::{Axes, Conv, ConvTranspose, ConvWeight, MatMul};
use kiln_ir::{Builder, Fact, Op, OpError, Shape};

/// Records `op` on two values if the result is wanted.
fn if_needed(
    b: &mut Erased<'_>,
    needs_grad: bool,
    op: impl Into<Op>,
    operands: [&Id; 2],
) -> Result<Option<Id>, OpError> {
    let recorded = needs_grad.then(|| b.op(op, &operands.map(Clone::clone)));
    recorded.transpose()
}

pub(crate) fn matmul(
    b: &mut Erased<'_>,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    let mut out = Gradients::from_elem(None, 2);
    if call.needs_grad[0] {
        let y = transposed(b, &call.inputs[1])?;
        out[0] = Some(b.op(MatMul {}, &[g.clone(), y])?);
    }
    if call.needs_grad[1] {
        let x = transposed(b, &call.inputs[0])?;
        out[1] = Some(b.op(MatMul {}, &[x, g.clone()])?);
    }
    Ok(out)
}

/// Swaps the last two dims.
pub(crate) fn transposed(b: &mut Erased<'_>, v: &Id) -> Result<Id, OpError> {
    let rank = b.with_fact(v, Fact::rank);
    let mut perm: Axes = (0..rank).collect();
    perm.swap(rank - 2, rank - 1);
    b.permute(v, &perm)
}

pub(crate) fn conv(
    b: &mut Erased<'_>,
    op: &Conv,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    let (x, w) = (&call.inputs[0], &call.inputs[1]);
    let to_x = transpose(b, op, x);
    let to_w = weight(b, op, w)?;
    Ok(Gradients::from_iter([
        if_needed(b, call.needs_grad[0], to_x, [g, w])?,
        if_needed(b, call.needs_grad[1], to_w, [x, g])?,
    ]))
}

pub(crate) fn conv_transpose(
    b: &mut Erased<'_>,
    op: &ConvTranspose,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    let (y, w) = (&call.inputs[0], &call.inputs[1]);
    let to_w = weight(b, &op.conv, w)?;
    Ok(Gradients::from_iter([
        if_needed(b, call.needs_grad[0], op.conv.clone(), [g, w])?,
        if_needed(b, call.needs_grad[1], to_w, [g, y])?,
    ]))
}

pub(crate) fn conv_weight(
    b: &mut Erased<'_>,
    op: &ConvWeight,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    let (x, y) = (&call.inputs[0], &call.inputs[1]);
    let to_x = transpose(b, &op.conv, x);
    Ok(Gradients::from_iter([
        if_needed(b, call.needs_grad[0], to_x, [y, g])?,
        if_needed(b, call.needs_grad[1], op.conv.clone(), [x, g])?,
    ]))
}

/// Returns the transpose towards an input of the shape of `x`.
fn transpose(b: &Erased<'_>, op: &Conv, x: &Id) -> ConvTranspose {
    ConvTranspose {
        conv: op.clone(),
        input: Shape::from(&b.fact(x).shape[2..]),
    }
}

/// Returns the transpose towards a weight of the shape of `w`.
fn weight(b: &Erased<'_>, op: &Conv, w: &Id) -> Result<ConvWeight, OpError> {
    let sizes = b.fact(w).shape[2..].to_vec();
    let known = |d: &kiln_base::Dim| d.as_const().map(|n| n as usize);
    let kernel: Option<Axes> = sizes.iter().map(known).collect();
    Ok(ConvWeight {
        conv: op.clone(),
        kernel: kernel.ok_or_else(|| OpError::new("a kernel of unknown size has no derivative"))?,
    })
}
