//! The result of a convolution as sums in register tiles: some output channels by some vectors of positions,
//! over all input channels and taps, read from a padded copy of image rows.

use super::padded::fill;
use super::{COLUMN_ELEMENTS, Conv, LEAST_BLOCKS};
use crate::error::Result;
use crate::kernels::matmul::{Made, Work, run_blocks};
use crate::memory::{Storage, room};
use crate::simd::{Isa, Kernel, compiled};
use crate::sums::{Lane, ROWS, RegisterSums, SLACK, Sums, rows_of};
use crate::tile::Failures;
use crate::tile::affine::ceil;
use kiln_plan::Algorithm;
use kiln_plan::cost::geometry::Padded;
use std::marker::PhantomData;

/// Elements of several depthwise channels that pass through an epilogue together.
const CHUNK: i64 = 1 << 13;

/// Positions that fill vectors well: rows are not cut below, only so that threads have something to share.
const LEAST_POSITIONS: i64 = 192;

/// What a thread keeps from block to block.
#[derive(Default)]
struct Scratch {
    /// The padded copy, and whose it is: image and group, depth, first row.
    padded: Option<Storage>,
    holds: Option<(i64, i64, i64)>,
    made: Made,
    /// Raw results at their positions.
    flat: Option<Storage>,
}

/// Copies of the rows of some channels.
struct Fill<'a, T> {
    conv: &'a Conv,
    padded: &'a Padded,
    /// Channels, so far apart.
    x: *const T,
    apart: i64,
    channels: i64,
    /// Depth, first row, rows.
    part: (i64, i64, i64),
    dst: *mut T,
}

struct FillPadded<T>(PhantomData<T>);
impl<T: Lane> Kernel<Fill<'_, T>> for FillPadded<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(f: Fill<'_, T>) {
        let g = &f.conv.geometry;
        let pitch = f.padded.channel(g, f.part.2);
        for c in 0..f.channels {
            // SAFETY: the caller's.
            unsafe {
                let x = f.x.offset((c * f.apart) as isize);
                fill(f.padded, g, x, f.part, f.dst.offset((c * pitch) as isize));
            }
        }
    }
}

/// How a direct or depthwise convolution is cut; it follows from the shapes alone.
#[derive(Debug)]
pub(super) struct Cut {
    padded: Padded,
    /// Whether positions are those of the images themselves, so that only the last ones are copied, which
    /// do not fill a vector.
    in_place: bool,
    /// Result rows of a block, and channels.
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
        let channels = if c.algorithm == Algorithm::Depthwise {
            // Channels that pass through an epilogue together.
            (CHUNK / g.outputs()).clamp(1, c.groups)
        } else {
            // Channels are cut where rows alone give threads too little to share; each such block
            // copies its rows again.
            let blocks = others * ceil(height, rows);
            let tile = rows_of(c.level);
            let parts = (LEAST_BLOCKS / blocks).clamp(1, ceil(c.cout, tile));
            ceil(ceil(c.cout, parts), tile) * tile
        };
        Some(Cut {
            in_place: g.is_pointwise() && c.made.is_none(),
            taps: padded.taps(g, rows),
            padded,
            rows,
            channels,
        })
    }

    /// Elements of the copies of a thread and of its raw results.
    pub(super) fn workspace(&self, c: &Conv) -> i64 {
        let depthwise = c.algorithm == Algorithm::Depthwise;
        let (channels, rows) = if depthwise { (1, 1) } else { (c.cin, ROWS) };
        let pitch = match self.in_place && !depthwise {
            true => SLACK,
            false => self.padded.channel(&c.geometry, self.rows),
        };
        let positions = self.padded.positions(&c.geometry, self.rows);
        channels * pitch + SLACK + rows * (positions + SLACK)
    }
}

/// Some output channels over some rows.
struct Block {
    image: i64,
    group: i64,
    depth: i64,
    row: i64,
    rows: i64,
    channel: i64,
    channels: i64,
}

