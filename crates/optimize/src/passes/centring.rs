//! Values from which their mean is taken:
//!
//! ```text
//! x − mean(x) = y − mean(y)      where x = y + b, and b is constant along the axes of the mean
//! Σ (y + b) = Σ y + n · b        where nothing else reads the sum y + b
//! Σ z = 0                        where that follows for all z of this form, as for x − mean(x)
//! permute(y + b) = permute(y) + permute(b)    where b is along the last axis and a sum reads this
//! ```
//!
//! So a bias in front of a batch norm that uses batch statistics is dropped: the result does not depend
//! on it, the running mean still includes it, and its gradient is exactly zero. The last rule also
//! saves the pass over the data that the derivative of a variance with respect to its mean would cost.
//!
//! What must hold: f32 or f64 (extents may be symbols); for the first rule every reader of x
//! either takes the mean of x from it or sums it along the same axes, so that x need not be computed
//! at all.
//!
//! Changes rounding: the first two rules add b after the reduction instead of before it, which loses
//! no more than the n additions of b lost; a sum that is zero for all finite data is made exactly zero,
//! and stays zero where the data hold NaN or infinities.

use super::products::row;
use crate::sums::Sums;
use crate::{Pass, Patch, PatchBuilder, Rule, Run, View};
use kiln_base::prim::Reduction;
use kiln_ir::{Builder, Dim, Fact, NodeId, Op, OpError, Pw, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "centring",
    about: "drops what a mean takes away, such as the bias in front of a batch norm",
    exact: false,
    run: Run::Rules(&[&BiasBehindPermute, &BiasBeforeNorm, &ZeroSum, &SumOfShift]),
};

fn operands(view: &View<'_>, id: NodeId, which: Pw) -> Option<[Value; 2]> {
    let node = view.node(id);
    let is = matches!(&node.op, Op::Pointwise(p) if p.0 == which);
    is.then(|| [node.inputs[0], node.inputs[1]])
}

fn summed_axes<'a>(view: &View<'a>, id: NodeId) -> Option<&'a [usize]> {
    match &view.node(id).op {
        Op::Reduce(r) if r.kind == Reduction::Sum => Some(&r.axes),
        _ => None,
    }
}

/// `y` and `b` of `x = y + b`, where b is constant along the axes; b before it is stretched.
fn shifted(view: &View<'_>, sums: &Sums<'_>, x: NodeId) -> Option<(Value, Value)> {
    let [y, b] = operands(view, x, Pw::Add)?;
    match (sums.row_of(b), sums.row_of(y)) {
        (Some(row), _) => Some((y, row)),
        (None, Some(row)) => Some((b, row)),
        (None, None) => None,
    }
}

/// The stretched mean of a node that is `x − mean(x)`.
fn centre(view: &View<'_>, sums: &Sums<'_>, id: NodeId, x: Value) -> Option<Value> {
    let [from, mean] = operands(view, id, Pw::Sub)?;
    (from == x && sums.is_mean(sums.row_of(mean)?, x)).then_some(mean)
}

/// x − mean(x) = y − mean(y), for all that read x.
pub struct BiasBeforeNorm;

impl Rule for BiasBeforeNorm {
    fn name(&self) -> &'static str {
        "bias_before_norm"
    }

    fn apply(&self, view: &View<'_>, id: NodeId) -> Option<Patch> {
        operands(view, id, Pw::Add)?;
        let users = view.users(id);
        let axes = users.iter().find_map(|u| summed_axes(view, *u))?;
        let x = id.value();
        let sums = Sums::new(*view, x, axes)?;
        let (y, _) = shifted(view, &sums, id)?;
        let mut centred = Vec::new();
        for &u in users {
            match centre(view, &sums, u, x) {
                Some(mean) => centred.push((u, mean)),
                None if summed_axes(view, u) == Some(axes) => {}
                None => return None,
            }
        }
        let mean = view.producer(centred.first()?.1).inputs[0];
        if view.is_output(id) {
            return None;
        }
        let mut patch = view.patch(centred[0].0);
        let new = centre_of(&mut patch, y, &sums, axes, &view.fact(mean).shape).ok()?;
        for (node, _) in centred {
            patch.replace(node.value(), new);
        }
        Some(patch.finish())
    }
}

