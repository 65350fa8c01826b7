//! The two passes.

use super::View;
use super::filter::{PRECISION, Taps};
use crate::simd::wide;

const HALF: i32 = 1 << (PRECISION - 1);

/// Rows that are resampled at once, so that their sums don't wait for each other.
const ROWS: usize = 4;

/// Pixels are read as four bytes, whatever they have.
const SLACK: usize = 3;

/// Columns of bytes whose sums are held at once.
const BLOCK: usize = 64;

fn level(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// Each row, resampled along its columns.
pub(super) fn across<const C: usize>(view: View, taps: &Taps) -> Vec<u8> {
    let width = taps.bounds.len() * C;
    let mut out = vec![0; width * view.height];
    for (group, out) in out.chunks_mut(ROWS * width).enumerate() {
        let (from, rows) = (group * ROWS, out.len() / width);
        let begin = |r: usize| (from + r) * view.stride;
        let end = begin(ROWS - 1) + view.width * C + SLACK;
        if rows == ROWS && end <= view.pixels.len() {
            let rows = std::array::from_fn(|r| &view.pixels[begin(r)..]);
            rows_across::<C>(rows, taps, out, width);
            continue;
        }
        let padded: [Vec<u8>; ROWS] = std::array::from_fn(|r| {
            let mut row = view.pixels[begin(r.min(rows - 1))..][..view.width * C].to_vec();
            row.resize(view.width * C + SLACK, 0);
            row
        });
        let mut whole = vec![0; ROWS * width];
        rows_across::<C>(padded.each_ref().map(|r| &r[..]), taps, &mut whole, width);
        out.copy_from_slice(&whole[..out.len()]);
    }
    out
}

wide! {
    /// Some rows, each with [`SLACK`] behind its last pixel.
    fn rows_across<const C: usize>(rows: [&[u8]; ROWS], taps: &Taps, out: &mut [u8], width: usize) {
        for (x, (first, weights)) in taps.iter().enumerate() {
            let mut sums = [[HALF; 4]; ROWS];
            let from = rows.map(|row| &row[first * C..][..(weights.len() - 1) * C + 4]);
            for (n, weight) in weights.iter().enumerate() {
                for (sums, from) in sums.iter_mut().zip(from) {
                    let pixel = &from[n * C..][..4];
                    for (sum, v) in sums.iter_mut().zip(pixel) {
                        *sum += i32::from(*v) * weight;
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                let levels = sums.map(level);
                out[r * width + x * C..][..C].copy_from_slice(&levels[..C]);
            }
        }
    }
}

/// Rows of `width` bytes that lie `stride` apart, resampled along the columns.
pub(super) fn down(pixels: &[u8], stride: usize, width: usize, taps: &Taps) -> Vec<u8> {
    let mut out = vec![0; width * taps.bounds.len()];
    rows_down(pixels, stride, taps, &mut out, width);
    out
}

wide! {
    fn rows_down(pixels: &[u8], stride: usize, taps: &Taps, out: &mut [u8], width: usize) {
        for ((first, weights), out) in taps.iter().zip(out.chunks_exact_mut(width)) {
            let from = &pixels[first * stride..];
            let (blocks, rest) = out.as_chunks_mut::<BLOCK>();
            let done = blocks.len() * BLOCK;
            for (n, block) in blocks.iter_mut().enumerate() {
                let mut sums = [HALF; BLOCK];
                for (row, weight) in weights.iter().enumerate() {
                    let row = &from[row * stride + n * BLOCK..][..BLOCK];
                    for (sum, v) in sums.iter_mut().zip(row) {
                        *sum += i32::from(*v) * weight;
                    }
                }
                *block = sums.map(level);
            }
            for (x, out) in rest.iter_mut().enumerate() {
                let mut sum = HALF;
                for (row, weight) in weights.iter().enumerate() {
                    sum += i32::from(from[row * stride + done + x]) * weight;
                }
                *out = level(sum);
            }
        }
    }
}
