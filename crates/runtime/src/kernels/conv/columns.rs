//! The loops of a convolution: gathering columns, and sums over taps.

use crate::simd::{Isa, Kernel};
use crate::sums::Lane;
use kiln_plan::cost::geometry::{Axis, Geometry};
use std::marker::PhantomData;

/// What to gather: `count` output positions from `from` on, of every channel and tap. Adding goes the
/// other way, from `dst` to `x`.
pub(super) struct Fill<'a, T> {
    pub geometry: &'a Geometry,
    /// Channels, so far apart.
    pub x: *const T,
    pub apart: i64,
    pub cin: i64,
    pub from: i64,
    pub count: i64,
    /// Distance between two rows of `dst`.
    pub pitch: i64,
    /// `[cin, taps, count]`, rows `pitch` apart.
    pub dst: *mut T,
}

/// Gathers columns.
pub(super) struct FillColumns<T>(PhantomData<T>);
impl<T: Lane> Kernel<Fill<'_, T>> for FillColumns<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(f: Fill<'_, T>) {
        let width = &f.geometry.axes[2];
        let part = (f.from, f.count, f.pitch);
        walk(f.geometry, (f.cin, f.apart), part, |run, at| {
            // SAFETY: the run lies within its column; what it reads within the input, by `walk`.
            unsafe {
                let row = run.row.map(|r| f.x.offset(r as isize));
                let dst = f.dst.offset(at as isize);
                row_run(dst, row, width, run.tap, run.outputs, run.inside);
            }
        });
    }
}

/// Adds columns, laid out as [`FillColumns`] gathers them, to where it would gather them from.
pub(super) struct AddColumns<T>(PhantomData<T>);
impl<T: Lane> Kernel<Fill<'_, T>> for AddColumns<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(f: Fill<'_, T>) {
        let width = &f.geometry.axes[2];
        let part = (f.from, f.count, f.pitch);
        walk(f.geometry, (f.cin, f.apart), part, |run, at| {
            let (Some(row), (low, high)) = (run.row, run.inside) else {
                return;
            };
            if low == high {
                return;
            }
            // SAFETY: the run lies within its column; what it adds to within the input, by `walk`.
            unsafe {
                let column = f.dst.offset((at + low - run.outputs.0) as isize);
                let to =
                    f.x.cast_mut()
                        .offset((row + width.source(low, run.tap)) as isize);
                let n = (high - low) as usize;
                if width.stride == 1 {
                    for i in 0..n {
                        *to.add(i) = *to.add(i) + *column.add(i);
                    }
                } else {
                    for i in 0..n {
                        let to = to.add(i * width.stride as usize);
                        *to = *to + *column.add(i);
                    }
                }
            }
        });
    }
}

/// A run of columns: outputs of one row at one tap.
struct Run {
    /// Offset of the input row that is read, if it is not padding.
    row: Option<i64>,
    /// The tap along the width.
    tap: i64,
    /// The outputs, from and to.
    outputs: (i64, i64),
    /// Those of them that read inside the row.
    inside: (i64, i64),
}

/// Walks over `count` columns from `from` on of every channel and tap, in runs: gives each with the
/// offset of its first element among columns `[cin, taps, count]` whose rows are `pitch` apart.
#[inline(always)]
fn walk(
    g: &Geometry,
    (cin, apart): (i64, i64),
    (from, count, pitch): (i64, i64, i64),
    mut each: impl FnMut(&Run, i64),
) {
    let [depth, height, width] = &g.axes;
    let mut row_start = 0;
    let (d, h) = g.row_of(from);
    let first = (d, h, from - (d * height.output + h) * width.output);
    for c in 0..cin {
        let channel = c * apart;
        for kd in 0..depth.kernel {
            for kh in 0..height.kernel {
                for kw in 0..width.kernel {
                    // Runs are short: no division in their loop.
                    let inside = width.inside(kw * width.dilation, 0, width.output);
                    let mut left = count;
                    let mut at = row_start;
                    row_start += pitch;
                    let (mut d, mut h, mut w) = first;
                    while left > 0 {
                        let len = (width.output - w).min(left);
                        let row = g.row((d, h), (kd, kh)).map(|r| channel + r);
                        let low = inside.0.clamp(w, w + len);
                        let inside = match row {
                            Some(_) => (low, inside.1.clamp(low, w + len)),
                            None => (w, w),
                        };
                        let run = Run {
                            row,
                            tap: kw,
                            outputs: (w, w + len),
                            inside,
                        };
                        each(&run, at);
                        at += len;
                        left -= len;
                        w = 0;
                        h += 1;
                        if h == height.output {
                            (d, h) = (d + 1, 0);
                        }
                    }
                }
            }
        }
    }
}

/// Writes tap `kw` of the outputs `from..to` of one row, of which `low..high` read inside the input.
///
/// # Safety
/// `dst` has room for the outputs; `row` is a whole input row; `low..high` is what `inside` gives.
#[inline(always)]
unsafe fn row_run<T: Lane>(
    dst: *mut T,
    row: Option<*const T>,
    width: &Axis,
    kw: i64,
    (from, to): (i64, i64),
    (low, high): (i64, i64),
) {
    // SAFETY: the caller's; `inside` keeps the reads within the row.
    unsafe {
        for i in from..low {
            *dst.add((i - from) as usize) = T::ZERO;
        }
        for i in high..to {
            *dst.add((i - from) as usize) = T::ZERO;
        }
        let Some(row) = row.filter(|_| low < high) else {
            return;
        };
        let (dst, n) = (dst.add((low - from) as usize), (high - low) as usize);
        let source = row.offset(width.source(low, kw) as isize);
        if width.stride == 1 {
            for i in 0..n {
                *dst.add(i) = *source.add(i);
            }
        } else {
            for i in 0..n {
                *dst.add(i) = *source.add(i * width.stride as usize);
            }
        }
    }
}
