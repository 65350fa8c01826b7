//! Pointwise work and extremes, moved before broadcasts:
//!
//! ```text
//! f(broadcast(a), broadcast(b), …) = broadcast(f(a, b, …))
//! max(broadcast(x), the stretched axes) = x, and the same for min
//! ```
//!
//! Each element is computed once instead of once for every position that it is stretched to. Equal computations
//! before and after a broadcast become one, and work that depends on parameters alone can move to *prepare*. Holds
//! for every pointwise row and every cast, for every number. The operands need to be constant along at least one axis
//! of known extent other than 1.

use crate::{Pass, Patch, Run, View, rules};
use kiln_base::prim::Reduction;
use kiln_ir::ops::Full;
use kiln_ir::{Builder, Dim, NodeId, Op, Shape, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "broadcasts",
    about: "computes before values are stretched, not after",
    exact: true,
    run: Run::Rules(rules![pointwise_of_broadcast, extreme_of_broadcast]),
};

/// f(broadcast(a), broadcast(b), …) = broadcast(f(a, b, …)).
fn pointwise_of_broadcast(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    if !matches!(node.op, Op::Pointwise(_) | Op::Cast(_)) {
        return None;
    }
    let shape = &node.fact().shape;
    let sources = (node.inputs.iter()).map(|v| source(view, *v));
    let sources: Vec<Source> = sources.collect::<Option<_>>()?;
    let small = joint_shape_of(view, &sources, shape)?;
    let mut patch = view.patch(id);
    let operands = sources.iter().map(|s| match s {
        Source::Value(v) => patch.broadcast_to(v, &small),
        Source::Number(f) => patch.full(f.value, f.dtype, &small),
    });
    let operands: Vec<Value> = operands.collect::<Result<_, _>>().ok()?;
    let new = patch.op(node.op.clone(), &operands).ok()?;
    let new = patch.broadcast_to(&new, shape).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// The source that is broadcast to an operand.
enum Source<'a> {
    Value(Value),
    Number(&'a Full),
}

fn source<'a>(view: &View<'a>, v: Value) -> Option<Source<'a>> {
    match &view.producer(v).op {
        Op::Broadcast(_) => Some(Source::Value(view.producer(v).inputs[0])),
        _ => view.as_full(v).map(Source::Number),
    }
}

/// Returns the shape that all sources broadcast to, if it is smaller than `shape` and one source is not a number.
fn joint_shape_of(view: &View<'_>, sources: &[Source<'_>], shape: &[Dim]) -> Option<Shape> {
    let mut joint = Shape::from_elem(Dim::ONE, shape.len());
    let mut rank = None;
    for s in sources {
        let Source::Value(v) = s else { continue };
        rank = rank.max(Some(view.fact(*v).rank()));
        let from = &view.fact(*v).shape;
        let extra = shape.len() - from.len();
        for (a, d) in from.iter().enumerate().filter(|(_, d)| !d.is(1)) {
            joint[a + extra] = d.clone();
        }
    }
    let shrinks = joint.iter().zip(shape).any(|(s, d)| s.is(1) && !d.is(1));
    let extra = shape.len() - rank?;
    shrinks.then(|| joint.drain(extra..).collect())
}

/// max(broadcast(x), the stretched axes) = x.
fn extreme_of_broadcast(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Reduce(reduce) = &node.op else {
        return None;
    };
    let below = view.producer(node.inputs[0]);
    if !matches!(reduce.kind, Reduction::Max | Reduction::Min)
        || !matches!(below.op, Op::Broadcast(_))
    {
        return None;
    }
    let x = below.inputs[0];
    let (from, to) = (&view.fact(x).shape, &below.fact().shape);
    let extra = to.len() - from.len();
    // The extreme over an empty axis is the identity, not x.
    let is_broadcast = |a: &usize| (*a < extra || from[a - extra].is(1)) && !to[*a].is(0);
    if !reduce.axes.iter().all(is_broadcast) {
        return None;
    }
    let shape = &node.fact().shape;
    let mut patch = view.patch(id);
    let kept_shape: Shape = (extra..to.len())
        .filter(|a| !reduce.axes.contains(a))
        .map(|a| from[a - extra].clone())
        .collect();
    let new = patch.reshape(&x, &kept_shape).ok()?;
    let new = patch.broadcast_to(&new, shape).ok()?;
    Some(patch.replacing(id.value(), new))
}
