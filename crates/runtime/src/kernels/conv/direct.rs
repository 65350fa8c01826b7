//! The result of a convolution with a channel a group and channels first: vectors of positions, over all taps, read from
//! a padded copy of image rows.

use super::padded::fill;
use super::{COLUMN_ELEMENTS, Conv, LEAST_BLOCKS};
use crate::error::Result;
use crate::kernels::matmul::{Work, run_blocks};
use crate::memory::{Storage, room};
use crate::simd::{Isa, Kernel, compiled};
use crate::sums::{Lane, RegisterSums, SLACK, Sums};
use crate::tile::Failures;
use crate::tile::affine::ceil;
use kiln_plan::cost::geometry::Padded;
use std::marker::PhantomData;

/// Elements of several depthwise channels that pass through an epilogue together.
const CHUNK: i64 = 1 << 13;

/// Positions that fill vectors well: rows are not cut below, only so that threads have something to share.
const LEAST_POSITIONS: i64 = 192;

/// What a thread keeps from block to block.
#[derive(Default)]
struct Scratch {
    /// The padded copy.
    padded: Option<Storage>,
    /// Raw results at their positions.
    flat: Option<Storage>,
}

/// A copy of the rows of a channel.
struct Fill<'a, T> {
    conv: &'a Conv,
    padded: &'a Padded,
    x: *const T,
    /// Depth, first row, rows.
    part: (i64, i64, i64),
    dst: *mut T,
}

struct FillPadded<T>(PhantomData<T>);
impl<T: Lane> Kernel<Fill<'_, T>> for FillPadded<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(f: Fill<'_, T>) {
        // SAFETY: the caller's.
        unsafe { fill(f.padded, &f.conv.geometry, f.x, f.part, f.dst) }
    }
}

/// How it is cut; it follows from the shapes alone.
#[derive(Debug)]
pub(super) struct Cut {
    padded: Padded,
    /// Result rows of a block, and channels that pass through an epilogue together.
    rows: i64,
    channels: i64,
    taps: Vec<isize>,
}

impl Cut {
    /// None where the padding is too large for a copy. Nothing is empty.
    pub(super) fn new(c: &Conv) -> Option<Cut> {
        let g = &c.geometry;
        let padded = Padded::new(g, c.cin)?;
        let [deep, height, _] = g.axes.map(|a| a.output);
        let others = c.batch * c.groups * deep;
        let large = |rows| c.cin * padded.channel(g, rows) > COLUMN_ELEMENTS;
        let few = |rows| {
            let half = padded.positions(g, rows) / 2;
            others * ceil(height, rows) < LEAST_BLOCKS && half >= LEAST_POSITIONS
        };
        let mut rows = height;
        while rows > 1 && (large(rows) || few(rows)) {
            rows = (rows + 1) / 2;
        }
        let channels = (CHUNK / g.outputs()).clamp(1, c.groups);
        Some(Cut {
            taps: padded.taps(g, rows),
            padded,
            rows,
            channels,
        })
    }

    /// Elements of the copies of a thread and of its raw results.
    pub(super) fn workspace(&self, c: &Conv) -> i64 {
        let positions = self.padded.positions(&c.geometry, self.rows);
        self.padded.channel(&c.geometry, self.rows) + positions + 2 * SLACK
    }
}

impl Conv {
    /// The offset of a result row within its channel.
    fn row_at(&self, depth: i64, row: i64) -> i64 {
        let [_, height, width] = &self.geometry.axes;
        (depth * height.output + row) * width.output
    }

    /// The address of an element of the result.
    pub(super) fn result_at<T>(&self, args: &[*mut u8], at: i64) -> *mut T {
        args[self.out].cast::<T>().wrapping_offset(at as isize)
    }

    /// Moves rows of a result from their positions to where they lie side by side.
    ///
    /// # Safety
    /// Both sides have the rows.
    unsafe fn close_gaps<T: Lane>(&self, from: *const T, to: *mut T, cut: &Cut, rows: i64) {
        let width = self.geometry.axes[2].output;
        for r in 0..rows {
            // SAFETY: the caller's.
            unsafe {
                let from = from.offset((r * cut.padded.width) as isize);
                let to = to.offset((r * width) as isize);
                std::ptr::copy_nonoverlapping(from, to, width as usize);
            }
        }
    }

    /// Runs it: some channels of an image a block.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn depthwise<T: Lane>(
        &self,
        args: &[*mut u8],
        cut: &Cut,
        parallel: bool,
        failures: &Failures,
    ) {
        let g = &self.geometry;
        let down = ceil(self.groups, cut.channels);
        let cost = cut.channels * g.kernels() * g.outputs();
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (self.batch * down, cost.max(1)),
            launch,
            |i, args, scratch, work| unsafe {
                let group = i % down * cut.channels;
                let first = i / down * self.groups + group;
                let channels = cut.channels.min(self.groups - group);
                self.channels::<T>(args, cut, (first, group, channels), scratch, work)
            },
        );
    }

    /// Channels of an image: the first of all images', the first of its image, how many.
    unsafe fn channels<T: Lane>(
        &self,
        args: &[*mut u8],
        cut: &Cut,
        (first, group, channels): (i64, i64, i64),
        scratch: &mut Scratch,
        work: &mut Work,
    ) -> Result<()> {
        let g = &self.geometry;
        let [deep, height, _] = g.axes.map(|a| a.output);
        let pitch = cut.padded.channel(g, cut.rows);
        let x = room::<T>(&mut scratch.padded, pitch + SLACK)?;
        let flat = room::<T>(&mut scratch.flat, cut.padded.positions(g, cut.rows) + SLACK)?;
        let all = g.outputs();
        let dst = match self.epilogue {
            Some(_) => work.scratch::<T>(channels * all)?,
            None => self.result_at::<T>(args, first * all),
        };
        // SAFETY: linking checked the buffers' lengths against the geometry; the copy and the raw results have slack for
        // the lanes behind the last position.
        unsafe {
            for c in 0..channels {
                for (d, row) in (0..deep)
                    .flat_map(|d| (0..height).step_by(cut.rows as usize).map(move |r| (d, r)))
                {
                    let rows = cut.rows.min(height - row);
                    compiled::<FillPadded<T>, _>(self.level)(Fill {
                        conv: self,
                        padded: &cut.padded,
                        x: self.operand::<T>(args, 0, (first + c) * g.inputs()),
                        part: (d, row, cut.rows),
                        dst: x,
                    });
                    compiled::<RegisterSums<T>, _>(self.level)(Sums {
                        x,
                        x_pitch: 0,
                        channels: 1,
                        taps: &cut.taps,
                        weights: self.operand::<T>(args, 1, (group + c) * g.kernels()),
                        weight_row: 0,
                        weight_step: 1,
                        rows: 1,
                        positions: cut.padded.positions(g, rows) as usize,
                        dst: flat,
                        pitch: 0,
                    });
                    let to = dst.offset((c * all + self.row_at(d, row)) as isize);
                    self.close_gaps(flat, to, cut, rows);
                }
            }
            work.finish((dst, all), first * all, (channels, all), all);
        }
        Ok(())
    }
}
