//! Values minus their mean:
//!
//! ```text
//! x − mean(x) = y − mean(y)      where x = y + b, and b is constant along the axes of the mean
//! Σ (y + b) = Σ y + n · b        where nothing else reads the sum y + b
//! Σ z = 0                        where that follows for all z of this form, as for x − mean(x)
//! view(y + b) = view(y) + view(b)    where b lies along one axis and a norm reads the permutation or reshape
//! ```
//!
//! So a bias before a batch norm that uses batch statistics is dropped. The result does not depend on it, the
//! running mean still includes it, and its gradient is exactly zero. The rule for zero sums also saves the pass over
//! the data for the derivative of a variance with respect to its mean.
//!
//! Conditions: f32 or f64 (extents may be symbols). For the first rule, every reader of x either takes the mean of x
//! from it or sums it along the same axes, so x need not be computed.
//!
//! The first two rules need y to be the result of a product and b its bias, a parameter. Where b cancels most of y,
//! y + b has few correct digits anyway, since the product rounds y. Any other y may be exact; the mean of y would
//! then lose digits that y + b keeps. For the same reason no bias moves past a cast to f16 or bf16.
//!
//! Changes rounding: by a few roundings of y and of b. A sum that is zero for all finite data is made exactly
//! zero, and stays zero where the data hold NaN or infinities.

use crate::sums::Sums;
use crate::{Pass, Patch, PatchBuilder, Run, View, rules};
use kiln_base::prim::Reduction;
use kiln_ir::{Builder, Dim, Fact, NodeId, Op, OpError, Pw, Role, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "centring",
    about: "drops what a mean takes away, such as the bias in front of a batch norm",
    exact: false,
    run: Run::Rules(rules![
        bias_behind_view,
        bias_before_norm,
        zero_sum,
        sum_of_shift
    ]),
};

fn operands(view: &View<'_>, id: NodeId, op: Pw) -> Option<[Value; 2]> {
    let (pw, operands) = view.row(id)?;
    (pw == op).then(|| [operands[0], operands[1]])
}

fn summed_axes<'a>(view: &View<'a>, id: NodeId) -> Option<&'a [usize]> {
    match &view.node(id).op {
        Op::Reduce(r) if r.kind == Reduction::Sum => Some(&r.axes),
        _ => None,
    }
}

/// `y` and `b` of `x = y + b`, where b is the bias of the product y and constant along the axes; b is returned before
/// it is stretched.
fn split_bias(view: &View<'_>, sums: &Sums<'_>, x: NodeId) -> Option<(Value, Value)> {
    let [a, b] = operands(view, x, Pw::Add)?;
    [(a, b), (b, a)].into_iter().find_map(|(y, b)| {
        let row = sums.row_of(b)?;
        (is_product(view, y) && is_parameter(view, row)).then_some((y, row))
    })
}

/// True if the value is the result of a matrix product or convolution, perhaps through views.
fn is_product(view: &View<'_>, mut y: Value) -> bool {
    while view.producer(y).op.is_view() {
        y = view.producer(y).inputs[0];
    }
    let op = &view.producer(y).op;
    matches!(op, Op::MatMul(_) | Op::Conv(_) | Op::ConvTranspose(_))
}

/// True if the value is a parameter, perhaps through views and casts, whether or not the graph assigns it.
fn is_parameter(view: &View<'_>, mut b: Value) -> bool {
    loop {
        let node = view.producer(b);
        match &node.op {
            Op::Input(input) => return input.role == Role::Parameter,
            op if op.is_view() || matches!(op, Op::Cast(_)) => b = node.inputs[0],
            _ => return view.is_prepared(b),
        }
    }
}

/// Returns the broadcast mean if a node is `x − mean(x)`.
fn mean_of_centred(view: &View<'_>, sums: &Sums<'_>, id: NodeId, x: Value) -> Option<Value> {
    let [minuend, mean] = operands(view, id, Pw::Sub)?;
    (minuend == x && sums.is_mean(sums.row_of(mean)?, x)).then_some(mean)
}

