//! Composites in terms of primitives: `batch_norm(x, …) → ((x − mean) · scale) + bias`, and so on, as
//! each composite's `decompose` says.
//!
//! Runs last, when no pattern needs a composite whole any more. Exact in the sense that a composite
//! *means* its decomposition; engines may still contract or reorder what it becomes.

use crate::{Options, Pass, Patch, Rule, Run, View, optimize_with};
use kiln_ir::{DType, Graph, NodeId, Op};

/// The pass. Not part of [`crate::passes()`].
pub const PASS: Pass = Pass {
    name: "decompose",
    about: "writes composites in terms of primitives",
    exact: false,
    run: Run::Rules(&[&Decompose]),
};

/// Writes the composites of a graph and of its bodies in terms of primitives. A composite that can't
/// be written so is left.
pub fn decompose(graph: Graph) -> Graph {
    let options = Options {
        verify: cfg!(debug_assertions),
        ..Options::default()
    };
    match optimize_with(graph.clone(), &[PASS], &options) {
        Ok((graph, _)) => graph,
        Err(e) => {
            debug_assert!(false, "decompose: {e}");
            graph
        }
    }
}

struct Decompose;

impl Rule for Decompose {
    fn name(&self) -> &'static str {
        "decompose"
    }

    fn apply(&self, view: &View<'_>, id: NodeId) -> Option<Patch> {
        let node = view.node(id);
        if has_kernel(&node.op, node.facts[0].dtype) {
            return None;
        }
        let mut patch = view.patch(id);
        let value = node.op.decompose(&mut patch, &node.inputs)?.ok()?;
        (value != id.value()).then(|| patch.replacing(id.value(), value))
    }
}

/// Whether engines compute the op whole: the gradients of convolutions of f32 and f64.
fn has_kernel(op: &Op, dtype: DType) -> bool {
    matches!(op, Op::ConvTranspose(_) | Op::ConvWeight(_))
        && matches!(dtype, DType::F32 | DType::F64)
}
