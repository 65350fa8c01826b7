//! Views of matrix products:
//!
//! ```text
//! transposed_product   permute(a · b, last two swapped) = permute(b) · permute(a)
//! bias_under_reshape   reshape(a · b) + bias = reshape(a · b + bias)
//! ```
//!
//! Each sum has the same terms in the same order. The operands are read through strides anyway, while
//! whoever reads the transposed result would read across its rows. A bias beside its product is seen by
//! the rules that fold and merge products; it has one number a column, and the reshape keeps columns. Only
//! where nothing else reads the product.

use crate::{Pass, Patch, Rule, Run, View};
use kiln_ir::ops::{Axes, MatMul};
use kiln_ir::{Builder, NodeId, Op, Pw, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "products",
    about: "moves transpositions of products to their operands, and biases to their products",
    exact: true,
    run: Run::Rules(&[&TransposedProduct, &BiasUnderReshape]),
};

/// permute(matmul(a, b)) = matmul(permute(b), permute(a)).
pub struct TransposedProduct;

impl Rule for TransposedProduct {
    fn name(&self) -> &'static str {
        "transposed_product"
    }

    fn apply(&self, view: &View<'_>, id: NodeId) -> Option<Patch> {
        let node = view.node(id);
        let Op::Permute(permute) = &node.op else {
            return None;
        };
        let product = node.inputs[0];
        let below = view.producer(product);
        let rank = permute.perm.len();
        let mut swap: Axes = (0..rank).collect();
        if rank < 2 || !matches!(below.op, Op::MatMul(_)) || view.use_count(product.node) != 1 {
            return None;
        }
        swap.swap(rank - 2, rank - 1);
        if permute.perm != swap {
            return None;
        }
        let mut patch = view.patch(id);
        let right = patch.permute(&below.inputs[0], &swap).ok()?;
        let left = patch.permute(&below.inputs[1], &swap).ok()?;
        let new = patch.op(MatMul {}, &[left, right]).ok()?;
        Some(patch.replacing(id.value(), new))
    }
}

/// reshape(a · b) + bias = reshape(a · b + bias).
pub struct BiasUnderReshape;

impl Rule for BiasUnderReshape {
    fn name(&self) -> &'static str {
        "bias_under_reshape"
    }

    fn apply(&self, view: &View<'_>, id: NodeId) -> Option<Patch> {
        let node = view.node(id);
        if !matches!(&node.op, Op::Pointwise(p) if p.0 == Pw::Add) {
            return None;
        }
        let (y, bias) = match [0, 1].map(|i| reshaped_product(view, node.inputs[i])) {
            [Some(y), None] => (y, row(view, node.inputs[1])?),
            [None, Some(y)] => (y, row(view, node.inputs[0])?),
            _ => return None,
        };
        let mut patch = view.patch(id);
        let sum = patch.pointwise(Pw::Add, &[y, bias]).ok()?;
        let new = patch.reshape(&sum, &node.fact().shape).ok()?;
        Some(patch.replacing(id.value(), new))
    }
}

/// The product that a reshape, which keeps its columns, gives another shape.
fn reshaped_product(view: &View<'_>, v: Value) -> Option<Value> {
    let node = view.producer(v);
    if !matches!(node.op, Op::Reshape(_)) || view.use_count(v.node) != 1 {
        return None;
    }
    let y = node.inputs[0];
    let product = matches!(view.producer(y).op, Op::MatMul(_)) && view.use_count(y.node) == 1;
    let same = view.fact(y).shape.last() == node.fact().shape.last();
    (product && same).then_some(y)
}

/// The one number a column that is stretched to a value.
fn row(view: &View<'_>, v: Value) -> Option<Value> {
    let node = view.producer(v);
    let row = matches!(node.op, Op::Broadcast(_)).then(|| node.inputs[0])?;
    let columns = node.fact().shape.last();
    (view.fact(row).rank() == 1 && view.fact(row).shape.last() == columns).then_some(row)
}
