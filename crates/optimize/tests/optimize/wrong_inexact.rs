//! Seeded bugs of rules that change rounding, and of those about products, scatters and loops.

use crate::bugs::{flagged, wrong_pass};
use crate::inexact::flaw;
use kiln_base::prim::{Reduction, ScatterKind};
use kiln_ir::ops::{self, Concat, MatMul, Reduce};
use kiln_ir::{Builder, Dim, Node, NodeId, Op, Pw, Value};
use kiln_optimize::{Pass, Patch, Run, View};

fn row<'a>(view: &View<'a>, v: Value, which: Pw) -> Option<&'a [Value]> {
    let node = view.producer(v);
    let is = matches!(&node.op, Op::Pointwise(p) if p.0 == which);
    is.then_some(&node.inputs[..])
}

fn sum_of<'a>(view: &View<'a>, id: NodeId) -> Option<(&'a Reduce, Value)> {
    let node = view.node(id);
    match &node.op {
        Op::Reduce(r) if r.kind == Reduction::Sum => Some((r, node.inputs[0])),
        _ => None,
    }
}

/// The source, `[1, ..]`, that is stretched to a value.
fn stretched(view: &View<'_>, v: Value) -> Option<Value> {
    let node = view.producer(v);
    matches!(node.op, Op::Broadcast(_)).then(|| node.inputs[0])
}

/// Σ (y + b) = Σ y + b.
fn shift_is_not_counted(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (reduce, x) = sum_of(view, id)?;
    let &[y, b] = row(view, x, Pw::Add)? else {
        return None;
    };
    let b = stretched(view, b)?;
    let mut patch = view.patch(id);
    let sum = patch.sum(&y, &reduce.axes).ok()?;
    let b = patch.reshape(&b, &view.node(id).fact().shape).ok()?;
    let new = patch.pointwise(Pw::Add, &[sum, b]).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// Σ (x − row) = 0, for any row.
fn any_difference_sums_to_zero(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (_, z) = sum_of(view, id)?;
    let &[_, mean] = row(view, z, Pw::Sub)? else {
        return None;
    };
    stretched(view, mean)?;
    let fact = view.node(id).fact();
    let mut patch = view.patch(id);
    let zero = patch.full(0.0, fact.dtype, &fact.shape).ok()?;
    Some(patch.replacing(id.value(), zero))
}

/// (y + b) − mean(y + b) = y − mean(y + b).
fn mean_keeps_the_bias(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let &[x, mean] = row(view, id.value(), Pw::Sub)? else {
        return None;
    };
    let &[y, b] = row(view, x, Pw::Add)? else {
        return None;
    };
    let (_, _) = (stretched(view, mean)?, stretched(view, b)?);
    view.replace_with(id, ops::Pointwise(Pw::Sub), &[y, mean])
}

/// Products of one value with two others become parts of one product, and each takes the other's part.
fn parts_change_places(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let matmul = |n: &Node| matches!(n.op, Op::MatMul(_));
    let x = *node.inputs.first()?;
    let users = view.users(x.node).iter().copied();
    let other = users.filter(|u| *u != id).map(|u| view.node(u));
    let other = other.into_iter().find(|n| matmul(n) && n.inputs[0] == x)?;
    if !matmul(node) || other.fact() != node.fact() {
        return None;
    }
    let axis = node.fact().rank() - 1;
    let mut patch = view.patch(id);
    let weights = [node.inputs[1], other.inputs[1]];
    let weight = patch.op(Concat { axis }, &weights).ok()?;
    let both = patch.op(MatMul {}, &[x, weight]).ok()?;
    let n = node.fact().shape[axis].clone();
    let second = patch.narrow(&both, axis, n.clone(), n).ok()?;
    Some(patch.replacing(id.value(), second))
}

/// (x · c) · y = ((x · c) · y) · c.
fn factor_is_taken_twice(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let &[x, y] = &node.inputs[..] else {
        return None;
    };
    let &[_, c] = row(view, x, Pw::Mul)? else {
        return None;
    };
    let c = view.as_full(stretched(view, c).unwrap_or(c))?.value;
    let is_product = matches!(node.op, Op::MatMul(_));
    let mut patch = view.patch(id);
    let new = patch.op(MatMul {}, &[x, y]).ok().filter(|_| is_product)?;
    let new = patch.with(Pw::Mul, &new, c).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// f(g(x, A), B) = f(x, A ∪ B), for any f and g.
fn kinds_are_mixed(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Reduce(outer) = &node.op else {
        return None;
    };
    let below = view.producer(node.inputs[0]);
    let Op::Reduce(inner) = &below.op else {
        return None;
    };
    let x = below.inputs[0];
    let mut kept = (0..view.fact(x).rank()).collect::<Vec<_>>();
    kept.retain(|a| !inner.axes.contains(a));
    let more = outer.axes.iter().map(|a| kept[*a]);
    let mut axes: ops::Axes = inner.axes.iter().copied().chain(more).collect();
    axes.sort();
    let kind = outer.kind;
    view.replace_with(id, Reduce { kind, axes }, &[x])
}

/// Σ (Σ x / c) = ΣΣ x.
fn factor_between_sums_is_lost(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (outer, y) = sum_of(view, id)?;
    let &[sum, c] = row(view, y, Pw::Div)? else {
        return None;
    };
    sum_of(view, sum.node)?;
    view.as_full(stretched(view, c).unwrap_or(c))?;
    view.replace_with(id, outer.clone(), &[sum])
}

#[test]
fn wrong_inexact_rules_are_flagged() {
    for pass in [
        wrong_pass!(shift_is_not_counted),
        wrong_pass!(any_difference_sums_to_zero),
        wrong_pass!(mean_keeps_the_bias),
        wrong_pass!(parts_change_places),
        wrong_pass!(factor_is_taken_twice),
        wrong_pass!(kinds_are_mixed),
        wrong_pass!(factor_between_sums_is_lost),
    ] {
        let found = (0..1000).find(|seed| flaw(*seed, &[pass]).is_err());
        println!("{}: seed {found:?}", pass.name);
        assert!(found.is_some(), "{} is not flagged", pass.name);
    }
    let right = (0..200).all(|seed| flaw(seed, &[]).is_ok());
    assert!(right, "without passes nothing differs");
}

/// permute(a · b) = reshape(a · b).
fn turned_is_reshaped(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let below = view.producer(*node.inputs.first()?);
    let (Op::Permute(_), Op::MatMul(_)) = (&node.op, &below.op) else {
        return None;
    };
    let shape = node.fact().shape.clone();
    view.replace_with(id, ops::Reshape { shape }, &node.inputs)
}

/// c − reshape(a · b) = reshape(a · b − c).
fn order_is_lost_under_a_reshape(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let &[c, y] = row(view, id.value(), Pw::Sub)? else {
        return None;
    };
    let c = stretched(view, c)?;
    let reshape = view.producer(y);
    if !matches!(reshape.op, Op::Reshape(_)) {
        return None;
    }
    let mut patch = view.patch(id);
    let sub = patch.pointwise(Pw::Sub, &[reshape.inputs[0], c]).ok()?;
    let new = patch.op(reshape.op.clone(), &[sub]).ok()?;
    (patch.fact(&new) == *view.node(id).fact()).then(|| patch.replacing(id.value(), new))
}

/// scatter(x, i, src) for x other than zeros, or several indices a row, becomes src where i is the index.
fn scatter_of_any(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Scatter(op) = &node.op else {
        return None;
    };
    let [x, index, src] = node.inputs[..] else {
        return None;
    };
    let fact = view.fact(x);
    let sum = op.kind == ScatterKind::Sum && view.fact(index).shape[op.axis].is(1);
    if !sum || op.axis + 1 != fact.rank() {
        return None;
    }
    let mut patch = view.patch(id);
    let len = fact.shape[op.axis].clone();
    let place = patch.op(ops::Iota { len }, &[]).ok()?;
    let hit = patch.pointwise(Pw::Eq, &[place, index]).ok()?;
    let new = patch.pointwise(Pw::Select, &[hit, src, x]).ok()?;
    (patch.fact(&new) == *fact).then(|| patch.replacing(id.value(), new))
}

fn loop_of<'a>(view: &View<'a>, id: NodeId) -> Option<&'a ops::Loop> {
    match &view.node(id).op {
        Op::Loop(op) => Some(op),
        _ => None,
    }
}

