//! Transposes and copies of matrices.

use super::{Features, Isa, Kernel, compiled};
use crate::view::{Plain, View, ViewMut, span};
use std::marker::PhantomData;

/// Writes the transpose of a matrix: `to[j, i] = from[i, j]`. `pitch` and `to_pitch` are the strides between rows in
/// elements.
///
/// # Panics
/// If a view lacks elements.
pub fn transpose<T: Plain>(
    level: Features,
    (from, pitch): (View<T>, i64),
    (rows, columns): (i64, i64),
    (to, to_pitch): (ViewMut<T>, i64),
) {
    if rows <= 0 || columns <= 0 {
        return;
    }
    let transpose_args = Transpose {
        from: from.address(span([(rows, pitch), (columns, 1)])),
        pitch: pitch as isize,
        rows: rows as usize,
        columns: columns as usize,
        to: to.address_mut(span([(columns, to_pitch), (rows, 1)])),
        to_pitch: to_pitch as isize,
    };
    // SAFETY: both matrices are in their views.
    unsafe { compiled::<TransposeKernel<T>, _>(level)(transpose_args) }
}

/// Copies a matrix with strides between rows and columns to rows of contiguous elements.
///
/// # Panics
/// If a view lacks elements.
pub fn copy_rows<T: Plain>(
    (from, [row_stride, column_stride]): (View<T>, [i64; 2]),
    (rows, columns): (i64, i64),
    (to, pitch): (ViewMut<T>, i64),
) {
    let from = from.address(span([(rows, row_stride), (columns, column_stride)]));
    let to = to.address_mut(span([(rows, pitch), (columns, 1)]));
    // Contiguous rows are merged.
    let (rows, columns) = match (row_stride, column_stride, pitch) == (columns, 1, columns) {
        true => (1, rows * columns),
        false => (rows, columns),
    };
    for i in 0..rows {
        // SAFETY: both views have all elements.
        unsafe {
            let from = from.offset((i * row_stride) as isize);
            let to = to.offset((i * pitch) as isize);
            match (column_stride, columns) {
                (1, 32) => *to.cast::<[T; 32]>() = from.cast::<[T; 32]>().read(),
                (1, 16) => *to.cast::<[T; 16]>() = from.cast::<[T; 16]>().read(),
                (1, 0..) => std::ptr::copy_nonoverlapping(from, to, columns as usize),
                _ => (0..columns as isize)
                    .for_each(|j| *to.offset(j) = *from.offset(j * column_stride as isize)),
            }
        }
    }
}

/// A matrix and the destination of its transpose. `pitch` and `to_pitch` are their pitches, in elements.
pub struct Transpose<T> {
    pub from: *const T,
    pub pitch: isize,
    pub rows: usize,
    pub columns: usize,
    pub to: *mut T,
    pub to_pitch: isize,
}

/// The kernel that transposes matrices.
pub struct TransposeKernel<T>(PhantomData<T>);
impl<T: Copy> Kernel<Transpose<T>> for TransposeKernel<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(t: Transpose<T>) {
        /// The rows and columns of a block.
        const SIDE: usize = 8;
        // SAFETY: the elements exist, and there is room for them.
        unsafe {
            if t.rows == 3 {
                // Pixels of three channels.
                let row = [0, 1, 2].map(|r| t.from.offset(r * t.pitch));
                for j in 0..t.columns {
                    let to = t.to.offset(j as isize * t.to_pitch).cast::<[T; 3]>();
                    *to = row.map(|row| *row.add(j));
                }
                return;
            }
            for i in (0..t.rows).step_by(SIDE) {
                for j in (0..t.columns).step_by(SIDE) {
                    let from = t.from.offset(i as isize * t.pitch + j as isize);
                    let to = t.to.offset(j as isize * t.to_pitch + i as isize);
                    let (h, w) = (SIDE.min(t.rows - i), SIDE.min(t.columns - j));
                    #[cfg(all(target_arch = "x86_64", not(portable)))]
                    if (h, w) == (SIDE, SIDE) {
                        if size_of::<T>() == 4 && I::LEVEL != Features::BASELINE {
                            transpose_8x8_words(from.cast(), t.pitch, to.cast(), t.to_pitch);
                            continue;
                        }
                        if size_of::<T>() == 2 {
                            transpose_8x8_shorts(from.cast(), t.pitch, to.cast(), t.to_pitch);
                            continue;
                        }
                    }
                    for c in 0..w as isize {
                        for r in 0..h as isize {
                            *to.offset(c * t.to_pitch + r) = *from.offset(r * t.pitch + c);
                        }
                    }
                }
            }
        }
    }
}

/// Transposes eight rows of eight elements of 16 bits.
///
/// # Safety
/// The elements exist, and there is room for them.
#[cfg(all(target_arch = "x86_64", not(portable)))]
#[inline(always)]
unsafe fn transpose_8x8_shorts(from: *const u16, pitch: isize, to: *mut u16, to_pitch: isize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's; every such processor has SSE2.
    unsafe {
        let mut rows: [__m128i; 8] =
            std::array::from_fn(|i| _mm_loadu_si128(from.offset(i as isize * pitch).cast()));
        // Each step interleaves rows with a stride of four.
        for _ in 0..3 {
            let [a, b, c, d, e, f, g, h] = rows;
            let pair = |a, b| [_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)];
            let [[a, b], [c, d], [e, f], [g, h]] = [pair(a, e), pair(b, f), pair(c, g), pair(d, h)];
            rows = [a, b, c, d, e, f, g, h];
        }
        for (i, row) in rows.into_iter().enumerate() {
            _mm_storeu_si128(to.offset(i as isize * to_pitch).cast(), row);
        }
    }
}

/// Transposes eight rows of eight elements of 32 bits.
///
/// # Safety
/// The elements exist, and there is room for them; the processor has AVX2.
#[cfg(all(target_arch = "x86_64", not(portable)))]
#[inline(always)]
unsafe fn transpose_8x8_words(from: *const f32, pitch: isize, to: *mut f32, to_pitch: isize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's.
    unsafe {
        let row = |i: isize| _mm256_loadu_ps(from.offset(i * pitch));
        let pair = |i: isize| {
            let (a, b) = (row(i), row(i + 1));
            (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b))
        };
        let four = |i: isize| {
            let ((a, b), (c, d)) = (pair(i), pair(i + 2));
            [
                _mm256_shuffle_ps::<0x44>(a, c),
                _mm256_shuffle_ps::<0xEE>(a, c),
                _mm256_shuffle_ps::<0x44>(b, d),
                _mm256_shuffle_ps::<0xEE>(b, d),
            ]
        };
        let (upper, lower) = (four(0), four(4));
        for (i, (a, b)) in upper.into_iter().zip(lower).enumerate() {
            let i = i as isize;
            let (low, high) = (
                _mm256_permute2f128_ps::<0x20>(a, b),
                _mm256_permute2f128_ps::<0x31>(a, b),
            );
            _mm256_storeu_ps(to.offset(i * to_pitch), low);
            _mm256_storeu_ps(to.offset((i + 4) * to_pitch), high);
        }
    }
}
