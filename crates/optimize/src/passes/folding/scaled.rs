//! Batch norms of what is scaled, as the sums of a quantised layer are.

use super::behind::{known_norm, row, scale_of_norm, shift_of_norm};
use super::product::{Channel, column};
use crate::{Patch, PatchBuilder, Rule, View};
use kiln_ir::ops::BatchNorm;
use kiln_ir::{Builder, DType, NodeId, OpError, Pw, Value};

/// batch_norm(x · c, …) = x · (c · s) + ….
pub(super) struct NormOfScaled;

impl Rule for NormOfScaled {
    fn name(&self) -> &'static str {
        "norm_of_scaled"
    }

    fn apply(&self, view: &View<'_>, id: NodeId) -> Option<Patch> {
        let norm = known_norm(view, id)?;
        let operands = &view.node(id).inputs;
        let scaled = operands[0];
        let is_wide = matches!(view.fact(scaled).dtype, DType::F32 | DType::F64);
        if !is_wide || view.use_count(scaled.node) != 1 {
            return None;
        }
        let (Pw::Mul, &[a, b]) = row(view, scaled.node)? else {
            return None;
        };
        let channel = |v: Value| Channel::of(view, v, 1);
        let (x, by) = match (channel(a), channel(b)) {
            (_, Some(by)) => (a, by),
            (Some(by), None) => (b, by),
            _ => return None,
        };
        let mut patch = view.patch(id);
        let new = scaled_and_shifted(&mut patch, view, (x, by), norm, &operands[1..]).ok()?;
        Some(patch.replacing(id.value(), new))
    }
}

/// `x · (c · s) + shift`.
fn scaled_and_shifted(
    patch: &mut PatchBuilder<'_>,
    view: &View<'_>,
    (x, by): (Value, Channel),
    norm: &BatchNorm,
    statistics: &[Value],
) -> Result<Value, OpError> {
    let scale = scale_of_norm(patch, norm, statistics)?;
    let shift = shift_of_norm(patch, norm, statistics, scale, None)?;
    let by = by.vector(patch, view)?;
    let scale = patch.pointwise(Pw::Mul, &[by, scale])?;
    let rank = patch.fact(&x).rank();
    let [scale, shift] = [scale, shift].map(|v| column(patch, &v, 1, rank));
    let y = patch.pointwise(Pw::Mul, &[x, scale?])?;
    patch.pointwise(Pw::Add, &[y, shift?])
}
