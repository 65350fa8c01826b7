//! Gradients of weights in register tiles of input by output channels; K runs over positions.
//!
//! Positions are processed in blocks of some lines of the result. The gradient of the result is packed into panels of
//! columns. For each line of taps, the lines of the images that it reads are copied with their padding, channels side
//! by side. In this copy the taps of the line start some positions after each other. Where copies of whole lines would
//! be larger, each tap has a copy of its own.
//!
//! For bf16, pairs of positions are multiplied. Copies are interleaved into pairs. Gradients are paired two by two. A
//! copy of images that taps share pairs each position with the next one that the filter steps to, because taps start
//! anywhere. AMX tiles need the pairs of a channel contiguous: there each tap has a transposed copy of its own.

use super::{Conv, Copies, Range};
use crate::kernels::matmul::Results;
use kiln_jit::contraction::{
    Columns, Left, Order, Output, RightSide, Rows, Tile, TileGrid, even_rows, shape,
};
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{View, ViewMut};
use kiln_plan::cost::geometry::Axis;
use kiln_plan::schedule::{lanes, max_rows};

/// The positions of a block.
const POSITIONS: i64 = 256;
/// A pitch that is a multiple of this many elements makes positions collide in few cache sets; it is padded by
/// `ROW_PADDING`.
const CONFLICTING_PITCH: i64 = 64;
const ROW_PADDING: i64 = 16;

/// The blocking of positions.
pub(super) struct Blocking {
    axes: [Axis; 3],
    batch: i64,
    /// True for channels first (NCHW): the images, and the gradient of the result.
    nchw: [bool; 2],
    /// The parts of a line, the positions of each part, and the parts in a block.
    segments: i64,
    segment: i64,
    units: i64,
    /// True if the taps of a line share a copy; and the copied positions of each part of a line.
    together: bool,
    wide: i64,
    /// True if pairs of positions are contiguous, channel by channel.
    pairs: bool,
    /// The pitch of positions in a copy of images.
    pitch: i64,
    /// The channels and taps of a register tile, and the columns of a panel.
    pub rows: [i64; 2],
    pub panel: i64,
    /// The register tiles of most blocks, and those of the others; each for the first block of a part, and for those
    /// whose sums are added to it.
    tiles: Vec<[TileGrid; 2]>,
}

/// Parts of lines that are processed together.
struct LineBlock {
    first: i64,
    count: i64,
    /// The positions of each part.
    len: i64,
}

impl Blocking {
    pub fn new(c: &Conv, nchw: [bool; 2]) -> Blocking {
        let (mut axes, mut batch) = (c.geometry.axes, c.batch);
        if c.geometry.is_pointwise() {
            // All positions are a line, of all images or of one.
            let all = c.geometry.outputs();
            let images = if nchw == [false; 2] { batch } else { 1 };
            (axes[0], axes[1]) = (Axis::ONE, Axis::ONE);
            (axes[2].input, axes[2].output) = (all * images, all * images);
            batch /= images.max(1);
        }
        let line = &axes[2];
        let lines = batch.saturating_mul(axes[0].output * axes[1].output);
        let positions = c.schedule.terms.map_or(POSITIONS, i64::from);
        let segments = ceil(line.output, positions).max(1);
        let even = if c.terms.are_grouped() { 2 } else { 1 };
        let segment = ceil(ceil(line.output, segments), even) * even;
        let segment = segment.min(line.output);
        // Fewer, where short parts were rounded up to pairs.
        let segments = ceil(line.output, segment.max(1)).max(1);
        let near = c.geometry.is_near();
        let span = if near {
            (segment - 1).max(0) * line.stride + line.span()
        } else {
            0
        };
        let by = c.terms.instruction;
        let pairs = by.has_tiles();
        let together = near
            && !pairs
            && line.kernel > 1
            && line.output % even == 0
            && 2 * span <= line.kernel * segment * line.stride;
        let across = if together { line.kernel } else { 1 };
        let lanes = i64::from(lanes(c.level, c.dtype));
        let vectors = match pairs {
            true => c.schedule.panel_columns(c.level, by, c.cout) / lanes,
            false => {
                let rows = c.cin.saturating_mul(across);
                shape((by, c.level, Some(&c.schedule)), rows, c.cout).1
            }
        };
        let most = c.schedule.rows(max_rows(c.level, by, vectors as u8));
        let channels = even_rows(c.cin, most);
        Blocking {
            batch,
            nchw,
            segments,
            segment,
            units: match segments {
                1 => (positions / segment.max(1)).clamp(1, lines.max(1)),
                _ => 1,
            },
            together,
            wide: if together { span } else { segment },
            pairs,
            pitch: 0,
            rows: [channels, even_rows(across, most / channels as u8)],
            panel: vectors * lanes,
            axes,
            tiles: Vec::new(),
        }
    }

