//! Batch norms that no weight can take: of the scaled sums of a quantised layer, and of f16 and bf16.

use super::behind::{known_norm, scale_of_norm, shift_of_norm};
use super::product::{Channel, column};
use crate::{Patch, PatchBuilder, View};
use kiln_ir::ops::BatchNorm;
use kiln_ir::{Builder, DType, Kind, NodeId, Op, OpError, Pw, Value};

/// batch_norm(x · c, …) = x · (c · s) + … for a product x of integers; for f16 and bf16 without c.
pub(super) fn norm_of_scaled(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let norm = known_norm(view, id)?;
    let operands = &view.node(id).inputs;
    let dtype = view.fact(operands[0]).dtype;
    let (x, channel, widened_dtype) = match dtype.is_half() {
        true => (operands[0], None, DType::F32),
        false => {
            let (x, channel) = split_scale(view, operands[0])?;
            (x, Some(channel), dtype)
        }
    };
    let mut patch = view.patch(id);
    let widen = |v: &Value| patch.cast(v, widened_dtype);
    let statistics: Vec<Value> = operands[1..]
        .iter()
        .map(widen)
        .collect::<Result<_, _>>()
        .ok()?;
    let x = patch.cast(&x, widened_dtype).ok()?;
    let new = scaled_and_shifted(&mut patch, view, (x, channel), norm, &statistics).ok()?;
    let new = patch.narrowed(&new, dtype).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// Splits a product of integers from the number per channel that scales it, if nothing else reads the result.
fn split_scale(view: &View<'_>, y: Value) -> Option<(Value, Channel)> {
    let (Pw::Mul, &[a, b]) = view.row(y.node)? else {
        return None;
    };
    if view.use_count(y.node) != 1 {
        return None;
    }
    [(a, b), (b, a)].into_iter().find_map(|(x, channel)| {
        let channel = Channel::of(view, channel, 1)?;
        is_sum_of_integers(view, x).then_some((x, channel))
    })
}

/// True if the value was cast from a product of integers, perhaps through views and zero points.
fn is_sum_of_integers(view: &View<'_>, x: Value) -> bool {
    let cast = view.producer(x);
    if !matches!(cast.op, Op::Cast(_)) {
        return false;
    }
    let mut sum = cast.inputs[0];
    while view.fact(sum).dtype.kind() == Kind::Int {
        let node = view.producer(sum);
        sum = match &node.op {
            Op::MatMul(_) | Op::Conv(_) => return true,
            Op::Pointwise(p) if matches!(p.0, Pw::Add | Pw::Sub) => node.inputs[0],
            op if op.is_view() => node.inputs[0],
            _ => return false,
        };
    }
    false
}

/// `x · (c · s) + shift`.
fn scaled_and_shifted(
    patch: &mut PatchBuilder<'_>,
    view: &View<'_>,
    (x, channel): (Value, Option<Channel>),
    norm: &BatchNorm,
    statistics: &[Value],
) -> Result<Value, OpError> {
    let scale = scale_of_norm(patch, norm, statistics)?;
    let shift = shift_of_norm(patch, norm, statistics, scale, None)?;
    let scale = match channel {
        Some(channel) => {
            let channel = channel.vector(patch, view)?;
            patch.pointwise(Pw::Mul, &[channel, scale])?
        }
        None => scale,
    };
    let rank = patch.fact(&x).rank();
    let [scale, shift] = [scale, shift].map(|v| column(patch, &v, 1, rank));
    let y = patch.pointwise(Pw::Mul, &[x, scale?])?;
    patch.pointwise(Pw::Add, &[y, shift?])
}
