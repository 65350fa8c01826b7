//! Stochastic rounding (Croci et al., 2022): up or down at random, the nearer the likelier.

use super::{Array, Data};
use crate::ops::Pointwise;
use crate::{Op, Pw};
use kiln_base::prim::{Reduction, SPLIT_MIX_STEP, ScanKind, ScatterKind, split_mix};
use kiln_base::{DType, Float, round_float};

/// One of the two neighbours of `x` in a dtype narrower than f64, or `x` itself if the dtype represents it. Element
/// `index` of equal numbers rounds the same way every time.
pub(super) fn round(x: f64, dtype: DType, index: usize, seed: u64) -> f64 {
    let Some(float) = dtype.float().filter(|_| x != 0.0 && x.is_finite()) else {
        return x;
    };
    let exponent = (x.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let ulp = 2f64.powi(exponent.max(float.least) + 1 - float.digits);
    let steps = x / ulp;
    let draw = random(seed ^ x.to_bits().rotate_left(17) ^ index as u64);
    let up = draw < steps - steps.floor();
    round_float((steps.floor() + up as i32 as f64) * ulp, dtype)
}

/// Returns other operands whose result an engine may compute instead; `None` if there are none.
///
/// Each term of a sum is off by a rounding of the type that engines keep it in: the rounding errors of their partial
/// sums remain where terms cancel. Products of bf16 may flush subnormal numbers to 0, as `vdpbf16ps` does. The
/// maximum and the minimum of 0 and -0 may be either of them.
pub(super) fn vary_operands(op: &Op, operands: &[&Array], seed: u64) -> Option<Vec<Array>> {
    let unit = match op {
        // An engine may add terms that it has just computed before they are rounded.
        Op::Reduce(op) if op.kind == Reduction::Sum => unit(operands[0].dtype()),
        Op::WindowReduce(op) if op.kind == Reduction::Sum => unit(operands[0].dtype()),
        Op::Scan(op) if op.kind == ScanKind::Sum => unit(DType::F32),
        Op::Scatter(op) if op.kind == ScatterKind::Sum => unit(DType::F32),
        Op::MatMul(_) | Op::Conv(_) | Op::ConvTranspose(_) | Op::ConvWeight(_) => unit(DType::F32),
        // Weights and their gradients are operands of products and have the dtype of the other operand.
        Op::AttentionGrad(_) => unit(operands[0].dtype()),
        Op::Pointwise(Pointwise(Pw::Maximum | Pw::Minimum | Pw::Fmax | Pw::Fmin)) => {
            let reversed = operands.iter().rev().map(|a| (*a).clone());
            return (seed % 2 == 1).then(|| reversed.collect());
        }
        _ => return None,
    };
    let vary = |(number, array): (usize, &&Array)| {
        let Some(floats) = array.floats().filter(|_| array.dtype() != DType::F64) else {
            return (*array).clone();
        };
        let seed = seed ^ (number as u64 + 1) << 32;
        let min_normal = match array.dtype() == DType::BF16 && seed % 2 == 1 {
            true => f32::MIN_POSITIVE.into(),
            false => 0.0,
        };
        let vary = floats.iter().enumerate().map(|(i, x)| match *x {
            x if x.abs() < min_normal => 0.0,
            x => perturb_by(x, unit, seed ^ i as u64),
        });
        Array::new(array.dtype(), array.shape(), Data::Float(vary.collect())).expect("as many")
    };
    Some(operands.iter().enumerate().map(vary).collect())
}

/// `x` with a random relative error of up to `max_relative`.
pub(super) fn perturb_by(x: f64, max_relative: f64, seed: u64) -> f64 {
    x * (1.0 + max_relative * (2.0 * random(seed) - 1.0))
}

/// The relative rounding error of a dtype.
pub(super) fn unit(dtype: DType) -> f64 {
    dtype.float().map_or(0.0, Float::epsilon)
}

/// A number from 0 up to but not including 1.
pub(super) fn random(x: u64) -> f64 {
    (split_mix(x.wrapping_add(SPLIT_MIX_STEP)) >> 11) as f64 / (1u64 << 53) as f64
}
