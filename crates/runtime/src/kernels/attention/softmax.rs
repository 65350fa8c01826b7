//! Scores to weights, some keys at a time (Milakov and Gimelshein, "Online normalizer calculation for softmax").

use crate::simd::{Isa, Kernel};
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
    best: f32,
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

/// Numbers of a vector, ...
const LANES: usize = 16;
/// ... and those that are compared at once, so that comparisons don't wait for each other.
const WIDE: usize = 4 * LANES;

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
            true => best(scores, |s| s) * row.factor,
            false => best(scores, |s| s * row.factor),
        };
        sums.best = best.max(before);
        // While no key was seen, every weight is 2^-inf.
        let base = match sums.best == f32::NEG_INFINITY {
            true => 0.0,
            false => sums.best,
        };
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

/// The largest of what is made of scores.
#[inline(always)]
fn best(scores: &[f32], make: impl Fn(f32) -> f32) -> f32 {
    let larger = |most: &mut f32, s: &f32| {
        let s = make(*s);
        *most = if s > *most { s } else { *most };
    };
    let mut most = [f32::NEG_INFINITY; LANES];
    let (wide, rest) = scores.as_chunks::<WIDE>();
    if !wide.is_empty() {
        let mut wider = [f32::NEG_INFINITY; WIDE];
        for scores in wide {
            wider.iter_mut().zip(scores).for_each(|(m, s)| larger(m, s));
        }
        for part in wider.as_chunks::<LANES>().0 {
            for (m, s) in most.iter_mut().zip(part) {
                *m = if *s > *m { *s } else { *m };
            }
        }
    }
    let (chunks, rest) = rest.as_chunks::<LANES>();
    for scores in chunks {
        most.iter_mut().zip(scores).for_each(|(m, s)| larger(m, s));
    }
    most.iter_mut().zip(rest).for_each(|(m, s)| larger(m, s));
    most.iter().fold(f32::NEG_INFINITY, |m, s| m.max(*s))
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
    use super::power;

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
