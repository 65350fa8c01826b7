//! Views and casts that do nothing, or that merge with the one below them:
//!
//! ```text
//! cast(x, dtype of x) = x                     reshape(x, shape of x) = x
//! reshape(reshape(x, _), s) = reshape(x, s)   broadcast(x, shape of x) = x
//! broadcast(broadcast(x, _), s) = broadcast(x, s)
//! permute(x, identity) = x                    permute(permute(x, p), q)[i] = permute(x, p[q[i]])
//! slice(x, everything) = x                    pad(x, no elements) = x  concat(x) = x
//! barrier(x) = x
//! ```
//!
//! They move no element and round nothing, so they hold for every dtype and every number. Pairs of
//! casts stay, because most round or wrap. The lower view stays where others read it.

use crate::{Pass, Patch, Run, View, rules};
use kiln_ir::ops::{Axes, Permute, SliceAxis};
use kiln_ir::{NodeId, Op};

/// The pass.
pub const PASS: Pass = Pass {
    name: "views",
    about: "removes views and casts that do nothing and merges adjacent ones",
    exact: true,
    run: Run::Rules(rules![
        identity_view,
        reshape_of_reshape,
        broadcast_of_broadcast,
        permute_of_permute
    ]),
};

/// A cast, view, pad, concatenation or barrier whose result is its operand.
fn identity_view(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let x = *node.inputs.first()?;
    let same = match &node.op {
        Op::Cast(_) | Op::Reshape(_) | Op::Broadcast(_) => view.fact(x) == node.fact(),
        Op::Permute(p) => p.perm.iter().enumerate().all(|(i, a)| i == *a),
        Op::Slice(s) => {
            let extents = &view.fact(x).shape;
            (s.axes.iter().zip(extents)).all(|(a, extent)| takes_all(a, extent))
        }
        Op::Pad(p) => p.low.iter().chain(&p.high).all(|d| d.is(0)),
        Op::Concat(_) | Op::Barrier(_) => node.inputs.len() == 1,
        _ => false,
    };
    if same { view.replace(id, x) } else { None }
}

/// True if a slice takes all of an axis. The step of a single element has no meaning.
fn takes_all(axis: &SliceAxis, extent: &kiln_ir::Dim) -> bool {
    axis.start.is(0) && axis.len == *extent && (axis.step == 1 || extent.is(1))
}

/// reshape(reshape(x, _), s) = reshape(x, s).
fn reshape_of_reshape(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Reshape(outer) = &node.op else {
        return None;
    };
    let below = view.producer(node.inputs[0]);
    match below.op {
        Op::Reshape(_) => view.replace_with(id, outer.clone(), &below.inputs),
        _ => None,
    }
}

/// broadcast(broadcast(x, _), s) = broadcast(x, s): both align at the last dim.
fn broadcast_of_broadcast(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Broadcast(outer) = &node.op else {
        return None;
    };
    let below = view.producer(node.inputs[0]);
    match below.op {
        Op::Broadcast(_) => view.replace_with(id, outer.clone(), &below.inputs),
        _ => None,
    }
}

/// permute(permute(x, p), q): dim i is dim `q[i]` of the inner one, which is dim `p[q[i]]` of x.
fn permute_of_permute(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Permute(outer) = &node.op else {
        return None;
    };
    let below = view.producer(node.inputs[0]);
    let Op::Permute(inner) = &below.op else {
        return None;
    };
    let perm: Axes = outer.perm.iter().map(|a| inner.perm[*a]).collect();
    view.replace_with(id, Permute { perm }, &below.inputs)
}
