//! The costs of nodes.

use crate::affine::estimate;
use crate::flow::{Flow, Nid, Op};
use kiln_base::DType;
use kiln_base::prim::{Binary, ScalarBuilder, Unary};
use kiln_ir::Pw;

/// The highest cost of a value that every group that reads it rematerialises.
pub(super) const MAX_CHEAP_COST: u32 = 3;
/// The cost of a primitive that costs much more than a load.
const EXPENSIVE: u32 = 8;
/// The lowest cost of a value that is not rematerialised for each element that it is broadcast to.
pub(super) const MIN_COSTLY: u32 = 6;

/// The properties of each node before grouping.
pub(super) struct NodeFacts {
    /// Primitives to compute an element from the nearest stored, reduced or loaded values.
    pub cost: Vec<u32>,
    /// Number of elements, at typical sizes.
    pub numel: Vec<i64>,
    /// The maximum number of elements of an input or constant that it depends on; 0 without any.
    pub sources: Vec<i64>,
    /// The number of nodes and outputs that read it.
    pub readers: Vec<u32>,
}

impl NodeFacts {
    pub fn of(flow: &Flow) -> NodeFacts {
        let mut f = NodeFacts {
            cost: Vec::with_capacity(flow.nodes.len()),
            numel: Vec::with_capacity(flow.nodes.len()),
            sources: Vec::with_capacity(flow.nodes.len()),
            readers: vec![0; flow.nodes.len()],
        };
        let reads = flow.nodes.iter().flat_map(|node| &node.inputs);
        let reads = reads.copied().chain(flow.outputs.iter().map(|o| o.node));
        reads.for_each(|v| f.readers[v] += 1);
        for (v, node) in flow.nodes.iter().enumerate() {
            let numel = estimate(&flow.numel(v));
            let operands: u32 = node.inputs.iter().map(|i| f.cost[*i]).sum();
            f.cost.push(match &node.op {
                Op::Cast(_) if is_free_cast(flow, v) => operands,
                Op::Input(_) | Op::Data(_) | Op::Scalar(_) | Op::Iota | Op::Size(_) => 0,
                Op::Part | Op::After => 0,
                Op::Reduce(..) | Op::ArgReduce(..) => 0,
                _ if node.has_library() => 0,
                Op::Random(_) => 2 * EXPENSIVE,
                Op::Gather(_) => 2 + operands,
                op => (own_cost(op) + operands).min(1 << 20),
            });
            let source = node.inputs.iter().map(|i| f.sources[*i]).max();
            f.sources.push(match node.is_leaf() {
                true => numel.max(1),
                false => source.unwrap_or(0),
            });
            f.numel.push(numel);
        }
        f
    }
}

/// True if a cast is free beside a load or a store: it widens f16 or bf16 to f32, or [`is_result`]. A value that is
/// narrow in memory then stays narrow, and its readers widen it.
fn is_free_cast(flow: &Flow, v: Nid) -> bool {
    let node = &flow.nodes[v];
    let widens = node.dtype == DType::F32 && flow.nodes[node.inputs[0]].dtype.is_half();
    widens || is_result(flow, v)
}

/// True if a node rounds the sums of a product or convolution of f16 or bf16 to the dtype of its result.
pub(super) fn is_result(flow: &Flow, v: Nid) -> bool {
    let node = &flow.nodes[v];
    let rounds = matches!(node.op, Op::Cast(_)) && node.dtype.is_half();
    rounds && {
        let operand = &flow.nodes[node.inputs[0]];
        operand.is_product() && operand.dtype == DType::F32
    }
}

/// Returns the number of primitives of one node.
pub(super) fn own_cost(op: &Op) -> u32 {
    match op {
        Op::Pw(pw) => pointwise_cost(*pw),
        Op::Cast(_) | Op::Copy => 1,
        Op::View(v) if v.fill.is_some() => 1,
        Op::Concat(_) => 2,
        Op::Gather(_) => 2,
        Op::Random(_) => 2 * EXPENSIVE,
        Op::Reduce(..) | Op::ArgReduce(..) => 1,
        _ => 0,
    }
}

fn pointwise_cost(pw: Pw) -> u32 {
    /// The cost so far. Values are not distinguished.
    struct Count(u32);
    impl Count {
        fn op(&mut self, expensive: bool) -> u32 {
            self.0 += if expensive { EXPENSIVE } else { 1 };
            0
        }
    }
    impl ScalarBuilder for Count {
        fn unary(&mut self, op: Unary, _: u32) -> u32 {
            self.op(op.is_expensive())
        }
        fn binary(&mut self, op: Binary, _: u32, _: u32) -> u32 {
            self.op(op.is_expensive())
        }
        fn select(&mut self, _: u32, _: u32, _: u32) -> u32 {
            self.op(false)
        }
        fn constant(&mut self, _: f64, _: u32) -> u32 {
            0
        }
        fn is_float(&self, _: u32) -> bool {
            true
        }
    }
    let mut count = Count(0);
    (pw.row().expr)(&mut count, &[0; 3][..pw.row().arity]);
    count.0
}
