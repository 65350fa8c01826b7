//! Rewrites after a product: scales, shifts and batch norms of its result.

use super::product::{Channel, Product, column, was_cast};
use crate::{Patch, PatchBuilder, View};
use kiln_ir::ops::BatchNorm;
use kiln_ir::{Builder, DType, NodeId, Op, OpError, Pw, Value};

/// A product, one number per channel that is added to it, and views of the sum.
struct Affine<'a> {
    product: Product<'a>,
    shift: Option<(Pw, Channel)>,
    /// Permutations and reshapes, in program order.
    views: Vec<&'a Op>,
    /// The axis of the product's channels after these views.
    channels: usize,
}

impl<'a> Affine<'a> {
    /// Returns the product and shift that compute a value, if nothing else reads it.
    fn of(view: &View<'a>, v: Value) -> Option<Affine<'a>> {
        Affine::find_through_views(view, v, |v| {
            let (op @ (Pw::Add | Pw::Sub), &[a, b]) = view.row(v.node)? else {
                return None;
            };
            let with_shift = |y: Value, addend: Value| {
                let mut affine = Affine::find_through_views(view, y, |_| None)?;
                affine.shift = Some((op, Channel::of(view, addend, affine.channels)?));
                Some(affine)
            };
            let swapped = || (op == Pw::Add).then(|| with_shift(b, a)).flatten();
            with_shift(a, b).or_else(swapped)
        })
    }

    /// Finds views of a product, or of the result of `otherwise`, if nothing else reads any of them. If a convolution
    /// of f16 or bf16 is computed in f32, intermediate rounding to its dtype may be left out.
    fn find_through_views(
        view: &View<'a>,
        mut v: Value,
        otherwise: impl FnOnce(Value) -> Option<Affine<'a>>,
    ) -> Option<Affine<'a>> {
        let (mut views, mut is_rounded) = (Vec::new(), false);
        let mut affine = loop {
            if let Some(product) = Product::of_sole_reader(view, v) {
                break Affine {
                    channels: product.channels(),
                    product,
                    shift: None,
                    views: Vec::new(),
                };
            }
            if view.use_count(v.node) != 1 {
                return None;
            }
            let node = view.producer(v);
            match &node.op {
                Op::Permute(_) | Op::Reshape(_) => views.push(v.node),
                // A value computed in f32, rounded, and widened to f32 again.
                Op::Cast(c) if c.dtype == DType::F32 && was_cast(view, v, DType::is_half) => {}
                Op::Cast(c)
                    if view.multiplies_as_f32(c.dtype)
                        && was_cast(view, v, |from| from == DType::F32) =>
                {
                    is_rounded = true;
                }
                _ => break otherwise(v)?,
            }
            v = node.inputs[0];
        };
        if is_rounded && !affine.product.is_conv() {
            return None;
        }
        for id in views.into_iter().rev() {
            affine.channels = view.result_axis(id, affine.channels)?;
            affine.views.push(&view.node(id).op);
        }
        Some(affine)
    }

    /// Returns the per-channel numbers as a `[c]`.
    fn vector(
        &self,
        patch: &mut PatchBuilder<'_>,
        view: &View<'_>,
        channel: Channel,
    ) -> Result<Value, OpError> {
        let channel = channel.vector(patch, view)?;
        patch.cast(&channel, self.product.wide())
    }

    /// Returns the shift as a `[c]`.
    fn shift(
        &self,
        patch: &mut PatchBuilder<'_>,
        view: &View<'_>,
    ) -> Result<Option<Value>, OpError> {
        let Some((op, addend)) = &self.shift else {
            return Ok(None);
        };
        let addend = self.vector(patch, view, *addend)?;
        Ok(Some(match op {
            Pw::Sub => patch.pointwise(Pw::Neg, &[addend])?,
            _ => addend,
        }))
    }

    /// `P(x, w op factor) + shift`.
    fn fold_weight(
        &self,
        patch: &mut PatchBuilder<'_>,
        op: Pw,
        factor: &Value,
        shift: Option<Value>,
    ) -> Result<Value, OpError> {
        let weight = self.product.weight_by_result(patch, op, factor)?;
        let y = self.product.with(patch, self.product.data(), weight)?;
        self.add_shift_and_views(patch, y, shift)
    }

