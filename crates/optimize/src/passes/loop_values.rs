//! Removes unread stacked outputs of loops, and with them the work that only they needed, whether carried, scanned or
//! given to all steps. A value that is stacked twice is stacked once.
//!
//! A carried value stays while it is read after the loop or by the remaining part of a step. The remaining work of a
//! step is unchanged. A data error that only a removed part could report goes too, as with dead code. One walk over
//! the loops and their bodies.

use crate::{OptimizeError, Pass, Patch, Rewriter, Run, View};
use kiln_ir::{Builder, Graph, Node, NodeId, Op, Value, ops};
use smallvec::SmallVec;
use std::sync::Arc;

/// The pass.
pub const PASS: Pass = Pass {
    name: "loop_values",
    about: "removes what loops carry, scan and stack but nothing reads",
    exact: true,
    run: Run::Walk(&["twin_loop_value", "unread_loop_value"], shrink),
};

fn shrink(rewriter: &mut Rewriter<'_>) -> Result<(), OptimizeError> {
    shrink_each(rewriter, |view, id| {
        let Op::Loop(op) = &view.node(id).op else {
            return None;
        };
        let twins = twins(op, &read(view, id));
        let output = |output: usize| Value {
            node: id,
            output: output as u32,
        };
        let mut patch = view.patch(id);
        (twins.iter()).for_each(|(first, twin)| patch.replace(output(*twin), output(*first)));
        (!twins.is_empty()).then(|| ("twin_loop_value", patch.finish()))
    })?;
    shrink_each(rewriter, |view, id| {
        let Op::Loop(op) = &view.node(id).op else {
            return None;
        };
        let (kept, smaller, inputs) = smaller(op, &read(view, id))?;
        let operands: Vec<Value> = inputs.iter().map(|i| view.node(id).inputs[*i]).collect();
        let patch = replaced(view, id, smaller.into(), &operands, &kept)?;
        Some(("unread_loop_value", patch))
    })
}

/// Applies the result of `smaller`, the name of a rule and its patch, at each node that something reads.
pub(super) fn shrink_each(
    rewriter: &mut Rewriter<'_>,
    smaller: impl Fn(&View<'_>, NodeId) -> Option<(&'static str, Patch)>,
) -> Result<(), OptimizeError> {
    for id in rewriter.ids() {
        if !rewriter.is_live(id) || rewriter.view().use_count(id) == 0 {
            continue;
        }
        if let Some((rule, patch)) = smaller(&rewriter.view(), id)
            && !rewriter.apply(rule, id, patch)?
        {
            break;
        }
    }
    Ok(())
}

/// The patch for a node some of whose outputs become the outputs of another op, in order.
pub(super) fn replaced(
    view: &View<'_>,
    id: NodeId,
    op: Op,
    operands: &[Value],
    outputs: &[usize],
) -> Option<Patch> {
    let mut patch = view.patch(id);
    let new = patch.emit(op, operands).ok()?;
    for (output, new) in outputs.iter().zip(new) {
        let output = *output as u32;
        patch.replace(Value { node: id, output }, new);
    }
    Some(patch.finish())
}

/// For each output, true if it is read.
pub(super) fn read(view: &View<'_>, id: NodeId) -> Vec<bool> {
    let mut read = vec![false; view.node(id).facts.len()];
    let inputs = view.users(id).iter().flat_map(|u| &view.node(*u).inputs);
    let all = inputs.chain(view.outputs().iter().map(|o| &o.value));
    for v in all.filter(|v| v.node == id) {
        read[v.output as usize] = true;
    }
    read
}

/// Pairs of stacked outputs: one that is read, and an earlier one with the same value.
fn twins(op: &ops::Loop, read: &[bool]) -> Vec<(usize, usize)> {
    let value = |o: usize| op.body.outputs[o].value;
    let stacked = op.carried..read.len();
    let first = |o: usize| (op.carried..o).find(|p| value(*p) == value(o));
    (stacked
        .filter(|o| read[*o])
        .filter_map(|o| Some((first(o)?, o))))
    .collect()
}

/// The outputs that stay, the loop with only these, and the operands that it takes; `None` where everything stays.
fn smaller(op: &ops::Loop, read: &[bool]) -> Option<(Vec<usize>, ops::Loop, Vec<usize>)> {
    let body = &op.body;
    let mut live = read.to_vec();
    if op.conditional {
        live[0] = true;
    }
    let reached = loop {
        let reached = reached(body, &live);
        let mut grown = live.clone();
        for (grown, input) in grown.iter_mut().zip(&body.inputs()[1..]).take(op.carried) {
            *grown |= reached[input.index()];
        }
        if grown == live {
            break reached;
        }
        live = grown;
    };
    let taken = |i: &usize| {
        let input = body.inputs()[i + 1];
        if *i < op.carried {
            live[*i]
        } else {
            reached[input.index()]
        }
    };
    let operands: Vec<usize> = (0..body.inputs().len() - 1).filter(taken).collect();
    let outputs: Vec<usize> = (0..live.len()).filter(|o| live[*o]).collect();
    if operands.len() + 1 == body.inputs().len() && outputs.len() == live.len() {
        return None;
    }
    let count =
        |from: usize, to: usize| operands.iter().filter(|i| (from..to).contains(*i)).count();
    let smaller = ops::Loop {
        trips: op.trips.clone(),
        carried: count(0, op.carried),
        scanned: count(op.carried, op.carried + op.scanned),
        reverse: op.reverse,
        conditional: op.conditional,
        body: Arc::new(part(body, 1, &reached, &operands, &outputs)),
    };
    Some((outputs, smaller, operands))
}

/// The nodes that live outputs need.
pub(super) fn reached(body: &Graph, live: &[bool]) -> Vec<bool> {
    let mut reached = vec![false; body.len()];
    for (o, _) in body.outputs.iter().zip(live).filter(|(_, live)| **live) {
        reached[o.value.node.index()] = true;
    }
    for (id, node) in body.iter().rev() {
        if reached[id.index()] {
            node.inputs
                .iter()
                .for_each(|v| reached[v.node.index()] = true);
        }
    }
    reached
}

/// The body with these inputs (after the first `fixed`, which stay) and outputs.
pub(super) fn part(
    body: &Graph,
    fixed: usize,
    reached: &[bool],
    operands: &[usize],
    outputs: &[usize],
) -> Graph {
    let mut part = Graph::default();
    part.symbols.clone_from(&body.symbols);
    let mut map: Vec<NodeId> = vec![NodeId(u32::MAX); body.len()];
    for (id, node) in body.iter() {
        let mut op = node.op.clone();
        if let Op::Input(input) = &mut op {
            let index = input.index as usize;
            let at = match index.checked_sub(fixed) {
                None => Some(index),
                Some(i) => operands.iter().position(|o| *o == i).map(|at| at + fixed),
            };
            let Some(at) = at else { continue };
            input.index = at as u32;
        } else if !reached[id.index()] {
            continue;
        }
        let moved = |v: &Value| Value {
            node: map[v.node.index()],
            ..*v
        };
        let inputs: SmallVec<[Value; 3]> = node.inputs.iter().map(moved).collect();
        map[id.index()] = part.push(Node {
            op,
            inputs,
            facts: node.facts.clone(),
            loc: node.loc.clone(),
        });
    }
    for o in outputs {
        let v = body.outputs[*o].value;
        part.add_output(Value {
            node: map[v.node.index()],
            ..v
        });
    }
    part
}
