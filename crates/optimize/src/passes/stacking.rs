//! Results that are concatenated, as are the gradients of the parts of one weight:
//!
//! ```text
//! pads_side_by_side   pad(a) + pad(b) + … = pad(concat(a, b, …))             zeros around neighbours
//! stacked_products    concat(a · x, b · x, …) = concat(a, b, …) · x          and x · a, x · b, …
//! stacked_sums        concat(Σ a, Σ b, …) = Σ concat(a, b, …)                over all axes but the last
//! ```
//!
//! One product and one sum replace several. The reader of the whole becomes part of its kernel: the update
//! of the projections of query, key and value, whose weights are parts of one. Concatenating operands copies them. So
//! products stay where the operands are much larger than the results, and where something else reads a result.
//!
//! Each element keeps its terms. Rounding changes with the order in which a larger product sums. A −0 in a part
//! stays, where adding zeros turned it into 0.

use crate::{Pass, Patch, PatchBuilder, Run, View, rules};
use kiln_base::prim::Reduction;
use kiln_ir::ops::{Concat, MatMul, Pad, Permute};
use kiln_ir::{Builder, Dim, Node, NodeId, Op, Pw, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "stacking",
    about: "merges products and sums whose results are put side by side",
    exact: false,
    run: Run::Rules(rules![pads_side_by_side, stacked_products, stacked_sums]),
};

/// The maximum number of parts of one value.
const MAX_PARTS: usize = 32;
/// The maximum ratio of the number of elements of the products' operands to that of their results.
const MAX_RATIO: i64 = 2;

/// pad(a) + pad(b) + … = pad(concat(a, b, …)).
fn pads_side_by_side(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let mut pads = Vec::new();
    let mut budget = 2 * (MAX_PARTS - 1);
    if !is_sum(view.node(id)) || !collect_pads(view, id, &mut budget, &mut pads) {
        return None;
    }
    let [(first_pad, _), (second_pad, _), ..] = pads[..] else {
        return None;
    };
    let axis = (0..first_pad.low.len()).find(|a| first_pad.low[*a] != second_pad.low[*a])?;
    if pads.iter().any(|(p, _)| p.low[axis].as_const().is_none()) {
        return None;
    }
    pads.sort_by_key(|(p, _)| p.low[axis].as_const());
    let is_contiguous = pads.windows(2).all(|pair| {
        let [(a, x), (b, _)] = [pair[0], pair[1]];
        let end = &a.low[axis] + &view.fact(x).shape[axis];
        let is_same_padding = |i| i == axis || (&a.low[i], &a.high[i]) == (&b.low[i], &b.high[i]);
        b.low[axis] == end && (0..a.low.len()).all(is_same_padding)
    });
    if !is_contiguous {
        return None;
    }
    let mut pad = pads[0].0.clone();
    pad.high[axis] = pads.last()?.0.high[axis].clone();
    let operands: Vec<Value> = pads.iter().map(|(_, x)| *x).collect();
    let mut patch = view.patch(id);
    let stacked = patch.op(Concat { axis }, &operands).ok()?;
    let new = patch.op(pad, &[stacked]).ok()?;
    Some(patch.replacing(id.value(), new))
}

fn is_sum(node: &Node) -> bool {
    matches!(&node.op, Op::Pointwise(p) if p.0 == Pw::Add) && node.fact().dtype.is_float()
}

/// Collects the pads with zeros, and their operands, that are the terms of a sum. True if the sum has no other terms
/// and nothing else reads the pads. Visits at most `budget` operands, however long a chain of sums is.
fn collect_pads<'a>(
    view: &View<'a>,
    sum: NodeId,
    budget: &mut usize,
    pads: &mut Vec<(&'a Pad, Value)>,
) -> bool {
    view.node(sum).inputs.iter().all(|v| {
        let node = view.producer(*v);
        if view.use_count(v.node) != 1 || *budget == 0 {
            return false;
        }
        *budget -= 1;
        match &node.op {
            Op::Pad(pad) if pad.value.as_f64() == 0.0 => {
                pads.push((pad, node.inputs[0]));
                true
            }
            _ => is_sum(node) && collect_pads(view, v.node, budget, pads),
        }
    })
}

