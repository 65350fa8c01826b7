//! Composites in terms of primitives: `batch_norm(x, …) → ((x − mean) · scale) + bias`, and so on, by each
//! composite's `decompose`.
//!
//! Decomposition may yield work on values without elements, so it is removed here as well: no other pass runs after
//! this.
//!
//! A GPU gets the launches of all steps of a loop at once. So a conditional loop becomes one of its largest number of
//! steps there, which do nothing after its end.
//!
//! Runs last, when no pattern needs a composite whole any more. Exact in the sense that a composite *means* its
//! decomposition; engines may still contract or reorder the primitives.

use super::emptiness::empty;
use super::loop_values::replace_outputs;
use crate::{Options, Pass, Patch, Run, View, optimize_with, rules};
use kiln_base::Machine;
use kiln_ir::{DType, Graph, NodeId, Op};

/// The pass. Not part of [`crate::passes()`].
const PASS: Pass = Pass {
    name: "decompose",
    about: "writes composites in terms of primitives",
    exact: false,
    run: Run::Rules(rules![empty, composite, masked_loop]),
};

/// Decomposes the composites of a graph and of its bodies, except those for which the machine has a kernel.
/// Composites without a decomposition stay.
pub fn decompose(graph: Graph, machine: &Machine) -> Graph {
    let options = Options {
        machine: *machine,
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

fn composite(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let is_fusable = match &node.op {
        Op::Attention(_) => !weights_are_read(view, id),
        _ => true,
    };
    if is_fusable && has_kernel(view, &node.op, node.facts[0].dtype) {
        return None;
    }
    let mut patch = view.patch(id);
    let value = node.op.decompose(&mut patch, &node.inputs)?.ok()?;
    (value != id.value()).then(|| patch.replacing(id.value(), value))
}

fn masked_loop(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Loop(op) = &node.op else { return None };
    let masked = op.masked().filter(|_| view.is_for_gpu())?.ok()?;
    let outputs: Vec<usize> = (0..op.carried).collect();
    replace_outputs(view, id, masked.into(), &node.inputs, &outputs)
}

/// True if another op needs the attention's weights: a product reads its query and its key. The weights are then
/// computed once for both, rather than again inside the attention kernel.
fn weights_are_read(view: &View<'_>, id: NodeId) -> bool {
    let products_of = |operand: usize| {
        let mut products = Vec::new();
        collect_products(
            view,
            view.node(id).inputs[operand].node,
            operand,
            &mut products,
        );
        products
    };
    let keys = products_of(1);
    products_of(0).iter().any(|r| keys.contains(r))
}

/// Collects the products that read a value as this operand, through views and casts.
fn collect_products(view: &View<'_>, id: NodeId, operand: usize, products: &mut Vec<NodeId>) {
    for user in view.users(id) {
        let node = view.node(*user);
        match &node.op {
            Op::MatMul(_) if node.inputs[operand].node == id => {
                products.push(*user);
            }
            op if op.is_view() || matches!(op, Op::Cast(_)) => {
                collect_products(view, *user, operand, products);
            }
            _ => {}
        }
    }
}

/// True if the machine has a kernel for the op: for gradients of convolutions of floats, and for attention and its
/// gradients (on the CPU, not of f64).
fn has_kernel(view: &View<'_>, op: &Op, dtype: DType) -> bool {
    match op {
        Op::ConvTranspose(_) | Op::ConvWeight(_) => dtype.is_float(),
        Op::Attention(_) | Op::AttentionGrad(_) => dtype != DType::F64 || view.is_for_gpu(),
        _ => false,
    }
}