    /// Links the register tiles for ranges of these channels and columns.
    pub fn link(&mut self, c: &Conv, (taps, [channels, columns]): (i64, [i64; 2])) -> Result<()> {
        self.pitch = channels
            + if channels % CONFLICTING_PITCH == 0 {
                ROW_PADDING
            } else {
                0
            };
        let extents = [self.across(), c.cin, c.cout];
        let order = Order {
            is_down: true,
            is_by_tile: false,
        };
        for block in [self.block(0), self.block(self.blocks() - 1)] {
            let tile = self.tile_of(c, &block, (taps, columns));
            let grid = |adds: bool| {
                let tile = Tile {
                    adds,
                    ..tile.clone()
                };
                TileGrid::new(&tile, extents, order)
            };
            self.tiles.push([grid(false)?, grid(true)?]);
        }
        Ok(())
    }

    /// Returns the number of positions of a block.
    pub fn positions(&self) -> i64 {
        self.units * self.segment
    }

    /// Returns the channels and columns of a register tile.
    pub fn tile(&self) -> [i64; 2] {
        [self.rows[0], self.panel]
    }

    /// Returns the number of parts of lines of all images.
    fn all(&self) -> i64 {
        let [deep, high, wide] = self.axes.map(|a| a.output);
        if wide == 0 {
            0
        } else {
            self.batch * deep * high * self.segments
        }
    }

    pub fn blocks(&self) -> i64 {
        ceil(self.all(), self.units)
    }

    /// Returns the number of taps of a line that share a copy.
    fn across(&self) -> i64 {
        if self.together {
            self.axes[2].kernel
        } else {
            1
        }
    }

    /// Returns the elements of a copy of images with `channels` channels.
    fn images(&self, channels: i64) -> i64 {
        match self.pairs {
            true => channels * self.pairs_apart(),
            false => self.units * self.wide * self.pitch,
        }
    }

    /// Returns the pitch of channels in a copy of pairs of positions.
    fn pairs_apart(&self) -> i64 {
        ceil(self.units * self.segment, 2) + ROW_PADDING
    }

    /// Returns the number of elements that a thread copies.
    pub fn copied(&self, c: &Conv, blocking: &super::Blocking) -> i64 {
        let images = self.images(blocking.channels);
        let bf16 = match c.terms.are_grouped() {
            true => ceil(self.bf16_elements(blocking.columns), 2),
            false => 0,
        };
        bf16 + images + self.units * self.segment * ceil(blocking.columns, self.panel) * self.panel
    }

    /// Returns the bf16 of a block's positions before they are paired: of images or gradients, and a row of zeros.
    fn bf16_elements(&self, columns: i64) -> i64 {
        let images = (self.units * self.wide + 1) * self.pitch;
        images.max((self.units * self.segment + 1) * ceil(columns, self.panel) * self.panel)
    }

    fn block(&self, at: i64) -> LineBlock {
        let first = at * self.units;
        let line = first % self.segments * self.segment;
        LineBlock {
            first,
            count: self.units.min(self.all() - first),
            len: self.segment.min(self.axes[2].output - line),
        }
    }

    /// Returns the image, depth, height and first position of a part of a line.
    fn place(&self, unit: i64) -> [i64; 4] {
        let [deep, high, _] = self.axes.map(|a| a.output);
        let line = unit / self.segments;
        let at = unit % self.segments * self.segment;
        [line / high / deep, line / high % deep, line % high, at]
    }

