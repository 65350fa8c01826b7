//! The two passes.

use super::View;
use super::filter::{PRECISION, Taps};
use crate::image::Buffer;
#[cfg(all(target_arch = "x86_64", not(portable)))]
use crate::simd::has_avx2;
use crate::simd::wide;

const HALF: i32 = 1 << (PRECISION - 1);

/// The number of rows resampled at once, so that their accumulators are independent.
const ROWS: usize = 8;

/// Pixels are read and written as four bytes, whatever their number of channels.
const SLACK: usize = 3;

/// The number of byte columns whose accumulators are live at once.
const BLOCK: usize = 64;

#[inline(always)]
fn level(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// Rows of bytes with a stride.
pub(super) struct Rows {
    pub bytes: Buffer,
    pub stride: usize,
}

impl Rows {
    /// Moves the rows of `width` bytes together, without gaps.
    pub(super) fn dense(mut self, width: usize) -> Buffer {
        let height = self.bytes.len() / self.stride;
        for y in 1..height {
            let from = y * self.stride;
            self.bytes.copy_within(from..from + width, y * width);
        }
        self.bytes.truncate(height * width);
        self.bytes
    }
}

/// Each row, resampled along its columns.
pub(super) fn resample_rows<const C: usize>(view: View, taps: &Taps) -> Rows {
    let stride = taps.len() * C + SLACK;
    let mut out = Buffer::new(stride * view.height);
    for (group, out) in out.chunks_mut(ROWS * stride).enumerate() {
        let (from, rows) = (group * ROWS, out.len() / stride);
        let begin = |r: usize| (from + r) * view.stride;
        let end = begin(ROWS - 1) + view.width * C + SLACK;
        if rows == ROWS && end <= view.pixels.len() {
            let rows = std::array::from_fn(|r| &view.pixels[begin(r)..]);
            rows_across::<C>(rows, taps, out, stride);
            continue;
        }
        let padded: [Vec<u8>; ROWS] = std::array::from_fn(|r| {
            let mut row = view.pixels[begin(r.min(rows - 1))..][..view.width * C].to_vec();
            row.resize(view.width * C + SLACK, 0);
            row
        });
        let mut full = vec![0; ROWS * stride];
        rows_across::<C>(padded.each_ref().map(|r| &r[..]), taps, &mut full, stride);
        out.copy_from_slice(&full[..out.len()]);
    }
    Rows { bytes: out, stride }
}

/// Resamples [`ROWS`] rows. Each has [`SLACK`] after its last pixel, in the input and in the output.
fn rows_across<const C: usize>(rows: [&[u8]; ROWS], taps: &Taps, out: &mut [u8], stride: usize) {
    #[cfg(all(target_arch = "x86_64", not(portable)))]
    if has_avx2() {
        // SAFETY: the machine has AVX2.
        return unsafe { avx2::rows_across::<C>(rows, taps, out, stride) };
    }
    for (row, out) in rows.iter().zip(out.chunks_exact_mut(stride)) {
        for ((start, weights), out) in taps.iter().zip(out.as_chunks_mut::<C>().0) {
            let mut accumulators = [HALF; C];
            let (pixels, _) = row[start * C..][..taps.count * C].as_chunks::<C>();
            for (pixel, weight) in pixels.iter().zip(weights) {
                for (sum, v) in accumulators.iter_mut().zip(pixel) {
                    *sum += i32::from(*v) * weight;
                }
            }
            *out = accumulators.map(level);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(portable)))]
mod avx2 {
    use super::{HALF, PRECISION, ROWS, SLACK, Taps};
    use std::arch::x86_64::*;

    /// A register holds the accumulators of one row's pixel. The compiler on its own would vectorise over taps.
    #[target_feature(enable = "avx2")]
    pub(super) fn rows_across<const C: usize>(
        rows: [&[u8]; ROWS],
        taps: &Taps,
        out: &mut [u8],
        stride: usize,
    ) {
        let bytes = (taps.count - 1) * C + 1 + SLACK;
        for (x, (start, weights)) in taps.iter().enumerate() {
            let mut accumulators = [_mm_set1_epi32(HALF); ROWS];
            let mut inputs = rows;
            for input in &mut inputs {
                *input = &input[start * C..start * C + bytes];
            }
            for (n, weight) in weights.iter().enumerate() {
                let weight = _mm_set1_epi32(*weight);
                for (sum, input) in accumulators.iter_mut().zip(inputs) {
                    let [p, q, r, s] = input[n * C..n * C + 1 + SLACK] else {
                        return;
                    };
                    let pixel = _mm_cvtsi32_si128(i32::from_le_bytes([p, q, r, s]));
                    let product = _mm_mullo_epi32(_mm_cvtepu8_epi32(pixel), weight);
                    *sum = _mm_add_epi32(*sum, product);
                }
            }
            let [a, b, c, d, e, f, g, h] = accumulators;
            let levels = [levels([a, b, c, d]), levels([e, f, g, h])];
            for (row, levels) in levels.as_flattened().iter().enumerate() {
                out[row * stride + x * C..][..4].copy_from_slice(&levels.to_le_bytes());
            }
        }
    }

    /// The levels of four pixels, saturated to 0..=255.
    #[target_feature(enable = "avx2")]
    fn levels([a, b, c, d]: [__m128i; 4]) -> [i32; 4] {
        let upper = _mm_packs_epi32(shift_right(a), shift_right(b));
        let lower = _mm_packs_epi32(shift_right(c), shift_right(d));
        let levels = _mm_packus_epi16(upper, lower);
        [
            _mm_extract_epi32::<0>(levels),
            _mm_extract_epi32::<1>(levels),
            _mm_extract_epi32::<2>(levels),
            _mm_extract_epi32::<3>(levels),
        ]
    }

    #[target_feature(enable = "avx2")]
    fn shift_right(accumulators: __m128i) -> __m128i {
        _mm_srai_epi32::<{ PRECISION as i32 }>(accumulators)
    }
}

/// Rows of `width` bytes that lie `stride` apart, resampled along the columns.
pub(super) fn resample_columns(pixels: &[u8], stride: usize, width: usize, taps: &Taps) -> Buffer {
    let mut out = Buffer::new(width * taps.len());
    rows_down(pixels, stride, taps, &mut out, width);
    out
}

wide! {
    fn rows_down(pixels: &[u8], stride: usize, taps: &Taps, out: &mut [u8], width: usize) {
        for ((start, weights), out) in taps.iter().zip(out.chunks_exact_mut(width)) {
            let from = &pixels[start * stride..];
            let (blocks, tail) = out.as_chunks_mut::<BLOCK>();
            let done = blocks.len() * BLOCK;
            for (n, block) in blocks.iter_mut().enumerate() {
                let mut accumulators = [HALF; BLOCK];
                for (row, weight) in weights.iter().enumerate() {
                    let row = &from[row * stride + n * BLOCK..][..BLOCK];
                    for (sum, v) in accumulators.iter_mut().zip(row) {
                        *sum += i32::from(*v) * weight;
                    }
                }
                for (out, sum) in block.iter_mut().zip(accumulators) {
                    *out = level(sum);
                }
            }
            for (x, out) in tail.iter_mut().enumerate() {
                let mut sum = HALF;
                for (row, weight) in weights.iter().enumerate() {
                    sum += i32::from(from[row * stride + done + x]) * weight;
                }
                *out = level(sum);
            }
        }
    }
}
