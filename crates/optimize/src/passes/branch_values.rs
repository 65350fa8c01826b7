//! Removes unread outputs of branches and barriers. With an output of a branch goes, on both sides, the work that
//! only it needed. An unread output of a barrier goes if its operand is an input or a constant, or if the barrier
//! holds the operand anyway.
//!
//! Any other unread output of a barrier stays: the readers of the barrier wait for the operand. A data error that
//! only a removed part could report goes too, as with dead code. One walk over the branches and barriers.

use super::loop_values::{prune, reached, read_outputs, replace_outputs, shrink_each};
use crate::{OptimizeError, Pass, Patch, Rewriter, Run, View};
use kiln_ir::{NodeId, Op, Value, ops};
use std::sync::Arc;

/// The pass.
pub const PASS: Pass = Pass {
    name: "branch_values",
    about: "removes what branches and barriers give but nothing reads",
    exact: true,
    run: Run::Walk(&["unread_branch_value", "unread_barrier_value"], shrink),
};

fn shrink(rewriter: &mut Rewriter<'_>) -> Result<(), OptimizeError> {
    shrink_each(rewriter, |view, id| match &view.node(id).op {
        Op::If(op) => Some(("unread_branch_value", branch(view, id, op)?)),
        Op::Barrier(op) => Some(("unread_barrier_value", barrier(view, id, op)?)),
        _ => None,
    })
}

/// The branch with only the outputs that are read and the operands that these need.
fn branch(view: &View<'_>, id: NodeId, op: &ops::If) -> Option<Patch> {
    let live = read_outputs(view, id);
    let reached = op.branches.each_ref().map(|b| reached(b, &live));
    let count = view.node(id).inputs.len() - 1;
    let is_needed = |i: &usize| {
        let sides = op.branches.iter().zip(&reached);
        sides.into_iter().any(|(b, r)| r[b.inputs()[*i].index()])
    };
    let operands: Vec<usize> = (0..count).filter(is_needed).collect();
    let outputs: Vec<usize> = (0..live.len()).filter(|o| live[*o]).collect();
    if operands.len() == count && outputs.len() == live.len() {
        return None;
    }
    let side = |s: usize| Arc::new(prune(&op.branches[s], 0, &reached[s], &operands, &outputs));
    let branches = [side(0), side(1)];
    let inputs = &view.node(id).inputs;
    let kept_inputs = operands.iter().map(|i| inputs[i + 1]);
    let inputs: Vec<Value> = std::iter::once(inputs[0]).chain(kept_inputs).collect();
    replace_outputs(view, id, ops::If { branches }.into(), &inputs, &outputs)
}

/// Removes the unread operands of a barrier that are leaves or repeated.
fn barrier(view: &View<'_>, id: NodeId, op: &ops::Barrier) -> Option<Patch> {
    let live = read_outputs(view, id);
    let inputs = &view.node(id).inputs;
    let is_leaf = |v: Value| matches!(view.producer(v).op, Op::Input(_) | Op::Constant(_));
    let is_repeated = |i: usize| {
        let same_operand = (0..inputs.len()).filter(|o| inputs[*o] == inputs[i] && *o != i);
        same_operand.into_iter().any(|o| live[o] || o < i)
    };
    let is_kept = |i: &usize| live[*i] || !(is_leaf(inputs[*i]) || is_repeated(*i));
    let is_kept: Vec<usize> = (0..inputs.len()).filter(is_kept).collect();
    if is_kept.len() == inputs.len() {
        return None;
    }
    let operands: Vec<Value> = is_kept.iter().map(|i| inputs[*i]).collect();
    replace_outputs(view, id, op.clone().into(), &operands, &is_kept)
}
