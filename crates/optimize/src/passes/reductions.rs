//! Reductions of reductions:
//!
//! ```text
//! reduce_of_reduce   f(f(x, A), B) = f(x, A ∪ B)    for extremes f, and of integers for sums and products too
//! ```
//!
//! Reshapes that add or remove dims of one element may be between the two; nothing else reads the intermediate
//! values. One walk over x is left, in one kernel.
//!
//! Sums and products of floats stay: in one sum over A ∪ B the terms meet in another order, in which they may cancel
//! later, or exceed the dtype's range sooner, than in sums over A. `mean(mean(x))` of numbers near the largest is
//! finite.
//!
//! Where 0 and −0 are both extremes, the result may be the other one.

use crate::{Pass, Patch, Run, View, rules};
use kiln_base::prim::Reduction;
use kiln_ir::ops::{Axes, Reduce};
use kiln_ir::{Builder, Dim, NodeId, Op, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "reductions",
    about: "merges extremes of extremes, and reductions of integers",
    exact: false,
    run: Run::Rules(rules![reduce_of_reduce]),
};

/// f(f(x, A), B) = f(x, A ∪ B).
fn reduce_of_reduce(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Reduce(outer) = &node.op else {
        return None;
    };
    let in_order = matches!(outer.kind, Reduction::Sum | Reduction::Prod);
    if in_order && node.fact().dtype.is_float() {
        return None;
    }
    let (below, inner) = find_inner(view, node.inputs[0], outer.kind)?;
    let x = view.producer(below).inputs[0];
    let (from, to) = (&view.fact(below).shape, &view.fact(node.inputs[0]).shape);
    let kept: Vec<usize> = (0..view.fact(x).rank())
        .filter(|a| !inner.axes.contains(a))
        .collect();
    let long =
        |shape: &[Dim]| -> Vec<usize> { (0..shape.len()).filter(|a| !shape[*a].is(1)).collect() };
    // Dims of more than one element are equal, in the same order.
    let (from_axes, to_axes) = (long(from), long(to));
    let same = (from_axes.iter().zip(&to_axes)).all(|(m, w)| from[*m] == to[*w]);
    if !same || from_axes.len() != to_axes.len() {
        return None;
    }
    let more = from_axes
        .iter()
        .zip(&to_axes)
        .filter(|(_, w)| outer.axes.contains(w));
    let mut axes: Axes = inner.axes.clone();
    axes.extend(more.map(|(m, _)| kept[*m]));
    axes.sort();
    let mut patch = view.patch(id);
    let kind = outer.kind;
    let new = patch.op(Reduce { kind, axes }, &[x]).ok()?;
    let new = patch.reshape(&new, &node.fact().shape).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// Returns the reduction below reshapes, if nothing else reads any of them.
fn find_inner<'a>(view: &View<'a>, mut v: Value, kind: Reduction) -> Option<(Value, &'a Reduce)> {
    loop {
        let node = view.producer(v);
        if view.use_count(v.node) != 1 {
            return None;
        }
        match &node.op {
            Op::Reduce(inner) if inner.kind == kind => return Some((v, inner)),
            Op::Reshape(_) => v = node.inputs[0],
            _ => return None,
        }
    }
}
