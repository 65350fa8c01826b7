//! Batch norms that no product takes into its weight: of what is scaled, as the sums of a quantised layer are, and of
//! halves.

use super::behind::{known_norm, row, scale_of_norm, shift_of_norm};
use super::product::{Channel, column, was_cast};
use crate::{Patch, PatchBuilder, Rule, View};
use kiln_ir::ops::BatchNorm;
use kiln_ir::{Builder, DType, NodeId, OpError, Pw, Value};

/// batch_norm(x · c, …) = x · (c · s) + …, where c may be missing if x are halves.
pub(super) struct NormOfScaled;

impl Rule for NormOfScaled {
    fn name(&self) -> &'static str {
        "norm_of_scaled"
    }

    fn apply(&self, view: &View<'_>, id: NodeId) -> Option<Patch> {
        let norm = known_norm(view, id)?;
        let operands = &view.node(id).inputs;
        let (x, by) = match of_halves(view, operands[0]) {
            true => (operands[0], None),
            false => {
                let (x, by) = scaled(view, operands[0])?;
                (x, Some(by))
            }
        };
        let dtype = view.fact(operands[0]).dtype;
        let wide = if dtype.is_half() { DType::F32 } else { dtype };
        let mut patch = view.patch(id);
        let widened = |v: &Value| patch.cast(v, wide);
        let statistics: Vec<Value> = operands[1..]
            .iter()
            .map(widened)
            .collect::<Result<_, _>>()
            .ok()?;
        let x = patch.cast(&x, wide).ok()?;
        let new = scaled_and_shifted(&mut patch, view, (x, by), norm, &statistics).ok()?;
        let new = match wide == dtype {
            true => new,
            false => patch.narrowed(&new, dtype).ok()?,
        };
        Some(patch.replacing(id.value(), new))
    }
}

/// Whether a value are halves, or were before they had more bits.
fn of_halves(view: &View<'_>, x: Value) -> bool {
    let dtype = view.fact(x).dtype;
    dtype.is_half() || dtype.is_float() && was_cast(view, x, DType::is_half)
}

/// What is scaled by a number a channel, and by what, if nobody else reads it.
fn scaled(view: &View<'_>, x: Value) -> Option<(Value, Channel)> {
    let is_wide = matches!(view.fact(x).dtype, DType::F32 | DType::F64);
    if !is_wide || view.use_count(x.node) != 1 {
        return None;
    }
    let (Pw::Mul, &[a, b]) = row(view, x.node)? else {
        return None;
    };
    let channel = |v: Value| Channel::of(view, v, 1);
    match (channel(a), channel(b)) {
        (_, Some(by)) => Some((a, by)),
        (Some(by), None) => Some((b, by)),
        _ => None,
    }
}

/// `x · (c · s) + shift`.
fn scaled_and_shifted(
    patch: &mut PatchBuilder<'_>,
    view: &View<'_>,
    (x, by): (Value, Option<Channel>),
    norm: &BatchNorm,
    statistics: &[Value],
) -> Result<Value, OpError> {
    let scale = scale_of_norm(patch, norm, statistics)?;
    let shift = shift_of_norm(patch, norm, statistics, scale, None)?;
    let scale = match by {
        Some(by) => {
            let by = by.vector(patch, view)?;
            patch.pointwise(Pw::Mul, &[by, scale])?
        }
        None => scale,
    };
    let rank = patch.fact(&x).rank();
    let [scale, shift] = [scale, shift].map(|v| column(patch, &v, 1, rank));
    let y = patch.pointwise(Pw::Mul, &[x, scale?])?;
    patch.pointwise(Pw::Add, &[y, shift?])
}
