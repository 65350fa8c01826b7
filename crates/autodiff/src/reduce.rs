//! Sums, products and extremes.

use crate::erased::{Erased, Id};
use kiln_base::prim::{Reduction, ScanKind};
use kiln_base::{Dim, numel};
use kiln_ir::ops::{Axes, Concat, Reduce, Scan};
use kiln_ir::{Builder, OpError, Pw, Shape};

pub(crate) fn pullback(
    b: &mut Erased<'_>,
    op: &Reduce,
    g: &Id,
    x: &Id,
    y: &Id,
) -> Result<Id, OpError> {
    let shape = b.fact(x).shape;
    let mut keepdim_shape = shape.clone();
    op.axes.iter().for_each(|a| keepdim_shape[*a] = Dim::ONE);
    let g = b.reshape(g, &keepdim_shape)?;
    match op.kind {
        Reduction::Sum => b.broadcast_to(&g, &shape),
        Reduction::Prod => {
            let others = products_of_others(b, x, &op.axes)?;
            b.pointwise(Pw::Mul, &[g, others])
        }
        // All elements equal to the extreme have equal shares.
        Reduction::Max | Reduction::Min => {
            let dtype = b.with_fact(x, |f| f.dtype);
            let y = b.reshape(y, &keepdim_shape)?;
            let is_extreme = b.pointwise(Pw::Eq, &[x.clone(), y])?;
            let extremes = b.cast(&is_extreme, dtype)?;
            let count = b.reduce_keepdim(Reduction::Sum, &extremes, &op.axes)?;
            let share = b.pointwise(Pw::Div, &[g, count])?;
            b.pointwise(Pw::Mul, &[extremes, share])
        }
    }
}

/// Returns, for each element, the product of all others along `axes`, even if some are 0: the product of those before
/// it and those after it.
fn products_of_others(b: &mut Erased<'_>, x: &Id, axes: &[usize]) -> Result<Id, OpError> {
    let shape = b.fact(x).shape;
    let rank = shape.len();
    let mut perm: Axes = (0..rank).filter(|a| !axes.contains(a)).collect();
    let kept = perm.len();
    perm.extend(axes.iter().copied());
    let permuted = b.permute(x, &perm)?;
    let permuted_shape: Shape = perm.iter().map(|a| shape[*a].clone()).collect();
    let n = numel(&permuted_shape[kept..]);
    if n.is(0) {
        return Ok(x.clone());
    }
    let mut flat: Shape = permuted_shape[..kept].into();
    flat.push(n);
    let rows = b.reshape(&permuted, &flat)?;
    let before = products_before(b, &rows, kept, false)?;
    let after = products_before(b, &rows, kept, true)?;
    let others = b.pointwise(Pw::Mul, &[before, after])?;
    let others = b.reshape(&others, &permuted_shape)?;
    crate::views::unpermute(b, &perm, &others)
}

/// Returns the product of the elements before each one along an axis (after it, with `reverse`).
pub(crate) fn products_before(
    b: &mut Erased<'_>,
    x: &Id,
    axis: usize,
    reverse: bool,
) -> Result<Id, OpError> {
    let fact = b.fact(x);
    let scan = Scan {
        kind: ScanKind::Prod,
        axis,
        reverse,
    };
    let inclusive = b.op(scan, std::slice::from_ref(x))?;
    let mut shape = fact.shape.clone();
    shape[axis] = Dim::ONE;
    let ones = b.full(1.0, fact.dtype, &shape)?;
    let len = &fact.shape[axis] - &Dim::ONE;
    if len.is(0) {
        return Ok(ones);
    }
    let start = if reverse { Dim::ONE } else { Dim::ZERO };
    let tail = b.narrow(&inclusive, axis, start, len)?;
    let pieces = if reverse { [tail, ones] } else { [ones, tail] };
    b.op(Concat { axis }, &pieces)
}

/// Returns three tensors over all pairs of positions (j, i) along an axis, in dims `axis` and `axis + 1`: the element
/// of `x` at i, j itself, and i itself.
pub(crate) fn pairs(b: &mut Erased<'_>, x: &Id, axis: usize) -> Result<[Id; 3], OpError> {
    let mut shape = b.fact(x).shape;
    let len = shape[axis].clone();
    shape.insert(axis, Dim::ONE);
    let unsqueezed = b.reshape(x, &shape)?;
    shape[axis] = len;
    Ok([
        b.broadcast_to(&unsqueezed, &shape)?,
        positions(b, &shape, axis)?,
        positions(b, &shape, axis + 1)?,
    ])
}

/// Returns 0, 1, … along one axis of `shape`, as i64 and broadcast to it.
pub(crate) fn positions(b: &mut Erased<'_>, shape: &Shape, axis: usize) -> Result<Id, OpError> {
    let len = shape[axis].clone();
    let numbers = b.op(kiln_ir::ops::Iota { len: len.clone() }, &[])?;
    let mut along_axis = Shape::from_elem(Dim::ONE, shape.len());
    along_axis[axis] = len;
    let numbers = b.reshape(&numbers, &along_axis)?;
    b.broadcast_to(&numbers, shape)
}
