//! Gather and scatter.

use crate::erased::{Erased, Id};
use crate::reduce::{pairs, zeros_like};
use crate::{Call, Gradients};
use kiln_base::prim::{Reduction, ScatterKind};
use kiln_ir::ops::{Gather, Reduce, Scatter};
use kiln_ir::{Builder, OpError, Pw};

pub(crate) fn gather(
    b: &mut Erased<'_>,
    axis: usize,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    let (x, index) = (&call.inputs[0], &call.inputs[1]);
    let zero = zeros_like(b, x)?;
    let kind = ScatterKind::Sum;
    let dx = b.op(Scatter { axis, kind }, &[zero, index.clone(), g.clone()])?;
    Ok([Some(dx), None].into_iter().collect())
}

pub(crate) fn scatter(
    b: &mut Erased<'_>,
    op: &Scatter,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    let index = &call.inputs[1];
    let axis = op.axis;
    let take = |b: &mut Erased<'_>, v: &Id| b.op(Gather { axis }, &[v.clone(), index.clone()]);
    let (dx, dsrc) = match op.kind {
        ScatterKind::Sum => (g.clone(), take(b, g)?),
        ScatterKind::Set => {
            let zero = zeros_like(b, &call.inputs[2])?;
            let dx = b.op(*op, &[g.clone(), index.clone(), zero])?;
            (dx, take(b, g)?)
        }
        ScatterKind::Prod => return product(b, op, g, call),
        ScatterKind::Max | ScatterKind::Min => return extreme(b, op, g, call),
    };
    Ok([Some(dx), None, Some(dsrc)].into_iter().collect())
}

/// Returns `g · y / x`; where one factor is 0, `g` times the product of the others. As in PyTorch, the source's gradient
/// at a position with a zero counts only the zeros of the source. Its own derivative is that of [`product_of_others`].
fn product(
    b: &mut Erased<'_>,
    op: &Scatter,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    let (x, index, src) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let axis = op.axis;
    let one = b.full(1.0, b.with_fact(x, |f| f.dtype), &[])?;
    let ones = {
        let fact = b.fact(x);
        b.full(1.0, fact.dtype, &fact.shape)?
    };
    // The gradient of x: the product of the elements scattered to it.
    let scattered = b.op(*op, &[ones, index.clone(), src.clone()])?;
    let dx = b.pointwise(Pw::Mul, &[g.clone(), scattered])?;
    // The gradient of the source: the product of all other factors at its place.
    let is_zero = b.with(Pw::Eq, src, 0.0)?;
    let filled = b.pointwise(Pw::Select, &[is_zero.clone(), one.clone(), src.clone()])?;
    let without_zeros = b.op(*op, &[x.clone(), index.clone(), filled.clone()])?;
    let zeros = b.cast(&is_zero, kiln_base::DType::I64)?;
    let shape = b.fact(x).shape;
    let none = b.full(0i64, kiln_base::DType::I64, &shape)?;
    let count = Scatter {
        axis,
        kind: ScatterKind::Sum,
    };
    let count = b.op(count, &[none, index.clone(), zeros])?;
    let take = |b: &mut Erased<'_>, v: Id| b.op(Gather { axis }, &[v, index.clone()]);
    let product = b.pointwise(Pw::Mul, &[g.clone(), without_zeros])?;
    let product = take(b, product)?;
    let count = take(b, count)?;
    let quotient = b.pointwise(Pw::Div, &[product, filled])?;
    let zero = b.scalar_like(0.0, &quotient)?;
    // The gradient of a zero is not 0 if it is the only zero, that of any other element if there is no zero.
    let own = b.cast(&is_zero, kiln_base::DType::I64)?;
    let alone = b.pointwise(Pw::Eq, &[count, own])?;
    let dsrc = b.pointwise(Pw::Select, &[alone, quotient, zero])?;
    let others = product_of_others(b, axis, index, src)?;
    let rest = b.pointwise(Pw::Mul, &[g.clone(), x.clone()])?;
    let rest = take(b, rest)?;
    let exact = b.pointwise(Pw::Mul, &[rest, others])?;
    let dsrc = b.pointwise(Pw::Surrogate, &[dsrc, exact])?;
    Ok([Some(dx), None, Some(dsrc)].into_iter().collect())
}

/// Returns, for each element of a source, the product of the others with the same destination.
fn product_of_others(b: &mut Erased<'_>, axis: usize, index: &Id, src: &Id) -> Result<Id, OpError> {
    let [others, own, other] = pairs(b, src, axis)?;
    let [theirs, ..] = pairs(b, index, axis)?;
    let mut shape = b.fact(index).shape;
    shape.insert(axis + 1, kiln_base::Dim::ONE);
    let ours = b.reshape(index, &shape)?;
    let meet = b.pointwise(Pw::Eq, &[ours, theirs])?;
    let differ = b.pointwise(Pw::Ne, &[own, other])?;
    let counts = b.pointwise(Pw::And, &[meet, differ])?;
    let one = b.scalar_like(1.0, &others)?;
    let factors = b.pointwise(Pw::Select, &[counts, others, one])?;
    let (kind, axes) = (Reduction::Prod, [axis + 1][..].into());
    b.op(Reduce { kind, axes }, &[factors])
}

/// Splits the gradient equally among all elements equal to the extreme, including x's own element.
fn extreme(
    b: &mut Erased<'_>,
    op: &Scatter,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    let (x, index, src) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let y = &call.outputs[0];
    let axis = op.axis;
    let dtype = b.with_fact(x, |f| f.dtype);
    let take = |b: &mut Erased<'_>, v: &Id| b.op(Gather { axis }, &[v.clone(), index.clone()]);
    let own = b.pointwise(Pw::Eq, &[x.clone(), y.clone()])?;
    let own = b.cast(&own, dtype)?;
    let extremes = take(b, y)?;
    let theirs = b.pointwise(Pw::Eq, &[src.clone(), extremes])?;
    let theirs = b.cast(&theirs, dtype)?;
    let count = Scatter {
        axis,
        kind: ScatterKind::Sum,
    };
    let count = b.op(count, &[own.clone(), index.clone(), theirs.clone()])?;
    let share = b.pointwise(Pw::Div, &[g.clone(), count])?;
    let taken = take(b, &share)?;
    let dx = b.pointwise(Pw::Mul, &[own, share])?;
    let dsrc = b.pointwise(Pw::Mul, &[theirs, taken])?;
    Ok([Some(dx), None, Some(dsrc)].into_iter().collect())
}
