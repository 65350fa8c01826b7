//! A value without elements needs no operands:
//!
//! ```text
//! empty   f(x, …) = full(0)     where the result has an axis of extent 0
//! ```
//!
//! Nothing is read, divided or looked up for it. This must come before other rules move the work that computes it.
//! They move work on the result of a broadcast to its operand. If the operand is stretched to no elements, the moved
//! work could report a data error that the program does not have: `(a / b).sum(1)` of `[11, 0]` and `[11, 1]` divides
//! nothing. Sizes are 0 for every run or for none, since symbols are at least 2. A user's kernel always runs. A
//! scatter with indices into a tensor without elements stays too, since they are out of range.

use crate::{Pass, Patch, Run, View, rules};
use kiln_base::Scalar;
use kiln_ir::ops::Full;
use kiln_ir::{Fact, NodeId, Op};

/// The pass.
pub const PASS: Pass = Pass {
    name: "emptiness",
    about: "makes values without elements of nothing",
    exact: true,
    run: Run::Rules(rules![empty]),
};

/// f(x, …) = full(0) without elements.
pub(super) fn empty(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let [fact] = &node.facts[..] else {
        return None;
    };
    let is_kept = match &node.op {
        Op::Input(_) | Op::Full(_) | Op::Constant(_) | Op::Custom(_) => true,
        Op::Scatter(_) => !is_empty(view.fact(node.inputs[1])),
        op => !op.bodies().is_empty(),
    };
    if is_kept || !is_empty(fact) {
        return None;
    }
    let empty_tensor = Full {
        value: Scalar::Int(0).cast(fact.dtype),
        dtype: fact.dtype,
        shape: fact.shape.clone(),
    };
    view.replace_with(id, empty_tensor, &[])
}

fn is_empty(fact: &Fact) -> bool {
    fact.shape.iter().any(|d| d.is(0))
}
