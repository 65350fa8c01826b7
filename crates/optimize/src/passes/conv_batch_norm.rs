//! Convolution + batch norm, for inference:
//!
//! ```text
//! batch_norm(conv(x, w) + bias, mean, var, weight, shift) = conv(x, w · s) + ((bias − mean) · s + shift)
//! where s = weight / √(var + eps), one number an output channel
//! ```
//!
//! The bias may be missing, and so may weight and shift. Holds for any number of groups and spatial
//! axes, since axis 0 of w is the output channel in all of them.
//!
//! What must hold: w, bias and the statistics depend on parameters and constants only, so that the new
//! weight lands in *prepare* (training, where the statistics come from x, is left alone); nothing else
//! reads the convolution or the sum; eps is positive and finite, so that s is finite whatever
//! non-negative variance it gets; the dtype is f32 or f64, since f16 and bf16 would round the new
//! weight where the batch norm computes in f32.
//!
//! Changes rounding. With unit roundoff u and K products a sum, the old and the new result differ by at
//! most `(2K + 13) · u · (Σ|x·w|·|s| + (|bias| + |mean|)·|s| + |shift|)` to first order: the old one has
//! K + 7 roundings on a path, the new one K + 6. The bound is for finite parameters and w · s within
//! range: an infinite weight or w that made infinities of finite data may make NaN. Infinities and NaN
//! in x come out as before.
//!
//! Saves a pass over the result; constant cost a match.

use crate::{Pass, Patch, PatchBuilder, Rule, Run, View};
use kiln_ir::ops::BatchNorm;
use kiln_ir::{Builder, DType, Dim, Fact, NodeId, Op, OpError, Pw, Shape, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "conv_batch_norm",
    about: "folds the batch norm behind a convolution into its weight",
    exact: false,
    run: Run::Rules(&[&ConvBatchNorm]),
};

/// batch_norm(conv(x, w) + bias, …) = conv(x, w · s) + ….
pub struct ConvBatchNorm;

impl Rule for ConvBatchNorm {
    fn name(&self) -> &'static str {
        "conv_batch_norm"
    }

    fn apply(&self, view: &View<'_>, id: NodeId) -> Option<Patch> {
        let node = view.node(id);
        let Op::BatchNorm(norm) = &node.op else {
            return None;
        };
        let eps = norm.eps.as_f64();
        let legal = matches!(node.fact().dtype, DType::F32 | DType::F64)
            && eps > 0.0
            && eps.is_finite()
            && node.inputs[1..].iter().all(|v| view.is_prepared(*v));
        if !legal {
            return None;
        }
        let (conv, bias) = conv_and_bias(view, node.inputs[0])?;
        let mut patch = view.patch(id);
        let y = fold(&mut patch, view, norm, &node.inputs[1..], conv, bias).ok()?;
        Some(patch.replacing(id.value(), y))
    }
}

/// The convolution behind a value and the bias that is added to it, unless something else reads them.
fn conv_and_bias(view: &View<'_>, v: Value) -> Option<(Value, Option<Value>)> {
    if view.use_count(v.node) != 1 {
        return None;
    }
    let is_conv = |v: Value| {
        let node = view.producer(v);
        matches!(node.op, Op::Conv(_))
            && view.use_count(v.node) == 1
            && view.is_prepared(node.inputs[1])
    };
    if is_conv(v) {
        return Some((v, None));
    }
    let sum = view.producer(v);
    if !matches!(&sum.op, Op::Pointwise(p) if p.0 == Pw::Add) {
        return None;
    }
    let (a, b) = (sum.inputs[0], sum.inputs[1]);
    let (conv, bias) = if is_conv(a) { (a, b) } else { (b, a) };
    let bias = channel_operand(view, bias)?;
    is_conv(conv).then_some((conv, Some(bias)))
}

/// The value with one number a channel that is stretched to `[n, c, spatial..]`.
fn channel_operand(view: &View<'_>, stretched: Value) -> Option<Value> {
    let whole = &view.fact(stretched).shape;
    let source = match &view.producer(stretched).op {
        Op::Broadcast(_) => view.producer(stretched).inputs[0],
        _ => stretched,
    };
    let shape = &view.fact(source).shape;
    let added = whole.len() - shape.len();
    let per_channel =
        (shape.iter().enumerate()).all(|(i, d)| d.is(1) || (i + added == 1 && *d == whole[1]));
    let is_full = view.as_full(source).is_some();
    (view.is_prepared(source) && (per_channel || is_full)).then_some(source)
}

/// Writes the right-hand side of the equation.
fn fold(
    patch: &mut PatchBuilder<'_>,
    view: &View<'_>,
    norm: &BatchNorm,
    statistics: &[Value],
    conv: Value,
    bias: Option<Value>,
) -> Result<Value, OpError> {
    let conv = view.producer(conv);
    let (x, w) = (conv.inputs[0], conv.inputs[1]);
    let Fact { dtype, shape } = view.fact(w).clone();
    let (mean, variance) = (statistics[0], statistics[1]);
    let channels = std::slice::from_ref(&shape[0]);

    let eps = patch.full(norm.eps, dtype, &[])?;
    let spread = patch.pointwise(Pw::Add, &[variance, eps])?;
    let mut scale = patch.pointwise(Pw::Rsqrt, &[spread])?;
    if norm.affine {
        scale = patch.pointwise(Pw::Mul, &[scale, statistics[2]])?;
    }

    let rows: Shape = column(&shape[0], shape.len());
    let row_scale = patch.reshape(&scale, &rows)?;
    let weight = patch.pointwise(Pw::Mul, &[w, row_scale])?;
    let y = patch.op(conv.op.clone(), &[x, weight])?;

    let mut shift = match bias {
        None => {
            let scaled = patch.pointwise(Pw::Mul, &[mean, scale])?;
            patch.pointwise(Pw::Neg, &[scaled])?
        }
        Some(bias) => {
            let bias = channel_vector(patch, view, bias, channels)?;
            let centred = patch.pointwise(Pw::Sub, &[bias, mean])?;
            patch.pointwise(Pw::Mul, &[centred, scale])?
        }
    };
    if norm.affine {
        shift = patch.pointwise(Pw::Add, &[shift, statistics[3]])?;
    }
    let shift = patch.reshape(&shift, &column(&shape[0], shape.len() - 1))?;
    patch.pointwise(Pw::Add, &[y, shift])
}

/// What [`channel_operand`] found, as `[c]`.
fn channel_vector(
    patch: &mut PatchBuilder<'_>,
    view: &View<'_>,
    operand: Value,
    channels: &[Dim],
) -> Result<Value, OpError> {
    if let Some(f) = view.as_full(operand) {
        return patch.full(f.value, f.dtype, channels);
    }
    let n = view.fact(operand).numel();
    let vector = patch.reshape(&operand, &[n])?;
    patch.broadcast_to(&vector, channels)
}

/// `[c, 1, …]`.
fn column(channels: &Dim, rank: usize) -> Shape {
    let mut shape = Shape::from_elem(Dim::ONE, rank);
    shape[0] = channels.clone();
    shape
}
