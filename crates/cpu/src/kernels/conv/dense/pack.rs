//! Weights in panels: for each group, a row per tap and input channel holds some output channels side by side.

use super::Conv;
use super::blocking::Blocking;
use crate::kernels::matmul::split;
use crate::kernels::pack::are_finite;
use kiln_kernel::affine::ceil;
use kiln_kernel::bugs::bug;
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
        weights: View<u8>,
        to: ViewMut<T>,
        parallel: bool,
    ) {
        let (all_taps, panel, words) = (blocking.taps.len() as i64, blocking.panel, blocking.words);
        let (terms, count) = (blocking.terms, self.terms.count());
        let (is_input, dtype) = (self.role == ConvRole::Input, self.read_dtype(1));
        let (packer, elements) = (self.packer(1), self.elements(1));
        let size = dtype.size() as i64;
        // A filter is contiguous: the taps of some channels are transposed together.
        let channels = (ROWS / all_taps.max(1)).clamp(1, terms.max(1));
        let channels = ceil(channels, count) * count;
        let finite = AtomicBool::new(true);
        let (items, work) = (
            blocking.groups * blocking.panels,
            blocking.panel_rows() * panel,
        );
        split(items, work, parallel, |from, until| {
            let mut rows = vec![T::ZERO; (channels * all_taps * panel) as usize];
            let mut all_finite = true;
            for p in from..until {
                rows.fill(T::ZERO);
                let rows = ViewMut::of(&mut rows).bytes();
                let (group, first) = (p / blocking.panels, p % blocking.panels * panel);
                let columns = panel.min(blocking.columns - first);
                let initial_row = to.shift(p * blocking.panel_rows() * panel);
                let to = initial_row.shift(i64::from(blocking.has_initial_row) * panel);
                for c in (0..terms).step_by(channels as usize) {
                    let some = channels.min(terms - c);
                    // In a gradient of images, filters of neighbouring columns follow each other.
                    let (parts, taps, pitch) = match is_input {
                        true => (some, all_taps, all_taps),
                        false => (1, some * all_taps, terms * all_taps),
                    };
                    for part in 0..parts {
                        let filter = match is_input {
                            true => (group * terms + c + part) * blocking.columns + first,
                            false => (group * blocking.columns + first) * terms + c,
                        };
                        let from = weights.shift(filter * all_taps * size);
                        let to = (rows.shift(part * taps * panel * size), [panel, 1]);
                        elements.pack((from, [1, pitch]), (taps, columns), to);
                    }
                    for (tap, place) in (0..).zip(&blocking.taps).filter(|(_, place)| **place >= 0)
                    {
                        let tap = bug("weights lie a tap further", tap, |tap| (tap + 1) % all_taps);
                        let from = (*rows.shift(tap * panel * size), [all_taps * panel, 1]);
                        let to = to.shift((place * words + c / count) * panel).bytes();
                        packer.pack(from, (some, panel), (to, [panel, 1]));
                    }
                    all_finite &= !is_input || are_finite(dtype, *rows, some * all_taps * panel);
                }
                if blocking.has_initial_row {
                    let sizes = (blocking.panel_rows() - 1, panel);
                    initial_row.fill(0, panel, T::ZERO);
                    self.terms
                        .add_to_initial_row(*to.bytes(), sizes, initial_row.cast());
                }
            }
            finite.fetch_and(all_finite, Ordering::Relaxed);
        });
        let flag = if finite.into_inner() { 0 } else { u8::MAX };
        let size = size_of::<T>() as i64;
        to.bytes().fill((blocking.packed() - 1) * size, size, flag);
    }
}
