//! Broadcasts, and ops that move elements without computing.

use crate::erased::{Erased, Id};
use crate::{Call, Gradients};
use kiln_base::Dim;
use kiln_ir::ops::SliceAxis;
use kiln_ir::{Builder, Fact, OpError, Shape};

/// Sums over the axes along which `x` was broadcast to the shape of `g`.
pub(crate) fn sum_to_shape(b: &mut Erased<'_>, g: &Id, x: &Id) -> Result<Id, OpError> {
    let (from, to) = (b.fact(x).shape, b.fact(g).shape);
    let extra = to.len() - from.len();
    let stretched = |a: &usize| *a < extra || from[a - extra].is(1) && !to[*a].is(1);
    let axes: Vec<usize> = (0..to.len()).filter(stretched).collect();
    let sum = b.sum(g, &axes)?;
    b.reshape(&sum, &from)
}

pub(crate) fn unpermute(b: &mut Erased<'_>, perm: &[usize], g: &Id) -> Result<Id, OpError> {
    let mut inverse = vec![0; perm.len()];
    for (to_axis, from_axis) in perm.iter().enumerate() {
        inverse[*from_axis] = to_axis;
    }
    b.permute(g, &inverse)
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
    for (a, (slice, extent)) in axes.iter().zip(&extents).enumerate() {
        if *slice == SliceAxis::all(extent) {
            continue;
        }
        if slice.len.is(0) {
            let Fact { dtype, mut shape } = b.fact(&g);
            shape[a] = extent.clone();
            g = b.full(0.0, dtype, &shape)?;
            continue;
        }
        let span = &(&slice.len - &Dim::ONE) * &Dim::Const(slice.step);
        let mut start = slice.start.clone();
        if slice.step < 0 {
            g = b.reversed(&g, a)?;
            start = &start + &span;
        }
        g = b.spaced(&g, a, slice.step.unsigned_abs() as usize)?;
        let covered = b.fact(&g).shape[a].clone();
        let end = &(extent - &start) - &covered;
        g = b.pad_axis_zero(&g, a, start, end)?;
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

/// Returns the gradients of the operands of a concatenation: slices of its gradient.
pub(crate) fn pullback_concat(
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
        let slice = needs_grad.then(|| b.narrow(g, axis, start, len));
        out.push(slice.transpose()?);
        start = end;
    }
    Ok(out)
}