impl Conv {
    /// Runs a convolution by [`Algorithm::Direct`].
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn direct<T: Lane>(
        &self,
        args: &[*mut u8],
        cut: &Cut,
        parallel: bool,
        failures: &Failures,
    ) {
        let g = &self.geometry;
        let [deep, height, width] = g.axes.map(|a| a.output);
        let across = ceil(height, cut.rows);
        let down = ceil(self.cout, cut.channels);
        let items = self.batch * self.groups * deep * across * down;
        let cost = cut.channels * self.cin * g.kernels() * cut.rows * width;
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (items, cost.max(1)),
            launch,
            |i, args, scratch, work| unsafe {
                let (channel, row) = (i % down * cut.channels, i / down % across * cut.rows);
                let plane = i / (down * across);
                let image = plane / deep;
                let block = Block {
                    image: image / self.groups,
                    group: image % self.groups,
                    depth: plane % deep,
                    row,
                    rows: cut.rows.min(height - row),
                    channel,
                    channels: cut.channels.min(self.cout - channel),
                };
                self.direct_block::<T>(args, cut, &block, scratch, work)
            },
        );
    }

    unsafe fn direct_block<T: Lane>(
        &self,
        args: &[*mut u8],
        cut: &Cut,
        b: &Block,
        scratch: &mut Scratch,
        work: &mut Work,
    ) -> Result<()> {
        let g = &self.geometry;
        let image = b.image * self.groups + b.group;
        let x = self.operand::<T>(args, 0, image * self.cin * g.inputs());
        let row = self.row_at(b.depth, b.row);
        let positions = cut.padded.positions(g, b.rows);
        // Positions up to here are read in place, the others in the copy.
        let (whole, pitch) = match cut.in_place {
            true => (positions / SLACK * SLACK, SLACK),
            false => (0, cut.padded.channel(g, cut.rows)),
        };
        let copy = room::<T>(&mut scratch.padded, self.cin * pitch + SLACK)?;
        let holds = Some((image, b.depth, b.row));
        if scratch.holds != holds {
            // SAFETY: linking checked the operand's length; the copy has room for all channels.
            unsafe {
                match cut.in_place {
                    true => self.copy_rest(x, row + whole, positions - whole, copy),
                    false => {
                        let part = (b.depth, b.row, cut.rows);
                        let channels = (image * self.cin, self.cin);
                        let reach = cut.padded.reach(g, part);
                        let made = &mut scratch.made;
                        let (x, apart) =
                            self.channels_at(args, channels, reach, made, work.failures)?;
                        compiled::<FillPadded<T>, _>(self.level)(Fill {
                            conv: self,
                            padded: &cut.padded,
                            x,
                            apart,
                            channels: self.cin,
                            part,
                            dst: copy,
                        });
                    }
                }
            }
            scratch.holds = holds;
        }
        let flat_pitch = positions + SLACK;
        let flat = room::<T>(&mut scratch.flat, ROWS * flat_pitch)?;
        let width = b.rows * g.axes[2].output;
        let tile = rows_of(self.level);
        for channel in (0..b.channels).step_by(tile as usize) {
            let rows = tile.min(b.channels - channel);
            let sums = |x: *const T, x_pitch: i64, from: i64, to: i64| Sums {
                x,
                x_pitch: x_pitch as isize,
                channels: self.cin as isize,
                taps: &cut.taps,
                weights: self.weights_of(args, b.group * self.cout + b.channel + channel),
                weight_row: (self.cin * g.kernels()) as isize,
                weight_step: 1,
                rows: rows as usize,
                positions: (to - from) as usize,
                dst: flat.wrapping_offset(from as isize),
                pitch: flat_pitch as usize,
            };
            let first = image * self.cout + b.channel + channel;
            let first = first * g.outputs() + row;
            let (dst, to) = match self.epilogue {
                // What follows takes rows side by side, in their place.
                Some(_) => (flat, flat_pitch),
                None => (self.result_at::<T>(args, first), g.outputs()),
            };
            // SAFETY: linking checked the buffers' lengths against the geometry; the copy has slack for the
            // lanes behind the last position, the raw results room for whole vectors.
            unsafe {
                let run = compiled::<RegisterSums<T>, _>(self.level);
                if whole > 0 {
                    run(sums(x.offset(row as isize), g.inputs(), 0, whole));
                }
                run(sums(copy, pitch, whole, positions));
                self.close_gaps((flat, flat_pitch), (dst, to), cut, (rows, b.rows));
                work.finish((dst, to), first, (rows, g.outputs()), width);
            }
        }
        Ok(())
    }

    /// The weights of an output channel.
    fn weights_of<T>(&self, args: &[*mut u8], channel: i64) -> *const T {
        self.operand(args, 1, channel * self.cin * self.geometry.kernels())
    }

    /// Copies some elements of every channel, fewer than the slack.
    ///
    /// # Safety
    /// They exist; `to` has [`SLACK`] elements a channel.
    unsafe fn copy_rest<T: Lane>(&self, x: *const T, from: i64, count: i64, to: *mut T) {
        for c in 0..self.cin {
            // SAFETY: the caller's.
            unsafe {
                let from = x.offset((c * self.geometry.inputs() + from) as isize);
                let to = to.offset((c * SLACK) as isize);
                std::ptr::copy_nonoverlapping(from, to, count as usize);
            }
        }
    }

    /// The offset of a result row within its channel.
    fn row_at(&self, depth: i64, row: i64) -> i64 {
        let [_, height, width] = &self.geometry.axes;
        (depth * height.output + row) * width.output
    }

    /// The address of an element of the result.
    pub(super) fn result_at<T>(&self, args: &[*mut u8], at: i64) -> *mut T {
        args[self.out].cast::<T>().wrapping_offset(at as isize)
    }

    /// Moves result rows from their positions to where they lie side by side, channel by channel.
    ///
    /// # Safety
    /// Both sides have the rows; where they overlap, they begin at the same place.
    unsafe fn close_gaps<T: Lane>(
        &self,
        (from, from_pitch): (*const T, i64),
        (to, to_pitch): (*mut T, i64),
        cut: &Cut,
        (channels, rows): (i64, i64),
    ) {
        let width = self.geometry.axes[2].output;
        // Without gaps a channel is one row.
        let (width, rows) = match cut.padded.width == width {
            true => (width * rows, 1),
            false => (width, rows),
        };
        for c in 0..channels {
            for r in 0..rows {
                // SAFETY: the caller's; a row never moves backwards past one that is still to move.
                unsafe {
                    let from = from.offset((c * from_pitch + r * cut.padded.width) as isize);
                    let to = to.offset((c * to_pitch + r * width) as isize);
                    std::ptr::copy(from, to, width as usize);
                }
            }
        }
    }

    /// Runs a convolution by [`Algorithm::Depthwise`]: some channels of an image a block.
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
        // SAFETY: as for a direct block.
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
                        apart: 0,
                        channels: 1,
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
                    self.close_gaps((flat, 0), (to, 0), cut, (1, rows));
                }
            }
            work.finish((dst, all), first * all, (channels, all), all);
        }
        Ok(())
    }
}
