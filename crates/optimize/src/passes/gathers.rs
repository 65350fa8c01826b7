//! Gathered values, computed after the gather and not before:
//!
//! ```text
//! gather_of_extreme     gather(a, argmax(a)) = max(a)      and of the smallest
//! gather_of_pointwise   gather(f(a, b, …), i) = f(gather(a, i), gather(b, i), …)
//!                       gather(c, i) = c       for c constant along the axis
//! ```
//!
//! for a chain f of pointwise rows and casts. So a loss that picks the label's log-probability reads the logit at the
//! label, and no log-softmax is written to memory. A gather reads its operand from memory, so f(a, b, …) is no longer
//! stored. Holds for every number. Conditions:
//!
//! - `a` is the same value on both sides, so the index of the first extreme is inside it, and the elements at it are
//!   the extremes, NaN among them. The derivative was taken by index before.
//! - The index is at most half as long as the axis, and as large as the operand off it, so little is computed twice.
//! - The new operands of gathers lie in memory in any case: they are inputs, or something other than pointwise work
//!   reads them too. At least one gather is left, so an index out of range is still reported.
//! - Rows of the chain are of floats and masks: an integer division by zero is an error for any element.

use crate::{Pass, Patch, PatchBuilder, Run, View, rules};
use hashbrown::HashMap;
use kiln_ir::ops::Gather;
use kiln_ir::{Builder, DType, Dim, Node, NodeId, Op, OpError, Shape, Value};

/// The maximum number of operations of a chain.
const MAX_CHAIN: usize = 32;

/// The pass.
pub const PASS: Pass = Pass {
    name: "gathers",
    about: "computes what is chosen by index, not what it is chosen from",
    exact: true,
    run: Run::Rules(rules![gather_of_extreme, gather_of_pointwise]),
};

/// gather(a, argmax(a)) = max(a).
fn gather_of_extreme(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Gather(gather) = &node.op else {
        return None;
    };
    let [x, mut index] = node.inputs[..] else {
        return None;
    };
    if let Op::Reshape(_) = view.producer(index).op {
        index = view.producer(index).inputs[0];
    }
    let producer = view.producer(index);
    let Op::ArgReduce(extreme) = &producer.op else {
        return None;
    };
    // One element per lane, in the order of the lanes.
    let mut reduced_shape = view.fact(x).shape.clone();
    reduced_shape[gather.axis] = Dim::ONE;
    let is_same_lane = producer.inputs[0] == x && extreme.axis == gather.axis;
    if !is_same_lane || node.fact().shape != reduced_shape {
        return None;
    }
    let mut patch = view.patch(id);
    let new = patch
        .reduce_keepdim(extreme.kind, &x, &[extreme.axis])
        .ok()?;
    Some(patch.replacing(id.value(), new))
}

/// gather(f(a, b, …), i) = f(gather(a, i), gather(b, i), …).
fn gather_of_pointwise(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Gather(gather) = &node.op else {
        return None;
    };
    let [x, index] = node.inputs[..] else {
        return None;
    };
    let is_cheaper = is_shorter(view, x, index, gather.axis)
        && !view.is_output(x.node)
        && (view.is_prepared(id.value()) || !view.is_prepared(x));
    if !is_cheaper {
        return None;
    }
    let mut chain = Chain {
        view,
        gather,
        index,
        shape: &node.fact().shape,
        gathered: HashMap::new(),
        rows: 0,
        gathers: 0,
    };
    let mut patch = view.patch(id);
    let row = view.producer(x);
    let operands = chain.operands(&mut patch, row)?;
    let new = patch.op(row.op.clone(), &operands).ok()?;
    (chain.gathers > 0).then(|| patch.replacing(id.value(), new))
}

/// True if the index is at most half as long as the axis, and as large as x off it.
fn is_shorter(view: &View<'_>, x: Value, index: Value, axis: usize) -> bool {
    let (from, to) = (&view.fact(x).shape, &view.fact(index).shape);
    let is_short = match (to[axis].as_const(), from[axis].as_const()) {
        (Some(i), Some(n)) => 2 * i <= n,
        // A symbol is at least 2.
        (Some(i), None) => i <= 1,
        _ => false,
    };
    is_short && (0..from.len()).all(|a| a == axis || from[a] == to[a])
}

/// A pointwise row of floats and masks, or a cast.
fn is_row(view: &View<'_>, node: &Node) -> bool {
    let holds = |v: &Value| {
        let dtype = view.fact(*v).dtype;
        dtype.is_float() || dtype == DType::Bool
    };
    match node.op {
        Op::Cast(_) => true,
        Op::Pointwise(_) => node.inputs.iter().all(holds),
        _ => false,
    }
}

/// A chain while it is rewritten for the gathered elements.
struct Chain<'a> {
    view: &'a View<'a>,
    gather: &'a Gather,
    index: Value,
    /// The index's shape.
    shape: &'a Shape,
    /// The gathered elements of each value.
    gathered: HashMap<Value, Value>,
    rows: usize,
    gathers: usize,
}

impl Chain<'_> {
    /// Returns the gathered elements of a value; `None` if that would read a value that is not in memory.
    fn gather(&mut self, b: &mut PatchBuilder<'_>, v: Value) -> Option<Result<Value, OpError>> {
        if let Some(new) = self.gathered.get(&v) {
            return Some(Ok(*new));
        }
        let node = self.view.producer(v);
        let new = if let Some(c) = self.source_along_axis(v) {
            b.broadcast_to(&c, self.shape)
        } else if let Some(full) = self.view.as_full(v) {
            b.full(full.value, full.dtype, self.shape)
        } else if let Some(operands) = self.operands(b, node) {
            b.op(node.op.clone(), &operands)
        } else if self.is_in_memory(v) {
            self.gathers += 1;
            b.op(*self.gather, &[v, self.index])
        } else {
            return None;
        };
        if let Ok(new) = &new {
            self.gathered.insert(v, *new);
        }
        Some(new)
    }

    /// The gathered operands of a row.
    fn operands(&mut self, b: &mut PatchBuilder<'_>, node: &Node) -> Option<Vec<Value>> {
        if !is_row(self.view, node) || self.rows == MAX_CHAIN {
            return None;
        }
        self.rows += 1;
        let operands = node.inputs.iter();
        operands.map(|v| self.gather(b, *v)?.ok()).collect()
    }

    /// Returns the source of a value that is broadcast along the axis.
    fn source_along_axis(&self, v: Value) -> Option<Value> {
        let node = self.view.producer(v);
        let Op::Broadcast(_) = node.op else {
            return None;
        };
        let (source, fact) = (self.view.fact(node.inputs[0]), node.fact());
        let extra = fact.rank() - source.rank();
        let axis = self.gather.axis;
        let is_broadcast = axis < extra || source.shape[axis - extra] == Dim::ONE;
        is_broadcast.then_some(node.inputs[0])
    }

    /// True if a value is stored even if the gather no longer reads it.
    fn is_in_memory(&self, mut v: Value) -> bool {
        let fuses = |u: &NodeId| {
            let node = self.view.node(*u);
            node.op.is_view() || is_row(self.view, node)
        };
        loop {
            let node = self.view.producer(v);
            let leaf = matches!(node.op, Op::Input(_) | Op::Constant(_));
            if leaf || self.view.is_output(v.node) || !self.view.users(v.node).iter().all(fuses) {
                return true;
            }
            if !node.op.is_view() {
                return false;
            }
            v = node.inputs[0];
        }
    }
}
