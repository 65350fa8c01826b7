//! Copies of image rows with their padding, in which every tap reads the results' positions side by side.
//!
//! A result row is `Wp` positions apart from the next, so the position of result (h, w) is `h · Wp + w`, and
//! tap k reads it at that position plus an offset of its own. Where the filter steps by s > 1, rows and
//! columns are taken apart by their remainder mod s (phases), each of which is stepped through by 1. The
//! zeros behind a row are those in front of the next.

use super::columns::{Axis, Geometry};
use crate::matmul::Number;

/// The layout of the copy of one channel: `[kernel depth, row phases, column phases]` planes.
#[derive(Debug)]
pub(super) struct Padded {
    /// Distance of two result rows, and of two rows of a plane.
    pub width: i64,
    /// Elements of a row, some of which it shares with the next.
    row: i64,
    /// Rows of a plane beyond those of the result.
    halo: i64,
    /// Phases of rows and columns.
    phases: (i64, i64),
}

/// The phases of an axis that taps read, and the largest step within one.
fn phases(a: &Axis) -> (i64, i64) {
    let taps = || (0..a.kernel).map(|k| k * a.dilation);
    let phases = taps().map(|t| t % a.stride).max().unwrap_or(0) + 1;
    (phases, taps().map(|t| t / a.stride).max().unwrap_or(0))
}

impl Padded {
    /// None if the copies of `channels` channels would be too large to index.
    pub(super) fn new(g: &Geometry, channels: i64) -> Option<Padded> {
        let [_, height, width] = &g.axes;
        let ((row_phases, halo), (columns, reach)) = (phases(height), phases(width));
        let row = width.output + reach;
        let zeros = (0..columns).map(|p| {
            let (low, high) = width.inside(p, 0, row);
            low.min(row - high)
        });
        let planes = [g.axes[0].kernel, row_phases, columns];
        let sizes = planes
            .into_iter()
            .chain([channels, height.output + halo, row]);
        let mut sizes = sizes.map(i128::from);
        if sizes.try_fold(1, i128::checked_mul)? >= 1 << 46 {
            return None;
        }
        Some(Padded {
            width: row - zeros.min().unwrap_or(0).min(reach),
            row,
            halo,
            phases: (row_phases, columns),
        })
    }

    /// Elements of one plane that holds what some result rows need.
    fn plane(&self, rows: i64) -> i64 {
        (rows + self.halo - 1) * self.width + self.row
    }

    /// Elements of one channel.
    pub(super) fn channel(&self, g: &Geometry, rows: i64) -> i64 {
        g.axes[0].kernel * self.phases.0 * self.phases.1 * self.plane(rows)
    }

    /// Where each tap reads, from the position of its result on.
    pub(super) fn taps(&self, g: &Geometry, rows: i64) -> Vec<isize> {
        let [depth, height, width] = &g.axes;
        let mut taps = Vec::with_capacity(g.kernels() as usize);
        for kd in 0..depth.kernel {
            for kh in (0..height.kernel).map(|k| k * height.dilation) {
                for kw in (0..width.kernel).map(|k| k * width.dilation) {
                    let phase = (kd * self.phases.0 + kh % height.stride) * self.phases.1;
                    let plane = (phase + kw % width.stride) * self.plane(rows);
                    let at = plane + kh / height.stride * self.width + kw / width.stride;
                    taps.push(at as isize);
                }
            }
        }
        taps
    }

    /// Positions of some result rows, the gaps between them included.
    pub(super) fn positions(&self, g: &Geometry, rows: i64) -> i64 {
        (rows - 1) * self.width + g.axes[2].output
    }

    /// From where to where in its channel [`Padded::fill`] reads.
    pub(super) fn reach(&self, g: &Geometry, (d, from, rows): (i64, i64, i64)) -> (i64, i64) {
        let [depth, height, _] = &g.axes;
        let planes = (depth.source(d, 0), depth.source(d, depth.kernel - 1) + 1);
        let first = from * height.stride - height.padding;
        let rows = (rows + self.halo - 1) * height.stride + self.phases.0;
        g.rows_between(planes, (first, first + rows))
    }

    /// Copies what the result rows `from..from + rows` at depth `d` need of one channel.
    ///
    /// # Safety
    /// `x` is the whole channel; `dst` has room for [`Padded::channel`] elements.
    #[inline(always)]
    pub(super) unsafe fn fill<T: Number>(
        &self,
        g: &Geometry,
        x: *const T,
        (d, from, rows): (i64, i64, i64),
        mut dst: *mut T,
    ) {
        let [depth, height, width] = &g.axes;
        let within = |y: i64, a: &Axis| (0..a.input).contains(&y);
        for kd in 0..depth.kernel {
            let z = d * depth.stride + kd * depth.dilation - depth.padding;
            for row_phase in 0..self.phases.0 {
                for phase in 0..self.phases.1 {
                    let (low, high) = width.inside(phase, 0, self.row);
                    let first = phase - width.padding;
                    for j in 0..rows + self.halo {
                        let y = (from + j) * height.stride + row_phase - height.padding;
                        // SAFETY: rows end where the plane does at the latest; `inside` keeps the reads
                        // within the input row.
                        unsafe {
                            let to = dst.offset((j * self.width) as isize);
                            if !within(z, depth) || !within(y, height) || low == high {
                                (0..self.row).for_each(|i| *to.offset(i as isize) = T::ZERO);
                                continue;
                            }
                            (0..low).for_each(|i| *to.offset(i as isize) = T::ZERO);
                            (high..self.row).for_each(|i| *to.offset(i as isize) = T::ZERO);
                            let row = (z * height.input + y) * width.input;
                            let from = x.offset((row + low * width.stride + first) as isize);
                            let (to, n) = (to.offset(low as isize), (high - low) as usize);
                            if width.stride == 1 {
                                for i in 0..n {
                                    *to.add(i) = *from.add(i);
                                }
                            } else {
                                for i in 0..n {
                                    *to.add(i) = *from.add(i * width.stride as usize);
                                }
                            }
                        }
                    }
                    // SAFETY: the next plane begins within the channel, or right behind it.
                    dst = unsafe { dst.offset(self.plane(rows) as isize) };
                }
            }
        }
    }
}
