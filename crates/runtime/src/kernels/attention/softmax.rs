//! Scores to weights, some keys at a time (Milakov and Gimelshein, "Online normalizer calculation for softmax").

use crate::simd::vector::Vector;
use crate::simd::{Isa, Kernel, Level, compiled};
use half::bf16;
use std::f32::consts::LN_2;
use std::f64::consts::LOG2_E;

/// A part of a row of scores: where and how many, what they are multiplied by first, to be powers of 2, and the sums of
/// its row.
pub(super) struct Row {
    pub start: *mut f32,
    pub len: usize,
    pub factor: f32,
    pub sums: *mut Sums,
}

/// What is known of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    /// The best of the scores seen, as a power of 2.
    pub best: f32,
    /// The sum of their weights.
    total: f32,
    /// What was summed up with weights of earlier scores is to be multiplied by this.
    pub fade: f32,
}

impl Sums {
    /// Those of no scores.
    pub(super) const NONE: Sums = Sums {
        best: f32::NEG_INFINITY,
        total: 0.0,
        fade: 0.0,
    };

    /// What weights relative to an earlier best score are multiplied by.
    pub(super) fn since(&self, best: f32) -> f32 {
        power(best - self.base())
    }

    /// What scores are relative to. While no key was seen, every weight is 2^-inf.
    fn base(&self) -> f32 {
        match self.best == f32::NEG_INFINITY {
            true => 0.0,
            false => self.best,
        }
    }

    /// What all weights of the row are multiplied by in the end; `blind` says that a row may see nothing. No number if
    /// they are none.
    pub(super) fn part(&self, blind: bool) -> f32 {
        match blind && self.total == 0.0 {
            true => 1.0,
            false => 1.0 / self.total,
        }
    }
}

/// What scores are multiplied by, given their scale.
pub(super) fn factor(scale: f64) -> f32 {
    (scale * LOG2_E) as f32
}

/// Makes scores weights, relative to the best score so far.
pub(super) struct Softmax;

/// Numbers that are worked on at once.
const LANES: usize = 16;

impl Kernel<Row> for Softmax {
    #[inline(always)]
    unsafe fn run<I: Isa>(row: Row) {
        // SAFETY: the row has so many scores and its sums, which nobody else touches.
        let (scores, sums) = unsafe {
            (
                std::slice::from_raw_parts_mut(row.start, row.len),
                &mut *row.sums,
            )
        };
        let before = sums.best;
        let best = match row.factor > 0.0 {
            true => best::<I>(scores) * row.factor,
            false => (scores.iter()).fold(f32::NEG_INFINITY, |m, s| larger(s * row.factor, m)),
        };
        sums.best = best.max(before);
        let base = sums.base();
        sums.fade = power(before - base);
        let mut total = [0f32; LANES];
        let (chunks, rest) = scores.as_chunks_mut::<LANES>();
        for scores in chunks {
            for (sum, s) in total.iter_mut().zip(scores) {
                *s = power(s.mul_add(row.factor, -base));
                *sum += *s;
            }
        }
        if !rest.is_empty() {
            let (mut last, count) = ([0f32; LANES], rest.len());
            last[..count].copy_from_slice(rest);
            for (i, (sum, s)) in total.iter_mut().zip(&mut last).enumerate() {
                *s = power(s.mul_add(row.factor, -base));
                *sum += if i < count { *s } else { 0.0 };
            }
            rest.copy_from_slice(&last[..count]);
        }
        sums.total = sums.total * sums.fade + total.iter().sum::<f32>();
    }
}

/// Some f32, the bf16 that they become, and how many. These may begin where those do.
type Narrowed = (*const f32, *mut bf16, usize);

/// What makes f32 bf16 at a level.
pub(super) fn narrow(level: Level) -> unsafe fn(Narrowed) {
    #[cfg(target_arch = "x86_64")]
    if level.multiplies_bf16() && is_x86_feature_detected!("avx512bf16") {
        return narrow_by_one;
    }
    compiled::<Narrow, _>(level)
}

/// By the instruction for it, which takes subnormal numbers for zeros.
///
/// # Safety
/// There are so many, and nobody else uses them.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn narrow_by_one((from, to, len): Narrowed) {
    use std::arch::x86_64::*;
    for i in (0..len).step_by(LANES) {
        let there = u16::MAX >> (LANES - LANES.min(len - i));
        // SAFETY: the caller's; no bf16 is written where a number is still to be read.
        unsafe {
            let numbers = _mm512_maskz_loadu_ps(there, from.add(i));
            let halves = _mm512_cvtneps_pbh(numbers);
            _mm256_mask_storeu_epi16(
                to.add(i).cast(),
                there,
                std::mem::transmute::<__m256bh, __m256i>(halves),
            );
        }
    }
}

/// The same in other instructions.
struct Narrow;

impl Kernel<Narrowed> for Narrow {
    #[inline(always)]
    unsafe fn run<I: Isa>((from, to, len): Narrowed) {
        let all = len / LANES * LANES;
        // SAFETY: there are so many; no bf16 is written where a number is still to be read.
        unsafe {
            for i in (0..all).step_by(LANES) {
                let numbers = from.add(i).cast::<[f32; LANES]>().read();
                *to.add(i).cast() = numbers.map(bf16::from_f32);
            }
            (all..len).for_each(|i| *to.add(i) = bf16::from_f32(*from.add(i)));
        }
    }
}