/// Readers of the last output of a loop read the first one instead.
fn loop_values_move_up(view: &View<'_>, id: NodeId) -> Option<Patch> {
    loop_of(view, id)?;
    let node = view.node(id);
    let (first, last) = (node.facts.first()?, node.facts.last()?);
    let (node, output) = (id, view.node(id).facts.len() as u32 - 1);
    if output == 0 || first != last {
        return None;
    }
    let old = Value { node, output };
    let new = Value { node, output: 0 };
    Some(view.patch(id).replacing(old, new))
}

/// A carried value of a loop is treated as one that every step gets alike.
fn carried_never_changes(view: &View<'_>, id: NodeId) -> Option<Patch> {
    loop_of(view, id)?;
    let node = view.node(id);
    let (new, old) = (
        *node.inputs.first()?,
        Value {
            node: id,
            output: 0,
        },
    );
    (view.fact(new) == view.fact(old)).then(|| view.patch(id).replacing(old, new))
}

/// A smaller loop has a step less.
fn a_smaller_loop_misses_a_step(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let op = loop_of(view, id).filter(|op| op.trips.is(2))?;
    let op = ops::Loop {
        trips: Dim::ONE,
        ..op.clone()
    };
    let mut patch = view.patch(id);
    let new = patch.emit(op.into(), &view.node(id).inputs).ok()?;
    for (output, new) in new.into_iter().enumerate() {
        let output = output as u32;
        patch.replace(Value { node: id, output }, new);
    }
    Some(patch.finish())
}

#[test]
fn wrong_rules_about_products_scatters_and_loops_are_flagged() {
    flagged(&[
        wrong_pass!(turned_is_reshaped),
        wrong_pass!(order_is_lost_under_a_reshape),
        wrong_pass!(scatter_of_any),
        wrong_pass!(loop_values_move_up),
        wrong_pass!(carried_never_changes),
        wrong_pass!(a_smaller_loop_misses_a_step),
    ]);
}
