//! Rewrites before a product: scales of its data, and shifts of integers.

use super::product::{Channel, Product, column, was_cast};
use crate::{Patch, PatchBuilder, View};
use kiln_ir::{Builder, DType, Dim, NodeId, OpError, Pw, Value};

fn is_read_once(view: &View<'_>, product: &Product<'_>) -> bool {
    view.use_count(product.data().node) == 1
}

/// P(x · c, w) = P(x, w · c), and P(−x, w) = P(x, −w).
pub(super) fn scaled_data(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let product = Product::of(view, id.value()).filter(|p| is_read_once(view, p))?;
    let (op, a, b) = match view.row(product.data().node)? {
        (Pw::Neg, &[x]) => return negated(view, id, &product, x),
        (op @ (Pw::Mul | Pw::Div), &[a, b]) => (op, a, b),
        _ => return None,
    };
    let factor = |v: Value| Channel::factor(view, v, product.channels());
    let (x, channel) = match (factor(b), factor(a)) {
        (Some(channel), _) => (a, channel),
        (None, Some(channel)) if op == Pw::Mul => (b, channel),
        _ => return None,
    };
    let mut patch = view.patch(id);
    let channel = channel.vector(&mut patch, view).ok()?;
    let weight = product.weight_by_term(&mut patch, op, &channel).ok()?;
    let new = product.with(&mut patch, x, weight).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// P(−x, w) = P(x, −w).
fn negated(view: &View<'_>, id: NodeId, product: &Product<'_>, x: Value) -> Option<Patch> {
    let mut patch = view.patch(id);
    let weight = patch.pointwise(Pw::Neg, &[product.weight()]).ok()?;
    let new = product.with(&mut patch, x, weight).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// P(x ± b, w) = P(x, w) ± (P of b), of integers.
pub(super) fn shifted_data(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let product = Product::of_any_dtype(view, id.value());
    let product = product.filter(|p| p.is_whole() && is_read_once(view, p))?;
    let (op @ (Pw::Add | Pw::Sub), &[a, b]) = view.row(product.data().node)? else {
        return None;
    };
    let as_channel = |v: Value| Channel::of(view, v, product.channels());
    let (x, addend) = match (as_channel(b), as_channel(a)) {
        (Some(addend), _) => (a, addend),
        (None, Some(addend)) if op == Pw::Add => (b, addend),
        _ => return None,
    };
    let is_integer = matches!(product.fact().dtype, DType::I32 | DType::I64);
    if !is_integer || !was_narrow(view, x) {
        return None;
    }
    let mut patch = view.patch(id);
    let new = shift_result(&mut patch, view, &product, x, op, addend).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// True if the integers had fewer bits before they were cast.
fn was_narrow(view: &View<'_>, x: Value) -> bool {
    was_cast(view, x, |d| matches!(d, DType::U8 | DType::I8 | DType::I16))
}

/// `P(x, w) op (P of b)`.
fn shift_result(
    patch: &mut PatchBuilder<'_>,
    view: &View<'_>,
    product: &Product<'_>,
    x: Value,
    op: Pw,
    addend: Channel,
) -> Result<Value, OpError> {
    let addend = addend.vector(patch, view)?;
    let sum = product.sum_of_terms(patch, &addend)?;
    let y = product.with(patch, x, product.weight())?;
    add(patch, product, y, op, sum)
}

/// Adds a `[c]` to the channels of a result.
fn add(
    patch: &mut PatchBuilder<'_>,
    product: &Product<'_>,
    y: Value,
    op: Pw,
    addend: Value,
) -> Result<Value, OpError> {
    let fact = patch.fact(&addend);
    // In a batch of products, each weight has its own sums.
    let addend = match fact.rank() {
        1 => {
            let rank = patch.fact(&y).rank();
            column(patch, &addend, product.channels(), rank)?
        }
        _ => {
            let mut shape = fact.shape.clone();
            let axis = match product.channels() + 1 == patch.fact(&y).rank() {
                true => shape.len() - 1,
                false => shape.len(),
            };
            shape.insert(axis, Dim::ONE);
            patch.reshape(&addend, &shape)?
        }
    };
    patch.pointwise(op, &[y, addend])
}