/// x − mean(x) = y − mean(y), for all readers of x.
fn bias_before_norm(view: &View<'_>, id: NodeId) -> Option<Patch> {
    operands(view, id, Pw::Add)?;
    let users = view.users(id);
    let axes = users.iter().find_map(|u| summed_axes(view, *u))?;
    let x = id.value();
    let sums = Sums::new(*view, x, axes)?;
    let (y, _) = split_bias(view, &sums, id)?;
    let mut centred = Vec::new();
    for &u in users {
        match mean_of_centred(view, &sums, u, x) {
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
    let new = subtract_mean(&mut patch, y, &sums, axes, &view.fact(mean).shape).ok()?;
    for (node, _) in centred {
        patch.replace(node.value(), new);
    }
    Some(patch.finish())
}

/// `y − mean(y)`; the mean has the shape `row` before it is stretched.
fn subtract_mean(
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

/// view(y + b) = view(y) + view(b), for permutations and reshapes. The bias is that of a linear layer or convolution,
/// and a batch norm reads a view of its result.
fn bias_behind_view(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let users = view.users(id);
    let centred = |u: &NodeId| operands(view, *u, Pw::Sub).is_some_and(|[x, _]| x.node == id);
    users.iter().find(|u| summed_axes(view, **u).is_some())?;
    users.iter().find(|u| centred(u))?;
    let mut views = Vec::new();
    let mut x = id;
    while is_view(view, x) {
        views.push(x);
        x = view.node(x).inputs[0].node;
        if view.use_count(x) != 1 {
            return None;
        }
    }
    views.first()?;
    let [a, b] = operands(view, x, Pw::Add)?;
    let ((b, mut axis), mut y) = match (source_along_axis(view, b), source_along_axis(view, a)) {
        (Some(b), _) => (b, a),
        (None, Some(a)) => (a, b),
        (None, None) => return None,
    };
    let mut patch = view.patch(id);
    for v in views.iter().rev() {
        axis = view.result_axis(*v, axis)?;
        y = patch.op(view.node(*v).op.clone(), &[y]).ok()?;
    }
    let shape = &view.node(id).fact().shape;
    let mut column = vec![Dim::ONE; shape.len() - axis];
    column[0] = shape[axis].clone();
    let b = patch.reshape(&b, &column).ok()?;
    let new = patch.pointwise(Pw::Add, &[y, b]).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// True for a permutation or reshape.
fn is_view(view: &View<'_>, id: NodeId) -> bool {
    matches!(view.node(id).op, Op::Permute(_) | Op::Reshape(_))
}

/// True for a cast of floats to floats.
fn is_rounding(view: &View<'_>, id: NodeId) -> bool {
    let node = view.node(id);
    let float = |v: Value| view.fact(v).dtype.is_float();
    matches!(node.op, Op::Cast(_)) && float(id.value()) && float(node.inputs[0])
}

/// Returns the source that is broadcast to a value with one number for each index of an axis, and that axis.
fn source_along_axis(view: &View<'_>, stretched: Value) -> Option<(Value, usize)> {
    let node = view.producer(stretched);
    if !matches!(node.op, Op::Broadcast(_)) {
        return None;
    }
    let (from, shape) = (&view.fact(node.inputs[0]).shape, &node.fact().shape);
    let mut non_unit = (0..from.len()).filter(|a| !from[*a].is(1));
    let axis = match (non_unit.next(), non_unit.next()) {
        (Some(axis), None) => axis,
        (None, _) => from.len().checked_sub(1)?,
        _ => return None,
    };
    let result_axis = axis + shape.len() - from.len();
    (from[axis] == shape[result_axis]).then_some((node.inputs[0], result_axis))
}

/// Σ (y + b) = Σ y + n · b.
fn sum_of_shift(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let axes = summed_axes(view, id)?;
    let x = view.node(id).inputs[0];
    let sums = Sums::new(*view, x, axes)?;
    let (y, b) = split_bias(view, &sums, x.node)?;
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

/// Σ z = 0.
fn zero_sum(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let summed = summed_axes(view, id)?;
    let mut z = view.node(id).inputs[0];
    let mut kept: Vec<usize> = (0..view.fact(z).rank()).collect();
    kept.retain(|a| !summed.contains(a));
    while is_view(view, z.node) || is_rounding(view, z.node) {
        let operand = view.producer(z).inputs[0];
        let axis_below = |k: &usize| {
            let mut axes = 0..view.fact(operand).rank();
            axes.find(|a| view.result_axis(z.node, *a) == Some(*k))
        };
        kept = kept.iter().map(axis_below).collect::<Option<_>>()?;
        z = operand;
    }
    let mut axes: Vec<usize> = (0..view.fact(z).rank()).collect();
    axes.retain(|a| !kept.contains(a));
    let is_pointwise = matches!(view.producer(z).op, Op::Pointwise(_));
    if !is_pointwise || !Sums::new(*view, z, &axes)?.is_zero(z) {
        return None;
    }
    let Fact { dtype, shape } = view.node(id).fact();
    let mut patch = view.patch(id);
    let zero = patch.full(0.0, *dtype, shape).ok()?;
    Some(patch.replacing(id.value(), zero))
}