    /// Computes the sums of a range.
    pub fn sum<T: Lane>(
        &self,
        c: &Conv,
        [x, y]: [View<u8>; 2],
        range: &Range,
        (sums, pitch): Results<T>,
        copies: &mut Copies,
    ) -> Result<()> {
        let images = ViewMut::<T>::room(&mut copies.images, self.images(range.channels))?;
        let panels = ceil(range.columns, self.panel);
        let positions = self.units * self.segment;
        let gradients = positions * panels * self.panel;
        let gradients = ViewMut::<T>::room(&mut copies.gradients, gradients)?;
        let (images, gradients) = (images.bytes(), gradients.bytes());
        // Elements that share words are copied before they are joined.
        let grouped = c.terms.are_grouped();
        let copied = match grouped {
            true => {
                let len = self.bf16_elements(range.columns);
                [ViewMut::<u16>::room(&mut copies.bf16, len)?.bytes(); 2]
            }
            false => [images, gradients],
        };
        let [deep, high, wide] = self.axes.map(|a| a.kernel);
        let together = self.across();
        let (first, stride) = (
            self.block(0),
            self.wide * self.pitch * size_of::<T>() as i64,
        );
        for at in range.blocks[0]..range.blocks[1] {
            let block = self.block(at);
            copies.taps.clear();
            copies.taps.extend((0..block.count).map(|i| i * stride));
            let is_other = (block.count, block.len) != (first.count, first.len);
            let tiles = &self.tiles[usize::from(is_other)][usize::from(at > range.blocks[0])];
            let holds = Some([at, range.group, range.column]);
            if copies.holds != holds {
                self.copy_gradients(c, y, range, &block, copied[1]);
                if grouped {
                    self.join_gradients(c, range, &block, (*copied[1], gradients));
                }
                copies.holds = holds;
            }
            let mut panels = Columns {
                first: *gradients,
                column: self.steps(c, &block).iter().product::<i64>() * size_of::<T>() as i64,
            };
            for (d, h) in (0..deep).flat_map(|d| (0..high).map(move |h| (d, h))) {
                for w in (0..wide).step_by(together as usize) {
                    self.copy_images(c, x, range, &block, [d, h, w], copied[0]);
                    if grouped {
                        self.join_images(c, range, &block, (*copied[0], images));
                    }
                    let tap = (d * high + h) * wide + w;
                    // Tiles of a channel share its images while panels pass.
                    for channel in (0..range.channels).step_by(self.rows[0] as usize) {
                        let channels = channel..range.channels.min(channel + self.rows[0]);
                        let all = [0..self.across(), channels, 0..range.columns];
                        let out = Output::Memory(sums.shift(tap * pitch).bytes());
                        let left = Left::Rows(*images, &copies.taps);
                        tiles.compute(all, left, &mut panels, out)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the steps of K of a run of a block's positions, and the number of runs.
    fn steps(&self, c: &Conv, block: &LineBlock) -> [i64; 2] {
        let each = if c.terms.are_grouped() { 2 } else { 1 };
        // Contiguous positions are one run.
        match self.together {
            true => [ceil(block.len, each), block.count],
            false => [ceil(block.len * block.count, each), 1],
        }
    }

    /// Returns the whole register tile of a block: taps of channels by columns.
    fn tile_of(&self, c: &Conv, block: &LineBlock, (taps, columns): (i64, i64)) -> Tile {
        let size = c.dtype.size() as i64;
        let (pitch, line) = (self.pitch * size, &self.axes[2]);
        let each = if c.terms.are_grouped() { 2 } else { 1 };
        let (row, step) = match self.pairs {
            true => (self.pairs_apart() * size, size),
            false if self.together => (size, line.stride * each * pitch),
            false => (size, pitch),
        };
        let ([channels, together], [steps, runs]) = (self.rows, self.steps(c, block));
        let rows = Rows {
            count: (channels * together) as u8,
            across: channels as u8,
            left: [row, line.dilation * pitch],
            result: [taps, 1],
        };
        let right = RightSide::of_panel(self.panel * size);
        let by = (c.level, c.terms.instruction);
        Tile {
            step,
            steps: steps as u32,
            taps: runs as u32,
            out: columns * size,
            ..Tile::new(by, rows, self.panel.min(c.cout), right)
        }
    }

    /// Pairs the gradients of neighbouring positions; an unpaired last one is paired with zeros.
    fn join_gradients(
        &self,
        c: &Conv,
        range: &Range,
        block: &LineBlock,
        (from, to): (View<u8>, ViewMut<u8>),
    ) {
        let (all, panel) = (block.count * block.len, self.panel);
        let packer = c.packer(1);
        for (i, column) in (0..range.columns).step_by(panel as usize).enumerate() {
            let columns = panel.min(range.columns - column);
            let from = (from.shift(2 * column * all), [panel, 1]);
            let to = to.shift(4 * i as i64 * ceil(all, 2) * panel);
            packer.pack(from, (all, columns), (to, [panel, 1]));
        }
    }

    /// Pairs the images of positions that the filter steps to consecutively; an unpaired last one is paired with zeros.
    fn join_images(
        &self,
        c: &Conv,
        range: &Range,
        block: &LineBlock,
        (from, to): (View<u8>, ViewMut<u8>),
    ) {
        let (channels, pitch, packer) = (range.channels, self.pitch, c.packer(0));
        if self.together {
            let stride = self.axes[2].stride;
            let all = block.count * self.wide;
            // Pairs across the end of a line are never read.
            let sizes = (2 * (all - stride).max(0), channels);
            return packer.pack_words((from, [pitch, stride * pitch, 1]), sizes, (to, [pitch, 1]));
        }
        let strides = match self.pairs {
            true => [1, self.pairs_apart()],
            false => [pitch, 1],
        };
        let sizes = (block.count * block.len, channels);
        packer.pack((from, [pitch, 1]), sizes, (to, strides));
    }

    /// Packs the gradient of a block's positions into panels of columns.
    fn copy_gradients(
        &self,
        c: &Conv,
        y: View<u8>,
        range: &Range,
        block: &LineBlock,
        to: ViewMut<u8>,
    ) {
        let all = block.count * block.len;
        let (elements, size) = (c.elements(1), c.read_dtype(1).size() as i64);
        let [deep, high, wide] = self.axes.map(|a| a.output);
        let (outputs, group) = (deep * high * wide, range.group * c.cout);
        // The contiguous positions: those of a part of a line, or all.
        let (runs, len) = match self.nchw[1] {
            true => (block.count, block.len),
            false => (1, all),
        };
        for column in (0..range.columns).step_by(self.panel as usize) {
            let columns = self.panel.min(range.columns - column);
            let channel = group + range.column + column;
            for run in 0..runs {
                let [image, d, h, w] = self.place(block.first + run);
                let position = (d * high + h) * wide + w;
                let (at, [row, col]) = match self.nchw[1] {
                    true => (
                        (image * c.groups * c.cout + channel) * outputs + position,
                        [1, outputs],
                    ),
                    false => {
                        let pitch = c.groups * c.cout;
                        ((image * outputs + position) * pitch + channel, [pitch, 1])
                    }
                };
                let to = to.shift((column * all + run * len * self.panel) * size);
                let from = (y.shift(at * size), [row, col]);
                elements.pack(from, (len, columns), (to, [self.panel, 1]));
            }
        }
    }

    /// Copies the inputs that the positions of a block read at a tap, or at all taps of its line from this one on.
    fn copy_images(
        &self,
        c: &Conv,
        x: View<u8>,
        range: &Range,
        block: &LineBlock,
        [kd, kh, kw]: [i64; 3],
        to: ViewMut<u8>,
    ) {
        let (elements, size) = (c.elements(0), c.read_dtype(0).size() as i64);
        let [depth, height, width] = &self.axes;
        let inputs = depth.input * height.input * width.input;
        let (all, channel) = (c.groups * c.cin, range.group * c.cin + range.channel);
        let (channels, pitch) = (range.channels, self.pitch);
        // The strides of positions and of channels, and the stride of the copied positions.
        let [position, stride] = if self.nchw[0] { [1, inputs] } else { [all, 1] };
        let (step, count) = match self.together {
            true => (1, (block.len - 1) * width.stride + width.span()),
            false => (width.stride, block.len),
        };
        let part = if self.together { self.wide } else { count };
        for unit in 0..block.count {
            let [image, d, h, w] = self.place(block.first + unit);
            let (z, y) = (depth.source(d, kd), height.source(h, kh));
            let is_there = (0..depth.input).contains(&z) && (0..height.input).contains(&y);
            let first = width.source(w, kw);
            // The positions within the line.
            let ends = |to: i64| ceil((to - first).max(0), step).min(count);
            let (from, until) = if is_there {
                (ends(0), ends(width.input))
            } else {
                (0, 0)
            };
            let line = (z * height.input + y) * width.input + first + from * step;
            let at = image * inputs * all + channel * stride + line * position;
            let bytes = pitch * size;
            let to = to.shift(unit * part * bytes);
            to.fill(0, from * bytes, 0);
            to.fill(until * bytes, (count - until) * bytes, 0);
            let lines = (x.shift(at * size), [step * position, stride]);
            let to = (to.shift(from * bytes), [pitch, 1]);
            elements.pack(lines, (until - from, channels), to);
        }
    }
}
