//! The gradient of a convolution's weights.
//!
//! For each tap it is a product of the transposed images with the gradient of the result. M runs over taps of input
//! channels, N over output channels, and K over positions. In a depthwise convolution all channels are columns of one
//! group. Channels are split into ranges, and if these are too few, K into parts. Both depend on the shapes alone. The
//! sums of a range are transposed once, into the layout of filters.

mod dense;
mod depthwise;

use super::{Conv, MIN_BLOCKS};
use crate::kernels::matmul::{Launch, Results, add_parts};
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::transpose::transpose;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{View, ViewMut};
use kiln_kernel::work::Call;

/// The maximum number of sums of a range, unless it is one register tile. They stay in the second-level cache, where
/// they are transposed.
const SUMS: i64 = 1 << 17;
/// The maximum number of columns of a range, in whole panels; fewer columns give the epilogue longer rows.
const COLUMNS: i64 = 128;
/// The maximum number of elements of all parts.
const MAX_PARTS: i64 = 1 << 20;

/// The blocking of a gradient of weights. Sizes that the schedule leaves open follow from the shapes and the level.
pub(super) struct Blocking {
    /// The input channels of a group, their taps, and the output channels.
    groups: i64,
    cin: i64,
    pub(super) taps: i64,
    cout: i64,
    /// The channels of a range.
    pub(super) channels: i64,
    pub(super) columns: i64,
    /// The number of parts of K, and the number of blocks of positions of all parts.
    pub(super) parts: i64,
    blocks: i64,
    by: By,
}

/// The blocking, by kind of convolution.
enum By {
    Dense(dense::Blocking),
    Depthwise(depthwise::Blocking),
}

/// The extent of a range: some blocks of positions, for some channels of a group.
struct Range {
    blocks: [i64; 2],
    group: i64,
    channel: i64,
    channels: i64,
    column: i64,
    columns: i64,
}

/// The buffers that a thread reuses between ranges.
#[derive(Default)]
struct Scratch {
    sums: Option<Storage>,
    raw: Option<Storage>,
    copies: Copies,
}

#[derive(Default)]
struct Copies {
    images: Option<Storage>,
    gradients: Option<Storage>,
    bf16: Option<Storage>,
    /// The block, group and column that the copies of gradients are of.
    holds: Option<[i64; 3]>,
    taps: Vec<i64>,
}

impl Blocking {
    /// Makes the blocking for images, and a gradient of the result, that have channels first or last.
    pub(super) fn new(c: &Conv, nchw: [bool; 2]) -> Result<Blocking> {
        let taps = c.geometry.kernels();
        let (by, blocks, groups, cin, cout, tile) = match (c.cin, c.cout) {
            (1, 1) => {
                let blocking = depthwise::Blocking::new(c, nchw);
                let tile = [1, i64::from(kiln_plan::schedule::lanes(c.level, c.dtype))];
                (
                    By::Depthwise(blocking),
                    depthwise::Blocking::blocks(c),
                    1,
                    1,
                    c.groups,
                    tile,
                )
            }
            _ => {
                let blocking = dense::Blocking::new(c, nchw);
                let (blocks, tile) = (blocking.blocks(), blocking.tile());
                (By::Dense(blocking), blocks, c.groups, c.cin, c.cout, tile)
            }
        };
        let mut blocking = Blocking {
            groups,
            cin,
            taps,
            cout,
            channels: cin,
            columns: cout.min(ceil(COLUMNS, tile[1]) * tile[1]),
            parts: 1,
            blocks,
            by,
        };
        let half = |n: i64, unit: i64| ceil(ceil(n, 2), unit) * unit;
        while blocking.sums() > SUMS && blocking.channels > tile[0] {
            blocking.channels = half(blocking.channels, tile[0]);
        }
        while blocking.sums() > SUMS && blocking.columns > tile[1] {
            blocking.columns = half(blocking.columns, tile[1]);
        }
        let filters_len =
            (blocking.groups.saturating_mul(cin).saturating_mul(cout)).saturating_mul(taps);
        let part_count = ceil(MIN_BLOCKS, blocking.ranges().max(1));
        blocking.parts = part_count
            .min(MAX_PARTS / filters_len.max(1))
            .min(blocks)
            .max(1);
        while blocking.parts * blocking.ranges() < MIN_BLOCKS && blocking.channels > tile[0] {
            blocking.channels = half(blocking.channels, tile[0]);
        }
        while blocking.parts * blocking.ranges() < MIN_BLOCKS && blocking.columns > tile[1] {
            blocking.columns = half(blocking.columns, tile[1]);
        }
        if let Some([rows, columns]) = c.schedule.block.map(|block| block.map(i64::from)) {
            let round_up =
                |n: i64, unit: i64, filters_len: i64| (ceil(n, unit) * unit).min(filters_len);
            blocking.channels = round_up(ceil(rows, taps.max(1)), tile[0], cin.max(1));
            blocking.columns = round_up(columns, tile[1], cout.max(1));
        }
        if let Some(parts) = c.schedule.parts {
            blocking.parts = i64::from(parts).min(blocks).max(1);
        }
        if blocking.sums() > 0 && blocks > 0 {
            let sizes = [blocking.channels, blocking.columns];
            match &mut blocking.by {
                By::Dense(by) => by.link(c, (taps, sizes))?,
                By::Depthwise(by) => by.link(c, blocking.columns)?,
            }
        }
        Ok(blocking)
    }