/// Returns the axis of a concatenation and the ops of its operands, if all are of one kind and nothing else reads them.
fn concatenated_operands<'a>(
    view: &View<'a>,
    id: NodeId,
    is_kind: impl Fn(&Node) -> bool,
) -> Option<(usize, Vec<&'a Node>)> {
    let node = view.node(id);
    let Op::Concat(Concat { axis }) = node.op else {
        return None;
    };
    let nodes = node.inputs.iter().map(|v| {
        let producer = view.producer(*v);
        (view.use_count(v.node) == 1 && is_kind(producer)).then_some(producer)
    });
    Some((axis, nodes.collect::<Option<_>>()?))
}

/// concat(a · x, b · x, …) = concat(a, b, …) · x.
fn stacked_products(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (axis, nodes) = concatenated_operands(view, id, |n| matches!(n.op, Op::MatMul(_)))?;
    let result = view.node(id).fact();
    // Rows belong to the left operand, columns to the right one.
    let side = (axis + 2).checked_sub(result.rank())?;
    let shared = nodes[0].inputs[1 - side];
    if nodes.iter().any(|n| n.inputs[1 - side] != shared) {
        return None;
    }
    let terms: Vec<Value> = nodes.iter().map(|n| n.inputs[side]).collect();
    let elements = terms.iter().map(|v| view.fact(*v).numel().as_const());
    let elements: i64 = elements.sum::<Option<i64>>()?;
    if elements > MAX_RATIO * result.numel().as_const()? {
        return None;
    }
    let mut patch = view.patch(id);
    let mut operands = [shared; 2];
    operands[side] = concat_before_permute(view, &mut patch, &terms, axis)?;
    let new = patch.op(MatMul {}, &operands).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// Concatenates operands, before a permutation that all of them share.
fn concat_before_permute(
    view: &View<'_>,
    patch: &mut PatchBuilder<'_>,
    operands: &[Value],
    axis: usize,
) -> Option<Value> {
    let nodes: Vec<&Node> = operands.iter().map(|v| view.producer(*v)).collect();
    match &nodes[0].op {
        Op::Permute(Permute { perm }) if nodes.iter().all(|n| n.op == nodes[0].op) => {
            let permuted: Vec<Value> = nodes.iter().map(|n| n.inputs[0]).collect();
            let axis = perm[axis];
            let concatenated = patch.op(Concat { axis }, &permuted).ok()?;
            patch.permute(&concatenated, perm).ok()
        }
        _ => patch.op(Concat { axis }, operands).ok(),
    }
}

/// concat(Σ a, Σ b, …) = Σ concat(a, b, …), over all axes but the last.
fn stacked_sums(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (_, nodes) = concatenated_operands(view, id, |n| {
        let Op::Reduce(r) = &n.op else { return false };
        let rank = view.fact(n.inputs[0]).rank();
        r.kind == Reduction::Sum && n.fact().dtype.is_float() && r.axes[..] == leading(rank)
    })?;
    if view.node(id).fact().rank() != 1 {
        return None;
    }
    let mut patch = view.patch(id);
    let mut rows_of = Vec::new();
    for x in nodes.iter().map(|n| n.inputs[0]) {
        let (n, rows) = view.fact(x).shape.split_last()?;
        let shape = [kiln_base::numel(rows), n.clone()];
        rows_of.push(patch.reshape(&x, &shape).ok()?);
    }
    // Only parts with the same number of rows can be concatenated.
    let rows: &Dim = &patch.fact(&rows_of[0]).shape[0].clone();
    if rows_of.iter().any(|v| patch.fact(v).shape[0] != *rows) {
        return None;
    }
    let concatenated = patch.op(Concat { axis: 1 }, &rows_of).ok()?;
    let new = patch.sum(&concatenated, &[0]).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// All axes but the last.
fn leading(rank: usize) -> Vec<usize> {
    (0..rank.saturating_sub(1)).collect()
}