/// Two rows of so many f32 that become words, which may begin where the first does.
pub(super) struct Pairs {
    pub rows: [*const f32; 2],
    /// Bits of the second that are there: all, or none.
    pub second: u32,
    pub to: *mut u32,
    pub len: usize,
}

/// Makes pairs of bf16, the first in the lower half.
pub(super) struct Pair;

impl Kernel<Pairs> for Pair {
    #[inline(always)]
    unsafe fn run<I: Isa>(pairs: Pairs) {
        let Pairs {
            rows: [a, b],
            second,
            to,
            len,
        } = pairs;
        let word = |a: f32, b: f32| {
            let [a, b] = [a, b].map(|x| u32::from(bf16::from_f32(x).to_bits()));
            a | b << 16 & second
        };
        let all = len / LANES * LANES;
        // SAFETY: there are so many; no word is written where a number is still to be read.
        unsafe {
            for i in (0..all).step_by(LANES) {
                let [a, b] = [a, b].map(|x| x.add(i).cast::<[f32; LANES]>().read());
                *to.add(i).cast() = std::array::from_fn::<u32, LANES, _>(|i| word(a[i], b[i]));
            }
            (all..len).for_each(|i| *to.add(i) = word(*a.add(i), *b.add(i)));
        }
    }
}

/// What is larger, or `b` where either is no number.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The largest of scores.
#[inline(always)]
fn best<I: Isa>(scores: &[f32]) -> f32 {
    /// Vectors that are compared at once, so that comparisons don't wait for each other.
    const WIDE: usize = 4;
    let lanes = I::F32::LANES;
    let mut most = [f32::NEG_INFINITY; LANES];
    let mut chunks = scores.chunks_exact(WIDE * lanes);
    // SAFETY: the machine has the level; a chunk has so many vectors, and there are no more than 16 lanes.
    unsafe {
        let mut wide = [I::F32::splat(f32::NEG_INFINITY); WIDE];
        for chunk in &mut chunks {
            for (i, most) in wide.iter_mut().enumerate() {
                *most = I::F32::load(chunk.as_ptr().add(i * lanes)).max(*most);
            }
        }
        let [a, b, c, d] = wide;
        a.max(b).max(c.max(d)).store(most.as_mut_ptr());
    }
    let all = most.iter().chain(chunks.remainder());
    all.fold(f32::NEG_INFINITY, |m, s| larger(*s, m))
}

/// `(2^r - 1 - r ln 2) / r²` for |r| <= ½, highest coefficient first; minimax.
const TAIL: [f32; 4] = [1.330_060_5e-3, 9.669_691e-3, 5.550_558_5e-2, 2.402_228_3e-1];

/// 2^x for x up to 1, or no number: within 2.2 units in the last place, and zero below 2^-126.
#[inline(always)]
fn power(x: f32) -> f32 {
    // Adding it rounds to an integer, which then stands in the low bits as the exponent of a power of 2.
    const ROUND: f32 = 12_582_912.0 + 127.0;
    let turns = x + ROUND;
    let r = x - (turns - ROUND);
    let tail = TAIL.iter().skip(1).fold(TAIL[0], |p, c| p.mul_add(r, *c));
    let y = tail.mul_add(r, LN_2).mul_add(r, 1.0) * f32::from_bits(turns.to_bits() << 23);
    if x < -126.0 { 0.0 } else { y }
}

#[cfg(test)]
mod tests {
    use super::{narrow, power};
    use crate::simd::Level;
    use half::bf16;

    #[test]
    fn halves_are_the_nearest_in_place_and_apart() {
        for level in Level::ALL.into_iter().filter(|l| l.is_supported()) {
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
                let mut apart = vec![bf16::ONE; len + 1];
                let (from, to) = (numbers.as_mut_ptr(), apart.as_mut_ptr());
                // SAFETY: there are so many, and one more.
                let inside = unsafe {
                    narrow(level)((from, to, len));
                    narrow(level)((from, from.cast(), len));
                    std::slice::from_raw_parts(from.cast::<bf16>(), len)
                };
                let same = |(a, b): (&bf16, &bf16)| a == b || a.is_nan() && b.is_nan();
                assert!(
                    apart.iter().zip(&expected[..len]).all(same),
                    "{level:?} {len}"
                );
                assert!(inside.iter().zip(&expected).all(same), "{level:?} {len}");
                assert_eq!(apart[len], bf16::ONE, "{level:?} {len}");
            }
        }
    }

    #[test]
    fn powers_are_within_a_few_units() {
        for i in 0..=2_000_000 {
            let x = 1.0 - i as f32 * (126.9 / 2_000_000.0);
            let exact = f64::from(x).exp2();
            let unit = f64::from((exact as f32).next_up() - exact as f32);
            let error = (f64::from(power(x)) - exact).abs() / unit;
            assert!(error <= 2.2, "2^{x} by {error} units");
        }
        assert_eq!(power(0.0), 1.0);
        assert_eq!(power(f32::NEG_INFINITY), 0.0);
        assert_eq!(power(-1e30), 0.0);
        assert!(power(f32::NAN).is_nan());
    }
}
