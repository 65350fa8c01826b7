//! Views of matrix products:
//!
//! ```text
//! transposed_product     permute(a · b, last two swapped) = permute(b) · permute(a)
//! bias_under_reshape     reshape(a · b) + bias = reshape(a · b + bias)        and the same for −, · and /
//! cast_under_reshape     cast(reshape(a · b)) = reshape(cast(a · b))
//! ```
//!
//! Each sum has the same terms in the same order. The operands are read through strides anyway, while readers of the
//! transposed result would read across its rows. Next to its product, a bias or factor can be folded and merged with
//! the product by other rules. It has one number per column, and the reshape keeps columns. Only where nothing else
//! reads the product.

use crate::{Pass, Patch, Run, View, rules};
use kiln_ir::ops::{Axes, MatMul};
use kiln_ir::{Builder, NodeId, Op, Pw, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "products",
    about: "moves transpositions of products to their operands, and biases and factors to their products",
    exact: true,
    run: Run::Rules(rules![
        transposed_product,
        bias_under_reshape,
        cast_under_reshape
    ]),
};

/// The maximum number of biases and factors of one product that are looked through.
const MAX_ROWS: usize = 8;

/// permute(matmul(a, b)) = matmul(permute(b), permute(a)).
fn transposed_product(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Permute(permute) = &node.op else {
        return None;
    };
    let product = node.inputs[0];
    let producer = view.producer(product);
    let rank = permute.perm.len();
    let mut swap: Axes = (0..rank).collect();
    if rank < 2 || !matches!(producer.op, Op::MatMul(_)) || view.use_count(product.node) != 1 {
        return None;
    }
    swap.swap(rank - 2, rank - 1);
    if permute.perm != swap {
        return None;
    }
    let mut patch = view.patch(id);
    let right = patch.permute(&producer.inputs[0], &swap).ok()?;
    let left = patch.permute(&producer.inputs[1], &swap).ok()?;
    let new = patch.op(MatMul {}, &[left, right]).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// reshape(a · b) + bias = reshape(a · b + bias), and the same for other operands with one number per column.
fn bias_under_reshape(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let (op, [a, b]) = arithmetic(view, id)?;
    let operands = match [a, b].map(|v| reshaped_product(view, v)) {
        [Some(y), None] => [y, row(view, b)?],
        [None, Some(y)] => [row(view, a)?, y],
        _ => return None,
    };
    let mut patch = view.patch(id);
    let new = patch.pointwise(op, &operands).ok()?;
    let new = patch.reshape(&new, &node.fact().shape).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// cast(reshape(a · b)) = reshape(cast(a · b)), with biases and factors too.
fn cast_under_reshape(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    if !matches!(node.op, Op::Cast(_)) {
        return None;
    }
    let product = reshaped_product(view, node.inputs[0])?;
    let mut patch = view.patch(id);
    let new = patch.op(node.op.clone(), &[product]).ok()?;
    let new = patch.reshape(&new, &node.fact().shape).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// The row and operands of an operation by which a bias or factor is applied.
fn arithmetic(view: &View<'_>, id: NodeId) -> Option<(Pw, [Value; 2])> {
    match view.row(id)? {
        (row @ (Pw::Add | Pw::Sub | Pw::Mul | Pw::Div), &[a, b]) => Some((row, [a, b])),
        _ => None,
    }
}

/// The operand of a reshape that keeps columns, if nothing else reads either.
fn reshaped(view: &View<'_>, v: Value) -> Option<Value> {
    let node = view.producer(v);
    if !matches!(node.op, Op::Reshape(_)) || view.use_count(v.node) != 1 {
        return None;
    }
    let x = node.inputs[0];
    let keeps_columns = view.fact(x).shape.last() == node.fact().shape.last();
    (view.use_count(x.node) == 1 && keeps_columns).then_some(x)
}

/// The product, with its biases and factors, under a reshape that keeps its columns.
fn reshaped_product(view: &View<'_>, v: Value) -> Option<Value> {
    let reshaped = reshaped(view, v)?;
    let mut y = reshaped;
    for _ in 0..MAX_ROWS {
        let node = view.producer(y);
        if matches!(node.op, Op::MatMul(_)) {
            return Some(reshaped);
        }
        let (_, [a, b]) = arithmetic(view, y.node)?;
        y = if row(view, b).is_some() { a } else { b };
        if view.use_count(y.node) != 1 {
            return None;
        }
    }
    None
}

/// The numbers, one per column, that are stretched to a value.
fn row(view: &View<'_>, v: Value) -> Option<Value> {
    let node = view.producer(v);
    let row = matches!(node.op, Op::Broadcast(_)).then(|| node.inputs[0])?;
    let columns = node.fact().shape.last();
    (view.fact(row).rank() == 1 && view.fact(row).shape.last() == columns).then_some(row)
}
