//! Weights in panels: for each group, a row per tap and input channel holds some output channels side by side.

use super::Conv;
use super::blocking::Blocking;
use crate::kernels::matmul::split;
use crate::kernels::terms::put;
use kiln_base::DType;
use kiln_kernel::bugs::bug;
use kiln_kernel::simd::convert::{F16, Mem};
use kiln_kernel::simd::transpose::transpose;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{View, ViewMut};
use kiln_plan::ConvRole;
use std::sync::atomic::{AtomicBool, Ordering};

/// The rows that are transposed at a time.
const ROWS: i64 = 256;

impl Conv {
    /// Packs the weights. A flag after them is zero if all are finite.
    pub(in crate::kernels::conv) fn pack_dense<T: Lane>(
        &self,
        blocking: &Blocking,
        weights: View<T>,
        to: ViewMut<T>,
        parallel: bool,
    ) {
        let (taps, panel, words) = (blocking.taps.len() as i64, blocking.panel, blocking.words);
        let terms = blocking.terms;
        let is_input = self.role == ConvRole::Input;
        // A filter is contiguous: the taps of some channels are transposed together.
        let channels = if is_input {
            1
        } else {
            (ROWS / taps.max(1)).clamp(1, terms.max(1))
        };
        let finite = AtomicBool::new(true);
        let (items, work) = (
            blocking.groups * blocking.panels,
            blocking.panel_rows() * panel,
        );
        split(items, work, parallel, |from, until| {
            let mut rows = vec![T::ZERO; (channels * taps * panel) as usize];
            let mut all_finite = true;
            for p in from..until {
                let (group, first) = (p / blocking.panels, p % blocking.panels * panel);
                let columns = panel.min(blocking.columns - first);
                let initial_row = to.shift(p * blocking.panel_rows() * panel);
                let to = initial_row.shift(i64::from(blocking.has_initial_row) * panel);
                if blocking.has_initial_row {
                    initial_row.fill(0, panel, T::ZERO);
                }
                for c in (0..terms).step_by(channels as usize) {
                    let count = channels.min(terms - c) * taps;
                    let (at, pitch) = match is_input {
                        true => ((group * terms + c) * blocking.columns + first, taps),
                        false => ((group * blocking.columns + first) * terms + c, terms * taps),
                    };
                    let filters = (weights.shift(at * taps), pitch);
                    let transposed = (ViewMut::of(&mut rows), panel);
                    transpose(self.level, filters, (columns, count), transposed);
                    for row in 0..count {
                        let from = &rows[(row * panel) as usize..][..panel as usize];
                        let tap = bug("weights lie a tap further", row, |row| row + 1);
                        let tap = blocking.taps[(tap % taps) as usize];
                        if tap < 0 {
                            continue;
                        }
                        if blocking.has_initial_row {
                            self.add_to_initial_row(
                                View::of(from).cast(),
                                initial_row.cast(),
                                panel,
                            );
                        }
                        let term = c + row / taps;
                        let (word, position) =
                            (term / self.terms.count(), term % self.terms.count());
                        let at = (tap * words + word) * panel;
                        match self.terms.are_grouped() {
                            true => put_terms(
                                self.terms.instruction.terms[1],
                                View::of(from).cast().slice(0, panel),
                                position,
                                to.cast().slice_mut(at, panel),
                            ),
                            false => to.copy(at, from),
                        }
                    }
                    if is_input {
                        all_finite &= rows[..(count * panel) as usize]
                            .iter()
                            .all(|w| w.is_finite());
                    }
                }
                rows.fill(T::ZERO);
            }
            finite.fetch_and(all_finite, Ordering::Relaxed);
        });
        let flag = if finite.into_inner() { 0 } else { u8::MAX };
        let size = size_of::<T>() as i64;
        to.bytes().fill((blocking.packed() - 1) * size, size, flag);
    }

    /// Adds to the initial values of accumulators the contributions of some terms, which were widened to words.
    fn add_to_initial_row(&self, terms: View<i32>, mut to: ViewMut<i32>, count: i64) {
        let to = to.slice_mut(0, count).iter_mut();
        to.zip(terms.slice(0, count))
            .for_each(|(to, term)| *to = to.wrapping_add(self.terms.start(*term)));
    }
}

/// Puts a term of a dtype, given as widened words, at a position of each word. Lower positions are put first.
fn put_terms(dtype: DType, from: &[u32], position: i64, to: &mut [u32]) {
    let size = 8 * dtype.size() as i64;
    let bits = size * position;
    match dtype {
        DType::BF16 => put(from, bits, to, |x| x >> 16),
        DType::F16 => put(from, bits, to, |x| F16::store(f32::from_bits(x)).into()),
        _ => put(from, bits, to, |x| x & ((1 << size) - 1)),
    }
}