/// `y − mean(y)`; the mean has the shape `row` before it is stretched.
fn centre_of(
    b: &mut PatchBuilder<'_>,
    y: Value,
    sums: &Sums<'_>,
    axes: &[usize],
    row: &[Dim],
) -> Result<Value, OpError> {
    let Fact { dtype, shape } = b.fact(&y);
    let sum = b.sum(&y, axes)?;
    let sum = b.reshape(&sum, row)?;
    let count = sums.count(b, dtype)?;
    let mean = b.pointwise(Pw::Div, &[sum, count])?;
    let mean = b.broadcast_to(&mean, &shape)?;
    b.pointwise(Pw::Sub, &[y, mean])
}

/// permute(y + b) = permute(y) + permute(b), also with a reshape of the sum that keeps its last axis: the
/// bias of a linear layer whose result a batch norm reads with channels in front.
pub struct BiasBehindPermute;

impl Rule for BiasBehindPermute {
    fn name(&self) -> &'static str {
        "bias_behind_permute"
    }

    fn apply(&self, view: &View<'_>, id: NodeId) -> Option<Patch> {
        let Op::Permute(permute) = &view.node(id).op else {
            return None;
        };
        let mut users = view.users(id).iter();
        users.find(|u| summed_axes(view, **u).is_some())?;
        let whole = view.node(id).inputs[0];
        let x = match view.producer(whole).op {
            Op::Reshape(_) => view.producer(whole).inputs[0],
            _ => whole,
        };
        let alone = [whole, x].iter().all(|v| view.use_count(v.node) == 1);
        let (from, to) = (&view.fact(x).shape, &view.fact(whole).shape);
        let last = to.len().checked_sub(1)?;
        let at = permute.perm.iter().position(|a| *a == last)?;
        if !alone || from.last() != to.last() || at == last {
            return None;
        }
        let (y, b) = match operands(view, x.node, Pw::Add)? {
            [y, b] if row(view, b).is_some() => (y, row(view, b)?),
            [b, y] => (y, row(view, b)?),
        };
        let mut column = vec![Dim::ONE; to.len() - at];
        column[0] = to[last].clone();
        let mut patch = view.patch(id);
        let y = patch.reshape(&y, to).ok()?;
        let y = patch.permute(&y, &permute.perm).ok()?;
        let b = patch.reshape(&b, &column).ok()?;
        let new = patch.pointwise(Pw::Add, &[y, b]).ok()?;
        Some(patch.replacing(id.value(), new))
    }
}

/// Σ (y + b) = Σ y + n · b.
pub struct SumOfShift;

impl Rule for SumOfShift {
    fn name(&self) -> &'static str {
        "sum_of_shift"
    }

    fn apply(&self, view: &View<'_>, id: NodeId) -> Option<Patch> {
        let axes = summed_axes(view, id)?;
        let x = view.node(id).inputs[0];
        let sums = Sums::new(*view, x, axes)?;
        let (y, b) = shifted(view, &sums, x.node)?;
        if view.use_count(x.node) != 1 {
            return None;
        }
        let mut patch = view.patch(id);
        let sum = patch.sum(&y, axes).ok()?;
        let b = patch.reshape(&b, &view.node(id).fact().shape).ok()?;
        let count = sums.count(&mut patch, view.fact(x).dtype).ok()?;
        let b = patch.pointwise(Pw::Mul, &[b, count]).ok()?;
        let new = patch.pointwise(Pw::Add, &[sum, b]).ok()?;
        Some(patch.replacing(id.value(), new))
    }
}

/// Σ z = 0.
pub struct ZeroSum;

impl Rule for ZeroSum {
    fn name(&self) -> &'static str {
        "zero_sum"
    }

    fn apply(&self, view: &View<'_>, id: NodeId) -> Option<Patch> {
        let mut axes = summed_axes(view, id)?.to_vec();
        let mut z = view.node(id).inputs[0];
        if let Op::Permute(p) = &view.producer(z).op {
            axes.iter_mut().for_each(|a| *a = p.perm[*a]);
            z = view.producer(z).inputs[0];
        }
        let computed = matches!(view.producer(z).op, Op::Pointwise(_));
        if !computed || !Sums::new(*view, z, &axes)?.is_zero(z) {
            return None;
        }
        let Fact { dtype, shape } = view.node(id).fact();
        let mut patch = view.patch(id);
        let zero = patch.full(0.0, *dtype, shape).ok()?;
        Some(patch.replacing(id.value(), zero))
    }
}
