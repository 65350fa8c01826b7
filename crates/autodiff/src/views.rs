//! Broadcasts, and ops that move elements without computing.

use crate::erased::{Erased, Id};
use crate::{Call, Gradients};
use kiln_base::Dim;
use kiln_ir::ops::SliceAxis;
use kiln_ir::{Builder, Fact, OpError, Shape};

/// Sums over the axes along which `x` was broadcast to the shape of `g`.
pub(crate) fn unbroadcast(b: &mut Erased<'_>, g: &Id, x: &Id) -> Result<Id, OpError> {
    let (from, to) = (b.fact(x).shape, b.fact(g).shape);
    let extra = to.len() - from.len();
    let stretched = |a: &usize| *a < extra || from[a - extra].is(1) && !to[*a].is(1);
    let axes: Vec<usize> = (0..to.len()).filter(stretched).collect();
    let sum = b.sum(g, &axes)?;
    b.reshape(&sum, &from)
}

pub(crate) fn unpermute(b: &mut Erased<'_>, perm: &[usize], g: &Id) -> Result<Id, OpError> {
    let mut back = vec![0; perm.len()];
    for (to, from) in perm.iter().enumerate() {
        back[*from] = to;
    }
    b.permute(g, &back)
}

/// Returns the gradient at the elements that the slice selected, zero elsewhere.
pub(crate) fn unslice(
    b: &mut Erased<'_>,
    axes: &[SliceAxis],
    g: &Id,
    x: &Id,
) -> Result<Id, OpError> {
    let extents = b.fact(x).shape;
    let mut g = g.clone();
    for (a, (part, extent)) in axes.iter().zip(&extents).enumerate() {
        if *part == SliceAxis::all(extent) {
            continue;
        }
        if part.len.is(0) {
            let Fact { dtype, mut shape } = b.fact(&g);
            shape[a] = extent.clone();
            g = b.full(0.0, dtype, &shape)?;
            continue;
        }
        let span = &(&part.len - &Dim::ONE) * &Dim::Const(part.step);
        let mut first = part.start.clone();
        if part.step < 0 {
            g = b.reversed(&g, a)?;
            first = &first + &span;
        }
        g = b.spaced(&g, a, part.step.unsigned_abs() as usize)?;
        let used = b.fact(&g).shape[a].clone();
        let behind = &(extent - &first) - &used;
        g = b.pad_axis_zero(&g, a, first, behind)?;
    }
    Ok(g)
}

/// Returns the part of the gradient inside the padding.
pub(crate) fn unpad(b: &mut Erased<'_>, low: &Shape, g: &Id, x: &Id) -> Result<Id, OpError> {
    let shape = b.fact(x).shape;
    let mut g = g.clone();
    for (a, (low, len)) in low.iter().zip(&shape).enumerate() {
        g = b.narrow(&g, a, low.clone(), len.clone())?;
    }
    Ok(g)
}

/// Returns the operands' parts of the gradient of a concatenation.
pub(crate) fn parts(
    b: &mut Erased<'_>,
    axis: usize,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    let mut start = Dim::ZERO;
    let mut out = Gradients::new();
    for (x, needs_grad) in call.inputs.iter().zip(call.needs_grad) {
        let len = b.fact(x).shape[axis].clone();
        let end = &start + &len;
        let part = needs_grad.then(|| b.narrow(g, axis, start, len));
        out.push(part.transpose()?);
        start = end;
    }
    Ok(out)
}
