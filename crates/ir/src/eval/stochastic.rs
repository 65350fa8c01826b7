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

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean of many roundings is the number, and each is a neighbour.
    #[test]
    fn roundings_are_neighbours_and_unbiased() {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            for x in [0.3, -1.7, 1023.4, -6.1e-6, 1e-7, 1.0001] {
                let near = round_float(x, dtype);
                let all: Vec<f64> = (0..4000).map(|i| round(x, dtype, i, 7)).collect();
                let (low, high) = all
                    .iter()
                    .fold((f64::MAX, f64::MIN), |(l, h), y| (l.min(*y), h.max(*y)));
                assert!(
                    low <= x && x <= high || low == high && near == low,
                    "{dtype} {x}"
                );
                let mean = all.iter().sum::<f64>() / all.len() as f64;
                assert!(
                    (mean - x).abs() <= 0.05 * (high - low).max(1e-8),
                    "{dtype} {x} {mean}"
                );
                assert!(all.iter().all(|y| *y == low || *y == high), "{dtype} {x}");
                assert!(low == near || high == near, "{dtype} {x}");
            }
            for x in [0.0, 1.0, -2.5, f64::INFINITY, 2f64.powi(-24)] {
                assert_eq!(round(x, dtype, 3, 7), x);
            }
            assert!(round(f64::NAN, dtype, 0, 0).is_nan());
        }
        assert_eq!(round(65519.0, DType::F16, 0, 0).min(65504.0), 65504.0);
    }
}
