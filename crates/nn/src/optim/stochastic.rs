//! Stochastic rounding of parameters of bf16.

use kiln_tensor::{DType, Tensor, where_};

/// Rounds a number of f32 to one of its two neighbours in bf16, with probabilities whose expectation is the number.
/// `random` is uniform in [0, 1), of the same shape. Numbers that are subnormal in bf16, infinite, NaN or beyond its
/// largest number are rounded to nearest.
///
/// With the nearer neighbour `near` and `x = near + e`, where `e` is exact, the other one lies a gap away on the side
/// of `e` and is taken with probability `|e| / gap`. The gap is exact too: `near · (1 ± 1.25 · 2⁻⁸)` is between half a
/// step and one and a half steps of bf16 away, also below a power of two, where steps are half as large.
pub(super) fn round(x: &Tensor, random: &Tensor) -> Tensor {
    let nearest = x.to_dtype(DType::BF16);
    let wide = nearest.to_dtype(DType::F32);
    let e = x - &wide;
    let outward = e.signbit().eq(wide.signbit());
    let step = 1.25 / 256.0;
    let next = where_(outward, &wide * (1.0 + step), &wide * (1.0 - step));
    let next = next.to_dtype(DType::BF16);
    let gap = next.to_dtype(DType::F32) - &wide;
    let is_normal = wide.abs().ge(f64::from(f32::MIN_POSITIVE) * 4.0);
    let takes_neighbour = (random * gap.abs()).lt(e.abs()).logical_and(gap.isfinite());
    where_(takes_neighbour.logical_and(is_normal), next, nearest)
}
