//! A transposed product is the product of the transposed operands in the other order:
//!
//! ```text
//! permute(matmul(a, b), last two swapped) = matmul(permute(b), permute(a))
//! ```
//!
//! Each sum has the same terms in the same order. The operands are read through strides anyway, while
//! whoever reads the transposed result would read across its rows. Only where nothing else reads the
//! product.

use crate::{Pass, Patch, Rule, Run, View};
use kiln_ir::ops::{Axes, MatMul};
use kiln_ir::{Builder, NodeId, Op};

/// The pass.
pub const PASS: Pass = Pass {
    name: "products",
    about: "moves transpositions of products to their operands",
    exact: true,
    run: Run::Rules(&[&TransposedProduct]),
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
