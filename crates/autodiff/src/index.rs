//! Gather and scatter.

use crate::erased::{Erased, Id};
use crate::reduce::pairs;
use crate::{Call, Gradients};
use kiln_base::prim::{Reduction, ScatterKind};
use kiln_base::{DType, Dim};
use kiln_ir::ops::{Reduce, Scatter};
use kiln_ir::{Builder, OpError, Pw};

pub(crate) fn gather(
    b: &mut Erased<'_>,
    axis: usize,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    let (x, index) = (&call.inputs[0], &call.inputs[1]);
    let zero = b.full_like(0.0, x)?;
    let dx = b.scatter_add(&zero, axis, index, g)?;
    Ok(Gradients::from_iter([Some(dx), None]))
}

pub(crate) fn scatter(
    b: &mut Erased<'_>,
    op: &Scatter,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    let index = &call.inputs[1];
    let (dx, dsrc) = match op.kind {
        ScatterKind::Sum => (g.clone(), b.gather(g, op.axis, index)?),
        ScatterKind::Set => {
            let zero = b.full_like(0.0, &call.inputs[2])?;
            let dx = b.op(*op, &[g.clone(), index.clone(), zero])?;
            (dx, b.gather(g, op.axis, index)?)
        }
        ScatterKind::Prod => product(b, op, g, call)?,
        ScatterKind::Max | ScatterKind::Min => extreme(b, op, g, call)?,
    };
    Ok(Gradients::from_iter([Some(dx), None, Some(dsrc)]))
}

/// Returns, for x and the source, `g · y / x`; where one factor is 0, `g` times the product of the others. As in
/// PyTorch, the source's gradient at a position with a zero counts only the zeros of the source. Its own derivative is
/// that of [`product_of_others`].
fn product(
    b: &mut Erased<'_>,
    op: &Scatter,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<(Id, Id), OpError> {
    let (x, index, src) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let axis = op.axis;
    let unit = b.scalar_like(1.0, x)?;
    let ones = b.full_like(1.0, x)?;
    // The gradient of x: the product of the elements scattered to it.
    let scattered = b.op(*op, &[ones, index.clone(), src.clone()])?;
    let dx = b.pointwise(Pw::Mul, &[g.clone(), scattered])?;
    // The gradient of the source: the product of all other factors of the same element.
    let is_zero = b.with(Pw::Eq, src, 0.0)?;
    let filled = b.pointwise(Pw::Select, &[is_zero.clone(), unit.clone(), src.clone()])?;
    let without_zeros = b.op(*op, &[x.clone(), index.clone(), filled.clone()])?;
    let is_zero_count = b.cast(&is_zero, DType::I64)?;
    let shape = b.fact(x).shape;
    let no_zeros = b.full(0i64, DType::I64, &shape)?;
    let count = b.scatter_add(&no_zeros, axis, index, &is_zero_count)?;
    let product = b.pointwise(Pw::Mul, &[g.clone(), without_zeros])?;
    let product = b.gather(&product, axis, index)?;
    let count = b.gather(&count, axis, index)?;
    let quotient = b.pointwise(Pw::Div, &[product, filled])?;
    let zero = b.scalar_like(0.0, &quotient)?;
    // The gradient of a zero is not 0 if it is the only zero, that of any other element if there is no zero.
    let no_other_zero = b.pointwise(Pw::Eq, &[count, is_zero_count])?;
    let dsrc = b.pointwise(Pw::Select, &[no_other_zero, quotient, zero])?;
    let others = product_of_others(b, axis, index, src)?;
    let scaled = b.pointwise(Pw::Mul, &[g.clone(), x.clone()])?;
    let scaled = b.gather(&scaled, axis, index)?;
    let exact = b.pointwise(Pw::Mul, &[scaled, others])?;
    Ok((dx, b.pointwise(Pw::Surrogate, &[dsrc, exact])?))
}

/// Returns, for each element of a source, the product of the others with the same destination.
fn product_of_others(b: &mut Erased<'_>, axis: usize, index: &Id, src: &Id) -> Result<Id, OpError> {
    let [others, own_position, other_position] = pairs(b, src, axis)?;
    let [other_index, ..] = pairs(b, index, axis)?;
    let mut shape = b.fact(index).shape;
    shape.insert(axis + 1, Dim::ONE);
    let own_index = b.reshape(index, &shape)?;
    let is_same_target = b.pointwise(Pw::Eq, &[own_index, other_index])?;
    let is_other = b.pointwise(Pw::Ne, &[own_position, other_position])?;
    let is_factor = b.pointwise(Pw::And, &[is_same_target, is_other])?;
    let ones = b.scalar_like(1.0, &others)?;
    let factors = b.pointwise(Pw::Select, &[is_factor, others, ones])?;
    let (kind, axes) = (Reduction::Prod, [axis + 1][..].into());
    b.op(Reduce { kind, axes }, &[factors])
}

/// Splits the gradient equally among all elements equal to the extreme, including x's own element.
fn extreme(
    b: &mut Erased<'_>,
    op: &Scatter,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<(Id, Id), OpError> {
    let (x, index, src) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let y = &call.outputs[0];
    let axis = op.axis;
    let dtype = b.with_fact(x, |f| f.dtype);
    let x_is_extreme = b.pointwise(Pw::Eq, &[x.clone(), y.clone()])?;
    let x_is_extreme = b.cast(&x_is_extreme, dtype)?;
    let extremes = b.gather(y, axis, index)?;
    let src_is_extreme = b.pointwise(Pw::Eq, &[src.clone(), extremes])?;
    let src_is_extreme = b.cast(&src_is_extreme, dtype)?;
    let count = b.scatter_add(&x_is_extreme, axis, index, &src_is_extreme)?;
    let share = b.pointwise(Pw::Div, &[g.clone(), count])?;
    let gathered = b.gather(&share, axis, index)?;
    let dx = b.pointwise(Pw::Mul, &[x_is_extreme, share])?;
    Ok((dx, b.pointwise(Pw::Mul, &[src_is_extreme, gathered])?))
}
