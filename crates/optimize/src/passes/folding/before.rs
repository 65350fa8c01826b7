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
    let (x, by) = match (factor(b), factor(a)) {
        (Some(by), _) => (a, by),
        (None, Some(by)) if op == Pw::Mul => (b, by),
        _ => return None,
    };
    let mut patch = view.patch(id);
    let by = by.vector(&mut patch, view).ok()?;
    let weight = product.weight_by_term(&mut patch, op, &by).ok()?;
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
    let channel = |v: Value| Channel::of(view, v, product.channels());
    let (x, by) = match (channel(b), channel(a)) {
        (Some(by), _) => (a, by),
        (None, Some(by)) if op == Pw::Add => (b, by),
        _ => return None,
    };
    let whole = matches!(product.fact().dtype, DType::I32 | DType::I64);
    if !whole || !was_narrow(view, x) {
        return None;
    }
    let mut patch = view.patch(id);
    let new = shifted(&mut patch, view, &product, x, op, by).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// True if the integers had fewer bits before they were cast.
fn was_narrow(view: &View<'_>, x: Value) -> bool {
    was_cast(view, x, |d| matches!(d, DType::U8 | DType::I8 | DType::I16))
}

/// `P(x, w) op (P of b)`.
fn shifted(
    patch: &mut PatchBuilder<'_>,
    view: &View<'_>,
    product: &Product<'_>,
    x: Value,
    op: Pw,
    by: Channel,
) -> Result<Value, OpError> {
    let by = by.vector(patch, view)?;
    let sum = product.sum_of_terms(patch, &by)?;
    let y = product.with(patch, x, product.weight())?;
    add(patch, product, y, op, sum)
}

/// A result and a `[c]` that is added to its channels.
fn add(
    patch: &mut PatchBuilder<'_>,
    product: &Product<'_>,
    y: Value,
    op: Pw,
    by: Value,
) -> Result<Value, OpError> {
    let fact = patch.fact(&by);
    // In a batch of products each weight has sums of its own.
    let by = match fact.rank() {
        1 => {
            let rank = patch.fact(&y).rank();
            column(patch, &by, product.channels(), rank)?
        }
        _ => {
            let mut shape = fact.shape.clone();
            let at = match product.channels() + 1 == patch.fact(&y).rank() {
                true => shape.len() - 1,
                false => shape.len(),
            };
            shape.insert(at, Dim::ONE);
            patch.reshape(&by, &shape)?
        }
    };
    patch.pointwise(op, &[y, by])
}
