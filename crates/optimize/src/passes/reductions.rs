//! Reductions of reductions:
//!
//! ```text
//! reduce_of_reduce   f(f(x, A), B) = f(x, A ∪ B)    Σ (c · Σ x) = c · ΣΣ x, and the same with / c
//! ```
//!
//! f is a sum, a product or an extreme. Between the two may stand reshapes that add or remove dims of one
//! element and, for a sum, factors that are one number; nothing else reads what lies between. One walk over
//! x is left, in one kernel.
//!
//! Changes rounding: the order of the terms is another one, and in f16 and bf16 the inner result is not
//! rounded.

use crate::{Pass, Patch, PatchBuilder, Rule, Run, View};
use kiln_base::prim::Reduction;
use kiln_ir::ops::{Axes, Full, Reduce};
use kiln_ir::{Builder, Dim, NodeId, Op, OpError, Pw, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "reductions",
    about: "merges reductions of reductions",
    exact: false,
    run: Run::Rules(&[&ReduceOfReduce]),
};

/// f(f(x, A), B) = f(x, A ∪ B).
pub struct ReduceOfReduce;

impl Rule for ReduceOfReduce {
    fn name(&self) -> &'static str {
        "reduce_of_reduce"
    }

    fn apply(&self, view: &View<'_>, id: NodeId) -> Option<Patch> {
        let node = view.node(id);
        let Op::Reduce(outer) = &node.op else {
            return None;
        };
        let (below, factors) = inner(view, node.inputs[0], outer.kind)?;
        let Op::Reduce(inner) = &view.producer(below).op else {
            return None;
        };
        let x = view.producer(below).inputs[0];
        let (middle, whole) = (&view.fact(below).shape, &view.fact(node.inputs[0]).shape);
        let kept: Vec<usize> = (0..view.fact(x).rank())
            .filter(|a| !inner.axes.contains(a))
            .collect();
        let long = |shape: &[Dim]| -> Vec<usize> {
            (0..shape.len()).filter(|a| !shape[*a].is(1)).collect()
        };
        // Dims of more than one element are the same ones, in the same order.
        let (from, to) = (long(middle), long(whole));
        let same = (from.iter().zip(&to)).all(|(m, w)| middle[*m] == whole[*w]);
        if !same || from.len() != to.len() {
            return None;
        }
        let more = from.iter().zip(&to).filter(|(_, w)| outer.axes.contains(w));
        let mut axes: Axes = inner.axes.clone();
        axes.extend(more.map(|(m, _)| kept[*m]));
        axes.sort();
        let mut patch = view.patch(id);
        let new = written(
            &mut patch,
            x,
            outer.kind,
            axes,
            &factors,
            &node.fact().shape,
        );
        Some(patch.replacing(id.value(), new.ok()?))
    }
}

/// The reduction below views of it and, for sums, numbers that it is multiplied with or divided by.
fn inner<'a>(
    view: &View<'a>,
    mut v: Value,
    kind: Reduction,
) -> Option<(Value, Vec<(Pw, &'a Full)>)> {
    let mut factors = Vec::new();
    loop {
        let node = view.producer(v);
        if view.use_count(v.node) != 1 {
            return None;
        }
        match &node.op {
            Op::Reduce(inner) if inner.kind == kind => return Some((v, factors)),
            Op::Reshape(_) => v = node.inputs[0],
            Op::Pointwise(p) if kind == Reduction::Sum => {
                let (x, number) = match p.0 {
                    Pw::Div => (node.inputs[0], view.as_full(node.inputs[1])?),
                    Pw::Mul => match view.as_full(node.inputs[1]) {
                        Some(number) => (node.inputs[0], number),
                        None => (node.inputs[1], view.as_full(node.inputs[0])?),
                    },
                    _ => return None,
                };
                if !number.dtype.is_float() {
                    return None;
                }
                factors.push((p.0, number));
                v = x;
            }
            _ => return None,
        }
    }
}

fn written(
    patch: &mut PatchBuilder<'_>,
    x: Value,
    kind: Reduction,
    axes: Axes,
    factors: &[(Pw, &Full)],
    shape: &[Dim],
) -> Result<Value, OpError> {
    let reduced = patch.op(Reduce { kind, axes }, &[x])?;
    let mut y = patch.reshape(&reduced, shape)?;
    for (op, number) in factors.iter().rev() {
        let number = patch.full(number.value, number.dtype, shape)?;
        y = patch.pointwise(*op, &[y, number])?;
    }
    Ok(y)
}