    /// Returns the number of positions of a block of K, unless the convolution is depthwise.
    pub(super) fn positions(&self) -> Option<u32> {
        let By::Dense(blocking) = &self.by else {
            return None;
        };
        u32::try_from(blocking.positions()).ok()
    }

    /// Returns the rows (taps of channels) and columns of a register tile, unless the convolution is depthwise.
    pub(super) fn tile(&self) -> Option<[i64; 2]> {
        let By::Dense(blocking) = &self.by else {
            return None;
        };
        let [channels, taps] = blocking.rows;
        Some([channels * taps, blocking.panel])
    }

    /// Returns the number of sums of a range.
    fn sums(&self) -> i64 {
        (self.channels.saturating_mul(self.taps)).saturating_mul(self.columns)
    }

    /// Returns the number of ranges of all groups.
    fn ranges(&self) -> i64 {
        let ranges = ceil(self.cin, self.channels) * ceil(self.cout, self.columns);
        ranges.saturating_mul(self.groups)
    }

    /// Returns the number of elements of its workspace, on `threads` threads.
    pub(super) fn workspace(&self, c: &Conv, threads: i64) -> i64 {
        let copies = match &self.by {
            By::Dense(blocking) => threads * blocking.copied(c, self),
            By::Depthwise(blocking) => blocking.workspace(c),
        };
        let sums = match self.parts {
            1 => threads,
            parts => parts * self.ranges(),
        };
        copies + sums * self.sums()
    }

    /// Returns range number `item`, in this part of K.
    fn range(&self, item: i64, part: i64) -> Range {
        let (column_ranges, channel_ranges) =
            (ceil(self.cout, self.columns), ceil(self.cin, self.channels));
        // Neighbouring ranges are neighbours in a filter.
        let (channel, column) = (
            item % channel_ranges * self.channels,
            item / channel_ranges % column_ranges * self.columns,
        );
        let start = |part: i64| (self.blocks as i128 * part as i128 / self.parts as i128) as i64;
        Range {
            blocks: [start(part), start(part + 1)],
            group: item / channel_ranges / column_ranges,
            channel,
            channels: self.channels.min(self.cin - channel),
            column,
            columns: self.columns.min(self.cout - column),
        }
    }
}

impl Conv {
    /// Computes the gradient.
    pub(super) fn weight<T: Lane>(
        &self,
        call: &Call,
        blocking: &Blocking,
        operands: [View<u8>; 2],
    ) -> Result<()> {
        if blocking.groups * blocking.cin * blocking.taps * blocking.cout == 0 {
            return Ok(());
        }
        let (ranges, has_parts) = (blocking.ranges(), blocking.parts > 1);
        let (mut memory, mut copies) = (None, [None, None]);
        let total_len = match has_parts {
            true => blocking.parts * ranges * blocking.sums(),
            false => 0,
        };
        let sums = ViewMut::<T>::room(&mut memory, total_len)?;
        let channels_last = match &blocking.by {
            By::Dense(_) => [View::of(&[]); 2],
            By::Depthwise(by) => {
                by.bring(self, operands.map(View::cast), &mut copies, call.parallel)?
            }
        };
        let positions = self.batch * self.geometry.outputs();
        let cost = blocking
            .sums()
            .saturating_mul(ceil(positions, blocking.parts));
        let launch = Launch::new(self.epilogue.as_ref(), call);
        launch.run(
            (blocking.parts * ranges, cost.max(1)),
            |i, scratch: &mut Scratch| {
                let range = blocking.range(i % ranges, i / ranges);
                let to = match has_parts {
                    true => sums.shift(i * blocking.sums()),
                    false => ViewMut::room(&mut scratch.sums, blocking.sums())?,
                };
                let sums = (to, blocking.columns);
                if range.blocks[0] == range.blocks[1] {
                    to.fill(0, blocking.sums(), T::ZERO);
                }
                let copies = &mut scratch.copies;
                match &blocking.by {
                    By::Dense(by) => by.sum(self, operands, &range, sums, copies)?,
                    By::Depthwise(by) => by.sum(self, channels_last, &range, sums, copies)?,
                }
                match has_parts {
                    true => Ok(()),
                    false => self.put_weights(&launch, blocking, &range, sums, &mut scratch.raw),
                }
            },
        );
        if !has_parts {
            return Ok(());
        }
        launch.run((ranges, blocking.sums() * blocking.parts), |i, raw| {
            let len = blocking.sums();
            let to = sums.shift(i * len);
            add_parts(to, blocking.parts, (ranges * len, len));
            let sums = (to, blocking.columns);
            self.put_weights(&launch, blocking, &blocking.range(i, 0), sums, raw)
        });
        Ok(())
    }

    /// Transposes the sums of a range into the layout of filters, and applies the epilogue.
    fn put_weights<T: Lane>(
        &self,
        launch: &Launch,
        blocking: &Blocking,
        range: &Range,
        (sums, columns): Results<T>,
        raw: &mut Option<Storage>,
    ) -> Result<()> {
        let (rows, step) = (range.channels * blocking.taps, blocking.cin * blocking.taps);
        let first =
            (range.group * blocking.cout + range.column) * step + range.channel * blocking.taps;
        let (to, pitch) =
            launch.destination((self.out, first, step), (raw, rows * range.columns, rows))?;
        let from = (*sums, columns);
        transpose(self.level, from, (rows, range.columns), (to, pitch));
        launch.apply_epilogue((to, pitch), first, (range.columns, step), rows)
    }
}
