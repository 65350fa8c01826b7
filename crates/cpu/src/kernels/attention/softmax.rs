//! Online softmax: converts scores to weights by blocks of keys (Milakov and Gimelshein, "Online normalizer calculation
//! for softmax").

use half::bf16;
#[cfg(all(target_arch = "x86_64", not(portable)))]
use kiln_base::Feature;
use kiln_kernel::simd::vector::Vector;
use kiln_kernel::simd::{Features, Isa, Vectorized, fma32, tree_reduce, vectorized};
use kiln_kernel::view::{View, ViewMut};
use std::f32::consts::LN_2;
use std::f64::consts::LOG2_E;

/// A part of a row of scores, the factor from scores to exponents of 2, and the softmax state of the row.
pub(super) struct ScoreRow<'a> {
    pub scores: &'a mut [f32],
    pub factor: f32,
    pub sums: &'a mut Sums,
}

impl ScoreRow<'_> {
    /// Replaces the scores with weights relative to the running max. With `bf16`, the weights need the precision of
    /// bf16 only.
    pub(super) fn softmax(self, level: Features, bf16: bool) {
        match bf16 {
            true => vectorized(level, Softmax::<true>(self)),
            false => vectorized(level, Softmax::<false>(self)),
        }
    }
}

/// The softmax state of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    /// The running max of the scores, as an exponent of 2, rounded up to an integer.
    pub running_max: f32,
    /// The denominator: the sum of the weights.
    denominator: f32,
    /// The factor for accumulators of earlier weights.
    pub correction: f32,
}

impl Sums {
    /// The state before the first score.
    pub(super) const NONE: Sums = Sums {
        running_max: f32::NEG_INFINITY,
        denominator: 0.0,
        correction: 0.0,
    };

    /// Returns the factor from weights relative to an earlier running max to weights relative to the current one.
    pub(super) fn correction_since(&self, running_max: f32) -> f32 {
        (running_max - self.base()).exp2()
    }

    /// Returns the exponent that weights are relative to. Before the first visible key, every weight is 2^-inf.
    fn base(&self) -> f32 {
        match self.running_max == f32::NEG_INFINITY {
            true => 0.0,
            false => self.running_max,
        }
    }

    /// Returns the reciprocal of the denominator, the final factor of all weights of the row. A zero denominator gives
    /// 1 if rows without visible keys are allowed (`blind`), and otherwise infinity.
    pub(super) fn reciprocal(&self, blind: bool) -> f32 {
        match blind && self.denominator == 0.0 {
            true => 1.0,
            false => 1.0 / self.denominator,
        }
    }
}

/// Returns the factor from scores to exponents of 2, by the scale of scores.
pub(super) fn factor(scale: f64) -> f32 {
    (scale * LOG2_E) as f32
}

/// The kernel of [`ScoreRow::softmax`].
struct Softmax<'a, const BF16: bool>(ScoreRow<'a>);

/// The maximum number of lanes of a vector.
pub(super) const LANES: usize = 16;
/// The number of vectors per iteration, whose additions are independent.
const UNROLL: usize = 2;

