//! Weights in panels: for each group, a row per tap and input channel holds some output channels side by side.

use super::Conv;
use super::blocking::Blocking;
use crate::kernels::matmul::{Args, split};
use crate::kernels::terms::put;
use kiln_base::DType;
use kiln_kernel::bugs::bug;
use kiln_kernel::simd::compiled;
use kiln_kernel::simd::convert::{F16, Mem};
use kiln_kernel::simd::transpose::{Transpose, TransposeKernel};
use kiln_kernel::sums::Lane;
use kiln_plan::ConvRole;
use std::sync::atomic::{AtomicBool, Ordering};

/// The rows that are transposed at a time.
const ROWS: i64 = 256;

impl Conv {
    /// Packs the weights. A flag after them is zero if all are finite.
    ///
    /// # Safety
    /// As [`Conv::pack`].
    pub(in crate::kernels::conv) unsafe fn pack_dense<T: Lane>(
        &self,
        blocking: &Blocking,
        weights: *const T,
        to: *mut T,
        parallel: bool,
    ) {
        let (taps, panel, sums) = (blocking.taps.len() as i64, blocking.panel, blocking.sums);
        let terms = blocking.terms;
        let is_input = self.role == ConvRole::Input;
        // The contiguous part of a filter: taps of some channels.
        let channels = if is_input {
            1
        } else {
            (ROWS / taps.max(1)).clamp(1, terms.max(1))
        };
        let pair = [weights.cast_mut().cast::<u8>(), to.cast()];
        let pair = Args(&pair);
        let finite = AtomicBool::new(true);
        split(
            blocking.groups * blocking.panels,
            blocking.panel_rows() * panel,
            parallel,
            |from, until| {
                let pair = &pair;
                let (weights, to) = (pair.0[0].cast::<T>(), pair.0[1].cast::<T>());
                let mut rows = vec![T::ZERO; (channels * taps * panel) as usize];
                let mut all = true;
                for p in from..until {
                    let (group, first) = (p / blocking.panels, p % blocking.panels * panel);
                    let columns = panel.min(blocking.columns - first);
                    let starts = to.wrapping_offset((p * blocking.panel_rows() * panel) as isize);
                    let to = starts.wrapping_offset((i64::from(blocking.starts) * panel) as isize);
                    if blocking.starts {
                        // SAFETY: each panel has a place of its own.
                        unsafe { starts.write_bytes(0, panel as usize) };
                    }
                    for c in (0..terms).step_by(channels as usize) {
                        let count = channels.min(terms - c) * taps;
                        let (at, pitch) = match is_input {
                            true => ((group * terms + c) * blocking.columns + first, taps),
                            false => ((group * blocking.columns + first) * terms + c, terms * taps),
                        };
                        // SAFETY: linking checked the weights' length; each panel has a place of its own.
                        unsafe {
                            compiled::<TransposeKernel<T>, _>(self.level)(Transpose {
                                from: weights.offset((at * taps) as isize),
                                pitch: pitch as isize,
                                rows: columns as usize,
                                columns: count as usize,
                                to: rows.as_mut_ptr(),
                                to_pitch: panel as isize,
                            });
                            for row in 0..count {
                                let from = rows.as_ptr().offset((row * panel) as isize);
                                let tap = bug("weights lie a tap further", row, |row| row + 1);
                                let tap = blocking.taps[(tap % taps) as usize];
                                if tap < 0 {
                                    continue;
                                }
                                if blocking.starts {
                                    self.put_starts(from.cast(), starts.cast(), panel);
                                }
                                let term = c + row / taps;
                                let (place, which) =
                                    (term / self.terms.count(), term % self.terms.count());
                                let to = to.offset(((tap * sums + place) * panel) as isize);
                                match self.terms.are_grouped() {
                                    true => put_terms(
                                        self.terms.instruction().terms[1],
                                        from.cast(),
                                        to.cast(),
                                        which,
                                        panel,
                                    ),
                                    false => {
                                        std::ptr::copy_nonoverlapping(from, to, panel as usize)
                                    }
                                }
                            }
                        }
                        if is_input {
                            all &= rows[..(count * panel) as usize]
                                .iter()
                                .all(|w| w.is_finite());
                        }
                    }
                    rows.fill(T::ZERO);
                }
                finite.fetch_and(all, Ordering::Relaxed);
            },
        );
        let flag = if finite.into_inner() { 0 } else { u8::MAX };
        // SAFETY: there is room for the flag.
        unsafe {
            to.offset(blocking.packed() as isize - 1)
                .write_bytes(flag, 1)
        };
    }

    /// Adds to the initial values of accumulators the contributions of some terms, which were widened to words.
    ///
    /// # Safety
    /// There are `count` of both.
    unsafe fn put_starts(&self, terms: *const i32, to: *mut i32, count: i64) {
        for i in 0..count as usize {
            // SAFETY: the caller's.
            unsafe {
                let start = self.terms.start(*terms.add(i));
                *to.add(i) = (*to.add(i)).wrapping_add(start);
            }
        }
    }
}

/// Puts one more term of a dtype, given as widened words, into each of some words. Lower positions are put first.
///
/// # Safety
/// There are `count` of both.
unsafe fn put_terms(dtype: DType, from: *const u32, to: *mut u32, which: i64, count: i64) {
    let size = 8 * dtype.size() as i64;
    let (bits, words) = (size * which, (to, count));
    // SAFETY: the caller's.
    unsafe {
        match dtype {
            DType::BF16 => put(from, bits, words, |x| x >> 16),
            DType::F16 => put(from, bits, words, |x| F16::store(f32::from_bits(x)).into()),
            _ => put(from, bits, words, |x| x & ((1 << size) - 1)),
        }
    }
}
