//! Scores to weights.

use crate::simd::{Isa, Kernel, math};

/// A row of scores: where and how many, what they are multiplied by first, and whether keys may be hidden from it.
pub(super) struct Row {
    pub start: *mut f32,
    pub len: usize,
    pub scale: f32,
    pub hidden: bool,
}

/// Scores to weights: `exp(score - max)` by their sum. Where keys may be hidden and every score is -inf, all
/// weights are zero.
pub(super) struct Softmax;

/// Numbers that are worked on at once.
const LANES: usize = 16;

impl Kernel<Row> for Softmax {
    #[inline(always)]
    unsafe fn run<I: Isa>(row: Row) {
        // SAFETY: the row has so many scores, which nobody else touches.
        let scores = unsafe { std::slice::from_raw_parts_mut(row.start, row.len) };
        let (chunks, rest) = scores.as_chunks_mut::<LANES>();
        let mut most = [f32::NEG_INFINITY; LANES];
        for chunk in chunks {
            for (m, s) in most.iter_mut().zip(chunk) {
                *s *= row.scale;
                *m = if *s > *m { *s } else { *m };
            }
        }
        for (m, s) in most.iter_mut().zip(rest) {
            *s *= row.scale;
            *m = if *s > *m { *s } else { *m };
        }
        let most = most.iter().fold(f32::NEG_INFINITY, |m, s| m.max(*s));
        if row.hidden && most == f32::NEG_INFINITY && scores.iter().all(|s| *s == most) {
            scores.fill(0.0);
            return;
        }
        let mut sums = [0f32; LANES];
        let (chunks, rest) = scores.as_chunks_mut::<LANES>();
        for chunk in chunks {
            for (sum, s) in sums.iter_mut().zip(chunk) {
                *s = math::exp(*s - most);
                *sum += *s;
            }
        }
        for (sum, s) in sums.iter_mut().zip(rest) {
            *s = math::exp(*s - most);
            *sum += *s;
        }
        // The sum is at least 1, or none: half a unit in the last place for a division a weight.
        let part = 1.0 / sums.iter().sum::<f32>();
        scores.iter_mut().for_each(|s| *s *= part);
    }
}
