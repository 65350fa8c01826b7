//! Stochastic rounding (Croci et al., 2022): up or down at random, the nearer the likelier.

use kiln_base::{DType, round_float};

/// One of the two neighbours of `x` in a dtype narrower than f64, or `x` if it is there. Element `index` of
/// equal numbers rounds the same way every time.
pub(super) fn round(x: f64, dtype: DType, index: usize, seed: u64) -> f64 {
    let Some(float) = dtype.float().filter(|_| x != 0.0 && x.is_finite()) else {
        return x;
    };
    let exponent = (x.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let place = 2f64.powi(exponent.max(float.least) + 1 - float.digits);
    let steps = x / place;
    let choice = random(seed ^ x.to_bits().rotate_left(17) ^ index as u64);
    let up = choice < steps - steps.floor();
    round_float((steps.floor() + up as i32 as f64) * place, dtype)
}

/// A number from 0 up to but not including 1 (SplitMix64: Steele et al., 2014).
fn random(x: u64) -> f64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}