impl<const BF16: bool> Vectorized for Softmax<'_, BF16> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let ScoreRow {
            scores,
            mut factor,
            sums,
        } = self.0;
        let old_max = sums.running_max;
        if factor < MIN_FACTOR {
            scores.iter_mut().for_each(|s| *s *= factor);
            factor = 1.0;
        }
        sums.running_max = (row_max::<I>(scores) * factor).ceil().max(old_max);
        let mut base = sums.base();
        sums.correction = (old_max - base).exp2();
        if base.abs() > MAX_BASE {
            (scores.iter_mut()).for_each(|s| *s = fma32::<I>(*s, factor, -base));
            (factor, base) = (1.0, 0.0);
        }
        // SAFETY: the machine has the level; a chunk has `UNROLL` vectors, and `padded` has room for `UNROLL` vectors.
        let sum = unsafe {
            let powers = Powers::<I::F32>::new(factor, base);
            let mut sums_of_lanes = [I::F32::splat(0.0); UNROLL];
            let mut chunks = scores.chunks_exact_mut(UNROLL * I::F32::LANES);
            for chunk in &mut chunks {
                sums_of_lanes = powers.replace_and_sum::<BF16>(chunk.as_mut_ptr(), sums_of_lanes);
            }
            let tail = chunks.into_remainder();
            if !tail.is_empty() {
                let mut padded = [f32::NEG_INFINITY; UNROLL * LANES];
                padded[..tail.len()].copy_from_slice(tail);
                sums_of_lanes = powers.replace_and_sum::<BF16>(padded.as_mut_ptr(), sums_of_lanes);
                tail.copy_from_slice(&padded[..tail.len()]);
            }
            let mut lanes = [0f32; LANES];
            sums_of_lanes[0]
                .add(sums_of_lanes[1])
                .store(lanes.as_mut_ptr());
            tree_reduce(lanes, |a, b| a + b)
        };
        sums.denominator = sums.denominator * sums.correction + sum;
    }
}

/// The arguments of [`narrow`].
struct Narrow {
    from: *const f32,
    to: *mut bf16,
    len: usize,
}

/// Narrows `len` f32 to bf16, which may overwrite the f32 in place.
pub(super) fn narrow(level: Features, from: View<f32>, to: ViewMut<bf16>, len: i64) {
    let numbers = Narrow {
        from: from.address([0, len]),
        to: to.address_mut([0, len]),
        len: len as usize,
    };
    #[cfg(all(target_arch = "x86_64", not(portable)))]
    if level.has(Feature::Avx512Bf16) && is_x86_feature_detected!("avx512bf16") {
        // SAFETY: there are `len` of both, and this machine has the instruction.
        return unsafe { narrow_by_instruction(numbers) };
    }
    vectorized(level, numbers);
}

/// Narrows by an AVX-512 instruction, which flushes subnormal numbers to zero.
///
/// # Safety
/// There are `len` of both, and nobody else uses them.
#[cfg(all(target_arch = "x86_64", not(portable)))]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn narrow_by_instruction(Narrow { from, to, len }: Narrow) {
    use std::arch::x86_64::*;
    for i in (0..len).step_by(LANES) {
        let mask = u16::MAX >> (LANES - LANES.min(len - i));
        // SAFETY: the caller's; no bf16 is written where a number is still to be read.
        unsafe {
            let numbers = _mm512_maskz_loadu_ps(mask, from.add(i));
            let narrowed = _mm512_cvtneps_pbh(numbers);
            _mm256_mask_storeu_epi16(
                to.add(i).cast(),
                mask,
                std::mem::transmute::<__m256bh, __m256i>(narrowed),
            );
        }
    }
}

impl Vectorized for Narrow {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Narrow { from, to, len } = self;
        let even_len = len / LANES * LANES;
        // SAFETY: there are `len` of both; no bf16 is written where a number is still to be read.
        unsafe {
            for i in (0..even_len).step_by(LANES) {
                let numbers = from.add(i).cast::<[f32; LANES]>().read();
                *to.add(i).cast() = numbers.map(bf16::from_f32);
            }
            (even_len..len).for_each(|i| *to.add(i) = bf16::from_f32(*from.add(i)));
        }
    }
}

/// Packs two rows of `len` f32 as bf16 into words, the first row in the lower half. Without a second row, the upper
/// half is zero. The words may overwrite the first row in place.
pub(super) fn pack_pairs(
    level: Features,
    a: View<f32>,
    b: Option<View<f32>>,
    to: ViewMut<u32>,
    len: i64,
) {
    let pairs = PackPairs {
        rows: [a, b.unwrap_or(a)].map(|row| row.address([0, len])),
        second: if b.is_some() { u32::MAX } else { 0 },
        to: to.address_mut([0, len]),
        len: len as usize,
    };
    vectorized(level, pairs);
}

/// The loop of [`pack_pairs`].
struct PackPairs {
    rows: [*const f32; 2],
    /// A mask for the bits of the second row: all, or none if it does not exist.
    second: u32,
    to: *mut u32,
    len: usize,
}

