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
        let twins = twins(op, &read_outputs(view, id));
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
        let (outputs, smaller, inputs) = without_unread(op, &read_outputs(view, id))?;
        let operands: Vec<Value> = inputs.iter().map(|i| view.node(id).inputs[*i]).collect();
        let patch = replace_outputs(view, id, smaller.into(), &operands, &outputs)?;
        Some(("unread_loop_value", patch))
    })
}

/// Applies the result of `without_unread`, the name of a rule and its patch, at each node that something reads.
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

/// Returns the patch that replaces some outputs of a node by the outputs of another op, in order.
pub(super) fn replace_outputs(
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
pub(super) fn read_outputs(view: &View<'_>, id: NodeId) -> Vec<bool> {
    let mut read = vec![false; view.node(id).facts.len()];
    let inputs = view.users(id).iter().flat_map(|u| &view.node(*u).inputs);
    let values = inputs.chain(view.outputs().iter().map(|o| &o.value));
    for v in values.filter(|v| v.node == id) {
        read[v.output as usize] = true;
    }
    read
}

/// Pairs of stacked outputs: one that is read, and an earlier one with the same value.
fn twins(op: &ops::Loop, read: &[bool]) -> Vec<(usize, usize)> {
    let value = |o: usize| op.body.outputs[o].value;
    let stacked = op.carried..read.len();
    let first_with_value = |o: usize| (op.carried..o).find(|p| value(*p) == value(o));
    (stacked
        .filter(|o| read[*o])
        .filter_map(|o| Some((first_with_value(o)?, o))))
    .collect()
}

/// Returns the outputs that stay, the loop with only these, and its operands; `None` if everything stays.
fn without_unread(op: &ops::Loop, read: &[bool]) -> Option<(Vec<usize>, ops::Loop, Vec<usize>)> {
    let body = &op.body;
    let mut live = read.to_vec();
    if op.conditional {
        live[0] = true;
    }
    let reached = loop {
        let reached = reached(body, &live);
        let mut next = live.clone();
        for (next, input) in next.iter_mut().zip(&body.inputs()[1..]).take(op.carried) {
            *next |= reached[input.index()];
        }
        if next == live {
            break reached;
        }
        live = next;
    };
    let is_needed = |i: &usize| {
        let input = body.inputs()[i + 1];
        if *i < op.carried {
            live[*i]
        } else {
            reached[input.index()]
        }
    };
    let operands: Vec<usize> = (0..body.inputs().len() - 1).filter(is_needed).collect();
    let outputs: Vec<usize> = (0..live.len()).filter(|o| live[*o]).collect();
    if operands.len() + 1 == body.inputs().len() && outputs.len() == live.len() {
        return None;
    }
    let count =
        |from: usize, to: usize| operands.iter().filter(|i| (from..to).contains(*i)).count();
    let shrunk = ops::Loop {
        trips: op.trips.clone(),
        carried: count(0, op.carried),
        scanned: count(op.carried, op.carried + op.scanned),
        reverse: op.reverse,
        conditional: op.conditional,
        body: Arc::new(prune(body, 1, &reached, &operands, &outputs)),
    };
    Some((outputs, shrunk, operands))
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

/// Returns the body with only these inputs and outputs. The first `fixed` inputs stay.
pub(super) fn prune(
    body: &Graph,
    fixed: usize,
    reached: &[bool],
    operands: &[usize],
    outputs: &[usize],
) -> Graph {
    let mut extracted = Graph::default();
    extracted.symbols.clone_from(&body.symbols);
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
        let mapped = |v: &Value| Value {
            node: map[v.node.index()],
            ..*v
        };
        let inputs: SmallVec<[Value; 3]> = node.inputs.iter().map(mapped).collect();
        map[id.index()] = extracted.push(Node {
            op,
            inputs,
            facts: node.facts.clone(),
            loc: node.loc.clone(),
        });
    }
    for o in outputs {
        let v = body.outputs[*o].value;
        extracted.add_output(Value {
            node: map[v.node.index()],
            ..v
        });
    }
    extracted
}