    /// The views of `y + shift`.
    fn add_shift_and_views(
        &self,
        patch: &mut PatchBuilder<'_>,
        y: Value,
        shift: Option<Value>,
    ) -> Result<Value, OpError> {
        let mut y = patch.cast(&y, self.product.wide())?;
        if let Some(shift) = shift {
            let rank = patch.fact(&y).rank();
            let shift = column(patch, &shift, self.product.channels(), rank)?;
            y = patch.pointwise(Pw::Add, &[y, shift])?;
        }
        for op in &self.views {
            y = patch.op((*op).clone(), &[y])?;
        }
        Ok(y)
    }
}

/// (P(x, w) + b) · c = P(x, w · c) + b · c.
pub(super) fn scaled_product(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (op, operands) = view.row(id)?;
    let with_factor = |y: Value, factor: Value| {
        let affine = Affine::of(view, y)?;
        let factor = Channel::factor(view, factor, affine.channels)?;
        Some((affine, Some(factor)))
    };
    let (affine, factor) = match (op, operands) {
        (Pw::Mul, &[a, b]) => with_factor(a, b).or_else(|| with_factor(b, a))?,
        (Pw::Div, &[a, b]) => with_factor(a, b)?,
        (Pw::Neg, &[a]) => (Affine::of(view, a)?, None),
        _ => return None,
    };
    let mut patch = view.patch(id);
    let new = scale(&mut patch, view, &affine, op, factor).ok()?;
    let new = patch.narrowed(&new, view.node(id).fact().dtype).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// Applies `op` to the product and its shift; without a factor, negates both.
fn scale(
    patch: &mut PatchBuilder<'_>,
    view: &View<'_>,
    affine: &Affine<'_>,
    op: Pw,
    factor: Option<Channel>,
) -> Result<Value, OpError> {
    let (op, factor) = match factor {
        Some(factor) => (op, affine.vector(patch, view, factor)?),
        None => (Pw::Mul, minus_one(patch, affine)?),
    };
    let shift = match affine.shift(patch, view)? {
        Some(shift) => Some(patch.pointwise(op, &[shift, factor])?),
        None => None,
    };
    affine.fold_weight(patch, op, &factor, shift)
}

/// −1 for each channel.
fn minus_one(patch: &mut PatchBuilder<'_>, affine: &Affine<'_>) -> Result<Value, OpError> {
    let fact = affine.product.fact();
    let channels = affine.product.channels();
    patch.full(
        -1.0,
        affine.product.wide(),
        &fact.shape[channels..=channels],
    )
}

/// (P(x, w) + a) ± b = P(x, w) + (a ± b), and c − P(x, w) = P(x, −w) + c.
pub(super) fn shifted_product(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (op @ (Pw::Add | Pw::Sub), &[a, b]) = view.row(id)? else {
        return None;
    };
    let affine_of = |y: Value, addend: Value| {
        let affine = Affine::of(view, y)?;
        let addend = Channel::of(view, addend, affine.channels)?;
        Some((affine, addend))
    };
    let find_shifted =
        |y: Value, addend: Value| affine_of(y, addend).filter(|(a, _)| a.shift.is_some());
    let mut patch = view.patch(id);
    let new = if let Some((affine, addend)) = find_shifted(a, b) {
        add(&mut patch, view, &affine, op, addend).ok()?
    } else if op == Pw::Add {
        let (affine, addend) = find_shifted(b, a)?;
        add(&mut patch, view, &affine, op, addend).ok()?
    } else {
        let (affine, addend) = affine_of(b, a)?;
        take(&mut patch, view, &affine, addend).ok()?
    };
    let new = patch.narrowed(&new, view.node(id).fact().dtype).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// `P(x, w) + (a op b)`.
fn add(
    patch: &mut PatchBuilder<'_>,
    view: &View<'_>,
    affine: &Affine<'_>,
    op: Pw,
    addend: Channel,
) -> Result<Value, OpError> {
    let addend = affine.vector(patch, view, addend)?;
    let shift = match affine.shift(patch, view)? {
        Some(shift) => patch.pointwise(op, &[shift, addend])?,
        None => addend,
    };
    affine.add_shift_and_views(patch, affine.product.value(), Some(shift))
}

/// `P(x, −w) + (c − a)`.
fn take(
    patch: &mut PatchBuilder<'_>,
    view: &View<'_>,
    affine: &Affine<'_>,
    from: Channel,
) -> Result<Value, OpError> {
    let from = affine.vector(patch, view, from)?;
    let shift = match affine.shift(patch, view)? {
        Some(shift) => patch.pointwise(Pw::Sub, &[from, shift])?,
        None => from,
    };
    let minus = minus_one(patch, affine)?;
    affine.fold_weight(patch, Pw::Mul, &minus, Some(shift))
}

/// batch_norm(P(x, w) + b, …) = P(x, w · s) + …, of a convolution.
pub(super) fn conv_batch_norm(view: &View<'_>, id: NodeId) -> Option<Patch> {
    batch_norm(view, id, true)
}

/// The same of a matrix product.
pub(super) fn linear_batch_norm(view: &View<'_>, id: NodeId) -> Option<Patch> {
    batch_norm(view, id, false)
}

fn batch_norm(view: &View<'_>, id: NodeId, of_conv: bool) -> Option<Patch> {
    let norm = known_norm(view, id)?;
    let operands = &view.node(id).inputs;
    let affine = Affine::of(view, operands[0])?;
    if affine.product.is_conv() != of_conv || affine.channels != 1 {
        return None;
    }
    let mut patch = view.patch(id);
    let new = fold_norm(&mut patch, view, &affine, norm, &operands[1..]).ok()?;
    let new = patch.narrowed(&new, view.node(id).fact().dtype).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// A batch norm whose statistics and affine parameters depend on parameters and constants only.
pub(super) fn known_norm<'a>(view: &View<'a>, id: NodeId) -> Option<&'a BatchNorm> {
    let node = view.node(id);
    let Op::BatchNorm(norm) = &node.op else {
        return None;
    };
    let eps = norm.eps.as_f64();
    let is_prepared = node.inputs[1..].iter().all(|v| view.is_prepared(*v));
    (eps > 0.0 && eps.is_finite() && is_prepared).then_some(norm)
}

/// `s = weight / √(var + eps)`, from mean, variance and the affine parameters after them.
pub(super) fn scale_of_norm(
    patch: &mut PatchBuilder<'_>,
    norm: &BatchNorm,
    statistics: &[Value],
) -> Result<Value, OpError> {
    let spread = patch.with(Pw::Add, &statistics[1], norm.eps)?;
    let scale = patch.pointwise(Pw::Rsqrt, &[spread])?;
    match norm.affine {
        true => patch.pointwise(Pw::Mul, &[scale, statistics[2]]),
        false => Ok(scale),
    }
}

/// `(shift − mean) · s + bias`; the shift may be missing.
pub(super) fn shift_of_norm(
    patch: &mut PatchBuilder<'_>,
    norm: &BatchNorm,
    statistics: &[Value],
    scale: Value,
    shift: Option<Value>,
) -> Result<Value, OpError> {
    let mean = statistics[0];
    let scaled = match shift {
        Some(shift) => {
            let centred = patch.pointwise(Pw::Sub, &[shift, mean])?;
            patch.pointwise(Pw::Mul, &[centred, scale])?
        }
        None => {
            let scaled = patch.pointwise(Pw::Mul, &[mean, scale])?;
            patch.pointwise(Pw::Neg, &[scaled])?
        }
    };
    match norm.affine {
        true => patch.pointwise(Pw::Add, &[scaled, statistics[3]]),
        false => Ok(scaled),
    }
}

fn fold_norm(
    patch: &mut PatchBuilder<'_>,
    view: &View<'_>,
    affine: &Affine<'_>,
    norm: &BatchNorm,
    statistics: &[Value],
) -> Result<Value, OpError> {
    let wide = |v: &Value| patch.cast(v, affine.product.wide());
    let statistics: Vec<Value> = statistics.iter().map(wide).collect::<Result<_, _>>()?;
    let scale = scale_of_norm(patch, norm, &statistics)?;
    let shift = affine.shift(patch, view)?;
    let shift = shift_of_norm(patch, norm, &statistics, scale, shift)?;
    affine.fold_weight(patch, Pw::Mul, &scale, Some(shift))
}