impl Vectorized for PackPairs {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let PackPairs {
            rows: [a, b],
            second,
            to,
            len,
        } = self;
        let word = |a: f32, b: f32| {
            let [a, b] = [a, b].map(|x| u32::from(bf16::from_f32(x).to_bits()));
            a | b << 16 & second
        };
        let even_len = len / LANES * LANES;
        // SAFETY: rows and words are `len` each; no word is written where a number is still to be read.
        unsafe {
            for i in (0..even_len).step_by(LANES) {
                let [a, b] = [a, b].map(|x| x.add(i).cast::<[f32; LANES]>().read());
                *to.add(i).cast() = std::array::from_fn::<u32, LANES, _>(|i| word(a[i], b[i]));
            }
            (even_len..len).for_each(|i| *to.add(i) = word(*a.add(i), *b.add(i)));
        }
    }
}

/// Returns the maximum, or `b` if either is NaN.
#[inline(always)]
fn max_or_nan(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Returns the maximum score.
#[inline(always)]
fn row_max<I: Isa>(scores: &[f32]) -> f32 {
    /// The number of vectors per iteration, whose comparisons are independent.
    const UNROLL_MAX: usize = 4;
    let lanes = I::F32::LANES;
    let mut lane_max = [f32::NEG_INFINITY; LANES];
    let mut chunks = scores.chunks_exact(UNROLL_MAX * lanes);
    // SAFETY: the machine has the level; a chunk has `UNROLL_MAX` vectors, and there are no more than 16 lanes.
    let tail = unsafe {
        let mut accumulators = [I::F32::splat(f32::NEG_INFINITY); UNROLL_MAX];
        for chunk in &mut chunks {
            for (i, lane_max) in accumulators.iter_mut().enumerate() {
                *lane_max = I::F32::load(chunk.as_ptr().add(i * lanes)).max(*lane_max);
            }
        }
        let mut vectors = chunks.remainder().chunks_exact(lanes);
        for vector in &mut vectors {
            accumulators[0] = I::F32::load(vector.as_ptr()).max(accumulators[0]);
        }
        let [a, b, c, d] = accumulators;
        a.max(b).max(c.max(d)).store(lane_max.as_mut_ptr());
        vectors.remainder()
    };
    for (lane_max, s) in lane_max.iter_mut().zip(tail) {
        *lane_max = max_or_nan(*s, *lane_max);
    }
    tree_reduce(lane_max, |a, b| max_or_nan(b, a))
}

/// Adding this constant rounds to an integer, whose low bits are the biased exponent of a power of 2.
const ROUND: f32 = 12_582_912.0 + 127.0;
/// The maximum integer that can be subtracted from [`ROUND`] without rounding.
const MAX_BASE: f32 = 1_048_576.0;
/// The minimum factor that is fused into the computation of exponents.
const MIN_FACTOR: f32 = 1e-20;

/// `2^r` for |r| <= ½, highest coefficient first; minimax.
#[rustfmt::skip]
const POLYNOMIAL: [f32; 6] = [1.330_060_5e-3, 9.669_691e-3, 5.550_558_5e-2, 2.402_228_3e-1, LN_2, 1.0];
/// As [`POLYNOMIAL`], within 2^-13, which suffices for bf16.
const BF16_POLYNOMIAL: [f32; 4] = [5.500_886_6e-2, 2.422_109_7e-1, 6.932_83e-1, 1.0];

/// The constants of `2^(x · factor − base)`, with a positive factor and an integer base.
struct Powers<V> {
    factor: V,
    /// The rounding constant, less the base.
    round: V,
    /// The minimum of `x`; lower values give zero.
    min_x: V,
}

impl<V: Vector> Powers<V> {
    /// # Safety
    /// As [`Vector::splat`].
    #[inline(always)]
    unsafe fn new(factor: f32, base: f32) -> Powers<V> {
        // SAFETY: the caller's.
        unsafe {
            Powers {
                factor: V::splat(factor),
                round: V::splat(ROUND - base),
                // The reciprocal does not wait for the integer.
                min_x: V::splat((base - 127.0) * (1.0 / factor)),
            }
        }
    }

    /// Replaces vectors of scores with weights, and adds the weights to sums.
    ///
    /// # Safety
    /// As [`Vector::splat`]; the vectors exist.
    #[inline(always)]
    unsafe fn replace_and_sum<const BF16: bool>(
        &self,
        scores: *mut f32,
        mut sums: [V; UNROLL],
    ) -> [V; UNROLL] {
        // SAFETY: the caller's.
        unsafe {
            let mut weights = [V::splat(0.0); UNROLL];
            for (i, x) in weights.iter_mut().enumerate() {
                *x = V::load(scores.add(i * V::LANES));
            }
            weights = self.eval::<BF16, UNROLL>(weights);
            for (i, (sum, w)) in sums.iter_mut().zip(weights).enumerate() {
                w.store(scores.add(i * V::LANES));
                *sum = sum.add(w);
            }
        }
        sums
    }

    /// Returns `2^(x · factor − base)`, which is at most 2, or NaN for NaN. Results below 2^-126 are zero; others are
    /// within 2.4 units in the last place, or within 2^-13 for bf16. Interleaving vectors hides the latency of
    /// dependent steps.
    ///
    /// # Safety
    /// As [`Vector::splat`].
    #[inline(always)]
    unsafe fn eval<const BF16: bool, const N: usize>(&self, mut x: [V; N]) -> [V; N] {
        // SAFETY: the caller's.
        unsafe {
            let (leading, coefficients) = match BF16 {
                true => (BF16_POLYNOMIAL[0], &BF16_POLYNOMIAL[1..]),
                false => (POLYNOMIAL[0], &POLYNOMIAL[1..]),
            };
            let (mut exponents, mut powers) = (x, [V::splat(leading); N]);
            for (x, exponents) in x.iter_mut().zip(&mut exponents) {
                *x = self.min_x.max(*x);
                *exponents = x.mul_add(self.factor, self.round);
            }
            for (x, exponents) in x.iter_mut().zip(exponents) {
                *x = x.mul_add(self.factor, self.round.sub(exponents));
            }
            for c in coefficients {
                for (power, r) in powers.iter_mut().zip(x) {
                    *power = power.mul_add(r, V::splat(*c));
                }
            }
            for (power, exponents) in powers.iter_mut().zip(exponents) {
                *power = power.mul(exponents.power_of_two());
            }
            powers
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Powers, ScoreRow, Sums, narrow};
    use half::bf16;
    use kiln_kernel::simd::Features;
    use kiln_kernel::simd::vector::{Four, Vector};
    use kiln_kernel::view::{View, ViewMut};

    #[test]
    fn narrowing_rounds_to_nearest_in_place_or_not() {
        for level in Features::LEVELS.into_iter().filter(|l| l.is_supported()) {
            for len in [0, 1, 15, 16, 17, 33, 100] {
                let number = |i: usize| match i % 9 {
                    0 => f32::NAN,
                    1 => f32::INFINITY,
                    2 => -f32::MAX,
                    3 => f32::from_bits(0x3f80_8000),
                    4 => f32::from_bits(0x3f81_8000),
                    _ => (i as f32 - 40.0) * 0.371,
                };
                let mut numbers: Vec<f32> = (0..len + 1).map(number).collect();
                let expected: Vec<bf16> = numbers.iter().map(|x| bf16::from_f32(*x)).collect();
                let mut separate = vec![bf16::ONE; len + 1];
                let count = len as i64;
                narrow(level, View::of(&numbers), ViewMut::of(&mut separate), count);
                let numbers = ViewMut::of(&mut numbers);
                narrow(level, *numbers, numbers.cast(), count);
                let in_place = numbers.cast::<bf16>().slice(0, count);
                let is_equal = |(a, b): (&bf16, &bf16)| a == b || a.is_nan() && b.is_nan();
                assert!(
                    separate.iter().zip(&expected[..len]).all(is_equal),
                    "{level:?} {len}"
                );
                assert!(
                    in_place.iter().zip(&expected).all(is_equal),
                    "{level:?} {len}"
                );
                assert_eq!(separate[len], bf16::ONE, "{level:?} {len}");
            }
        }
    }

    /// Tests two parts of a row, with and without short polynomials, for scores of any size. Weights are within a
    /// relative error of those made from the maximum of both parts.
    #[test]
    fn weights_are_powers_relative_to_their_sum() {
        let kernels = [(false, 1e-6), (true, 2.1e-4)];
        for level in Features::LEVELS.into_iter().filter(|l| l.is_supported()) {
            for (bf16, tolerance) in kernels {
                for (len, factor, size, center) in [
                    (1, 1.0, 3.0, 0.0),
                    (31, 0.18, 40.0, -7.0),
                    (32, 1.44, 400.0, 250.0),
                    (67, -0.7, 90.0, 3.0),
                    (513, 1e-25, 1e26, 0.0),
                    (129, 1e-18, 1e19, -1e17),
                    (100, 0.0, 1.0, 0.0),
                    (40, 2.0, 2e6, -1e7),
                    (70, 5e20, 1e-19, 0.0),
                ] {
                    let is_masked = |i: usize| i % 7 == 3;
                    let number = |i: usize| match is_masked(i) {
                        true => f32::NEG_INFINITY * factor,
                        false => (i * 389 % 521) as f32 / 521.0 * size + center,
                    };
                    let scores: Vec<f32> = (0..2 * len).map(number).collect();
                    let (mut weights, mut sums) = (scores.clone(), Sums::NONE);
                    let mut bases = [0.0; 2];
                    for (part, base) in weights.chunks_mut(len).zip(&mut bases) {
                        let row = ScoreRow {
                            scores: part,
                            factor,
                            sums: &mut sums,
                        };
                        row.softmax(level, bf16);
                        *base = sums.running_max;
                    }
                    let exact = |s: &f32| f64::from(*s) * f64::from(factor);
                    let max = scores.iter().map(exact).fold(f64::NEG_INFINITY, f64::max);
                    let power = |s: &f32| (exact(s) - max).exp2();
                    let total: f64 = scores.iter().map(power).filter(|p| !p.is_nan()).sum();
                    // The spacing of floats grows with the scores.
                    let tolerance = tolerance + (max.abs() + f64::from(size * factor).abs()) * 2e-7;
                    for (i, w) in weights.iter().enumerate() {
                        let part = sums.correction_since(bases[i / len]) * sums.reciprocal(false);
                        let (actual, expected) = (f64::from(w * part), power(&scores[i]) / total);
                        let label =
                            format!("{level:?} {len} {factor} {i}: {actual} for {expected}");
                        if is_masked(i) && factor != 0.0 {
                            assert_eq!(actual, 0.0, "{label}");
                        } else if factor != 0.0 {
                            assert!(
                                (actual - expected).abs() <= tolerance * expected + 1e-37,
                                "{label}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn powers_are_within_a_few_units() {
        let power = |x: f32| {
            let mut lanes = [0.0; 4];
            // SAFETY: every machine has these lanes.
            unsafe {
                let x = Four::splat(x);
                let [power] = Powers::new(1.0, 0.0).eval::<false, 1>([x]);
                power.store(lanes.as_mut_ptr());
            }
            lanes[0]
        };
        for i in 0..=2_000_000 {
            let x = 1.0 - i as f32 * (126.9 / 2_000_000.0);
            let exact = f64::from(x).exp2();
            let unit = f64::from((exact as f32).next_up() - exact as f32);
            let error = (f64::from(power(x)) - exact).abs() / unit;
            assert!(error <= 2.4, "2^{x} by {error} units");
        }
        assert_eq!(power(0.0), 1.0);
        assert_eq!(power(f32::NEG_INFINITY), 0.0);
        assert_eq!(power(-1e30), 0.0);
        assert!(power(f32::NAN).is_nan());
    }
}
