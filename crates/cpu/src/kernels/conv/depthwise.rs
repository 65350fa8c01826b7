//! Depthwise convolutions: results, and gradients of images.
//!
//! The M of a register tile runs over neighbouring positions of the result, its N over channels (`contraction::Depthwise`).
//! A list has the lines of the images that a row of the result reads, with the weights of each. For a line of padding,
//! the sum of what its taps add, zeros times weights, is stored next to the weights. So only images that have to be
//! transposed are copied. A gradient of images is a convolution with flipped filters of the gradient, with zeros
//! inserted for the stride. Weights that are not finite must not meet these zeros; `dense` then accumulates without
//! them.

use super::images::CopyLayout;
use super::narrow::{Images, Weights};
use super::{Conv, MIN_BLOCKS, dense};
use crate::kernels::matmul::{Launch, Materialised};
use crate::kernels::pack::are_finite;
use kiln_jit::contraction::{
    Accesses, Columns, Left, Lines, Output, RegisterEpilogue, RightSide, Rows, Tile, TileGrid,
    even_rows, max_depthwise_rows,
};
use kiln_kernel::affine::{ceil, product};
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{View, ViewMut};
use kiln_kernel::work::Call;
use kiln_plan::ConvRole;
use kiln_plan::cost::geometry::{Axis, Geometry};
use kiln_plan::schedule::lanes;
use std::sync::Arc;

/// The bytes of the lines that a tile reads, which stay in the first-level cache for the next row of the result.
const HOT_LINES: i64 = 3 << 13;
/// The multiply-adds of a block, where there are enough.
const BLOCK_WORK: i64 = 1 << 16;
/// The cost of a multiply-add that shares no weight between channels.
const WORK: i64 = 2;

/// True if tiles of this convolution are always emitted, so that an epilogue can be emitted with them.
pub(super) fn is_near(c: &Conv) -> bool {
    let width = &c.geometry.axes[2];
    width.kernel <= 64 && width.stride <= 32 && width.dilation <= 32 && c.groups < 1 << 17
}

/// The blocking of a convolution. Sizes that the schedule leaves open follow from the shapes and the level.
pub(super) struct Blocking {
    /// The equivalent convolution with unit stride.
    geometry: Geometry,
    /// The copies of the images that are read, if images are copied.
    copies: Option<CopyLayout>,
    /// True if the result has channels first (NCHW).
    writes_nchw: bool,
    /// For a gradient of images: the blocking where weights are not finite.
    for_nonfinite: Option<Box<dense::Blocking>>,
    /// The channels, padded to whole vectors.
    panel: i64,
    /// The rows of the result and channels of a block.
    lines: i64,
    channels: i64,
    /// Positions of a register tile.
    rows: i64,
    /// The tiles of a row of the result, if there are results.
    tiles: Option<TileGrid>,
    register_epilogue: Option<Arc<RegisterEpilogue>>,
}

impl Blocking {
    /// Makes the blocking for images, and a result, that have channels first or last.
    pub(super) fn new(
        c: &Conv,
        [reads_nchw, writes_nchw]: [bool; 2],
        register_epilogue: Option<Arc<RegisterEpilogue>>,
    ) -> Result<Blocking> {
        let size = c.dtype.size() as i64;
        let lanes = i64::from(lanes(c.level, c.dtype));
        let axes = c.geometry.axes;
        let is_input = c.role == ConvRole::Input;
        let copies = CopyLayout {
            extents: axes.map(|a| if is_input { a.output } else { a.input }),
            nchw: reads_nchw,
            strides: axes.map(|a| if is_input { a.stride } else { 1 }),
        };
        let are_copied =
            reads_nchw || is_input && copies.copied_extents() != axes.map(|a| a.output);
        let geometry = match is_input {
            true => transposed(&axes, copies.copied_extents()),
            false => c.geometry,
        };
        product(&[copies.len(c)])?;
        let for_nonfinite =
            is_input.then(|| dense::Blocking::new(c, [reads_nchw, writes_nchw], None, true));
        let [depth, height, width] = &geometry.axes;
        let panel = ceil(c.groups.max(1), lanes) * lanes;
        product(&[panel, geometry.kernels() + depth.kernel * height.kernel])?;
        // As many channels as have their lines in the first-level cache, but at least two vectors.
        let read = (depth.kernel * height.kernel).saturating_mul(width.input.max(1));
        let vectors = (HOT_LINES / read / (size * lanes)).clamp(2, 64);
        let channels = match c.schedule.block_columns() {
            Some(columns) => ceil(columns, lanes).min(panel / lanes) * lanes,
            None => even_rows(panel / lanes, vectors as u8) * lanes,
        };
        let each = (width.output.max(1))
            .saturating_mul(channels)
            .saturating_mul(geometry.kernels());
        let lines = lines(c, &geometry);
        let blocks = lines.saturating_mul(ceil(c.groups, channels));
        let share = ceil(blocks.min(1 << 40), MIN_BLOCKS);
        let taps = u32::try_from(width.kernel).unwrap_or(u32::MAX);
        let most = c.schedule.rows(max_depthwise_rows(c.level, c.dtype, taps));
        let mut blocking = Blocking {
            geometry,
            copies: are_copied.then_some(copies),
            writes_nchw,
            for_nonfinite: for_nonfinite.transpose()?.map(Box::new),
            panel,
            lines: match c.schedule.block_rows() {
                Some(rows) => ceil(rows, width.output.max(1)).min(lines.max(1)),
                None => (BLOCK_WORK / each).min(share).max(1),
            },
            channels: channels.min(c.groups).max(1),
            rows: even_rows(width.output, most),
            tiles: None,
            register_epilogue,
        };
        if c.batch * geometry.outputs() * c.groups > 0 {
            blocking.tiles = Some(blocking.tiles(c, taps)?);
        }
        Ok(blocking)
    }

    /// Returns the positions and channels of a register tile, and true if the epilogue is applied there.
    pub(super) fn tile(&self, c: &Conv) -> ([i64; 2], bool) {
        let lanes = i64::from(lanes(c.level, c.dtype));
        ([self.rows, lanes], self.register_epilogue.is_some())
    }

    /// Returns the positions and channels of a block.
    pub(super) fn block_sizes(&self) -> [i64; 2] {
        let width = self.geometry.axes[2].output;
        [self.lines.saturating_mul(width), self.channels]
    }

    /// True if weights that are not finite are packed a second time, in another layout.
    pub(super) fn checks_finite(&self) -> bool {
        self.for_nonfinite.is_some()
    }

    /// True if all weights are finite, according to the flag after the packed weights.
    pub(super) fn is_finite(&self, c: &Conv, packed: View<u8>) -> bool {
        packed.get((self.packed() - 1) * c.dtype.size() as i64) == 0
    }

    /// Links the tiles of a row.
    fn tiles(&self, c: &Conv, taps: u32) -> Result<TileGrid> {
        let size = c.dtype.size() as i64;
        let width = &self.geometry.axes[2];
        let pitch = match c.epilogue {
            None if !self.writes_nchw => c.groups,
            _ => self.channels,
        };
        let (by, right) = (c.terms.instruction, RightSide::of_panel(self.panel * size));
        let rows = Rows::of_matrix(self.rows, 0);
        let whole = Tile {
            taps,
            out: pitch * size,
            epilogue: self.register_epilogue.clone(),
            ..Tile::new((c.level, by), rows, self.channels, right)
        };
        let reads = c.read_dtype(0);
        let position = c.groups * reads.size() as i64;
        TileGrid::of_lines(&whole, (reads, position), (width, 0), c.groups)
    }

    /// Returns the number of elements of the packed weights. For each line of a filter, these are its taps and what
    /// they add where they read padding. A flag follows at the end.
    pub(super) fn packed(&self) -> i64 {
        let [depth, height, width] = &self.geometry.axes;
        depth.kernel * height.kernel * (width.kernel + 1) * self.panel + 1
    }
}

/// Returns the geometry of a gradient of images, as a convolution of the result's gradient with flipped filters.
fn transposed(axes: &[Axis; 3], copied: [i64; 3]) -> Geometry {
    let axis = |i: usize| Axis {
        input: copied[i],
        output: axes[i].input,
        stride: 1,
        padding: (axes[i].kernel - 1) * axes[i].dilation - axes[i].padding,
        ..axes[i]
    };
    Geometry {
        axes: [axis(0), axis(1), axis(2)],
    }
}

/// Returns the number of rows of the result.
fn lines(c: &Conv, g: &Geometry) -> i64 {
    let [depth, height, _] = &g.axes;
    (c.batch.saturating_mul(depth.output)).saturating_mul(height.output)
}

/// The buffers that a thread keeps between blocks.
#[derive(Default)]
struct Scratch {
    materialised: Materialised,
    /// Results that are still to be transposed, or finished.
    results: Option<Storage>,
    raw: Option<Storage>,
}

/// Some channels of some rows of the result.
struct RowBlock {
    /// The first row, among those of all images.
    line: i64,
    lines: i64,
    channel: i64,
    channels: i64,
}

impl Conv {
    /// Returns the number of elements of its workspace.
    pub(super) fn depthwise_workspace(&self, blocking: &Blocking) -> i64 {
        let copied = blocking.copies.as_ref().map_or(0, |c| c.len(self));
        blocking.packed() + copied
    }

    /// Packs the weights; no other operand is read. A flag after them is zero if all are finite.
    pub(super) fn pack_depthwise<T: Lane>(
        &self,
        blocking: &Blocking,
        weights: View<u8>,
        to: ViewMut<T>,
    ) {
        let (all, panel) = (blocking.geometry.kernels(), blocking.panel);
        let (taps, dtype) = (blocking.geometry.axes[2].kernel, self.read_dtype(1));
        for line in 0..all / taps {
            let (first, step) = match self.role {
                ConvRole::Input => (all - 1 - line * taps, -1),
                _ => (line * taps, 1),
            };
            let mut to = to.shift(line * (taps + 1) * panel);
            to.fill(0, (taps + 1) * panel, T::ZERO);
            let from = (weights.shift(first * dtype.size() as i64), [step, all]);
            let packed = (to.bytes(), [panel, 1]);
            self.packer(1).pack(from, (taps, self.groups), packed);
            if self.dtype.is_float() {
                let (rows, padding) = to
                    .slice_mut(0, (taps + 1) * panel)
                    .split_at_mut((taps * panel) as usize);
                for row in rows.chunks_exact(panel as usize) {
                    for (padding, x) in padding.iter_mut().zip(row) {
                        *padding = T::ZERO.mul_add::<kiln_kernel::simd::Baseline>(*x, *padding);
                    }
                }
            } else if self.narrow {
                // With images of fewer bits, integers are multiplied as pairs of i16 whose second is 0.
                let mut words = to.cast::<u32>();
                let words = words.slice_mut(0, taps * panel).iter_mut();
                words.for_each(|word| *word &= 0xffff);
            }
        }
        let finite = !self.dtype.is_float() || are_finite(dtype, weights, self.groups * all);
        let (flag, size) = (if finite { 0 } else { u8::MAX }, size_of::<T>() as i64);
        to.bytes().fill((blocking.packed() - 1) * size, size, flag);
    }

    /// Runs it.
    pub(super) fn depthwise<T: Lane>(
        &self,
        call: &Call,
        blocking: &Blocking,
        (images, weights): (Images, Weights),
    ) -> Result<()> {
        let [mut copy, mut own] = [None, None];
        let x = match (&blocking.copies, images) {
            (Some(copies), Images::InMemory(x)) => {
                let copies = self.copy_images::<T>(x.cast(), copies, &mut copy, call.parallel)?;
                Images::InMemory(copies.bytes())
            }
            _ => images,
        };
        let packed = weights.packed::<T>((&mut own, blocking.packed()), |from, to| {
            self.pack_depthwise(blocking, from, to);
        })?;
        let Some(tiles) = &blocking.tiles else {
            return Ok(());
        };
        let packed = packed.bytes();
        if let (Some(for_nonfinite), Weights::InMemory(_)) = (&blocking.for_nonfinite, weights)
            && !blocking.is_finite(self, packed)
        {
            return self.dense::<T>(call, for_nonfinite, (images, weights));
        }
        let g = &blocking.geometry;
        let (lines, across) = (lines(self, g), ceil(self.groups, blocking.channels));
        let sums = g.axes[2].output * g.kernels();
        let cost = (blocking.lines * blocking.channels * WORK).saturating_mul(sums);
        let launch = Launch {
            in_registers: blocking.register_epilogue.is_some(),
            ..Launch::new(self.epilogue.as_ref(), call)
        };
        let items = ceil(lines, blocking.lines) * across;
        launch.run((items, cost), |i, scratch: &mut Scratch| {
            let (line, channel) = (i / across * blocking.lines, i % across * blocking.channels);
            let block = RowBlock {
                line,
                lines: blocking.lines.min(lines - line),
                channel,
                channels: blocking.channels.min(self.groups - channel),
            };
            self.depthwise_block::<T>(&launch, (blocking, tiles), &block, (x, packed), scratch)
        });
        Ok(())
    }

    fn depthwise_block<T: Lane>(
        &self,
        launch: &Launch,
        (blocking, tiles): (&Blocking, &TileGrid),
        b: &RowBlock,
        (x, weights): (Images, View<u8>),
        Scratch {
            materialised,
            results,
            raw,
        }: &mut Scratch,
    ) -> Result<()> {
        let width = &blocking.geometry.axes[2];
        let (first, positions) = (b.line * width.output, b.lines * width.output);
        let read = (&blocking.geometry, x);
        let x = self.images_of(launch, read, (first, positions), materialised)?;
        let at = (first, b.channel);
        let own = (results, positions * blocking.channels, blocking.channels);
        let (dst, pitch) = self.destination::<T>(launch, at, blocking.writes_nchw, own)?;
        let mut accesses = Accesses::of(blocking.register_epilogue.as_deref(), &launch.args);
        let mut all = Lines::default();
        for line in 0..b.lines {
            self.list_lines::<T>(blocking, b, (x, weights, b.line + line), &mut all);
            let row = line * width.output;
            let out = match launch.in_registers {
                true => Output::Epilogue(&mut accesses, (first + row, b.channel)),
                false => Output::Memory(dst.shift(row * pitch).bytes()),
            };
            let tile_range = [0..1, 0..width.output, 0..b.channels];
            tiles.compute(
                tile_range,
                Left::Lines(&mut all, 0),
                &mut Columns::none(),
                out,
            )?;
        }
        let sizes = (positions, b.channels);
        self.finish(launch, (dst, pitch), at, sizes, (blocking.writes_nchw, raw))
    }

    /// Lists the lines that a row of the result reads, from the first tap of its first position on, and their weights.
    fn list_lines<'a, T>(
        &self,
        blocking: &Blocking,
        b: &RowBlock,
        (x, weights, line): (View<'a, u8>, View<'a, u8>, i64),
        all: &mut Lines<'a>,
    ) {
        let g = &blocking.geometry;
        let [depth, height, width] = &g.axes;
        let (image, line) = (
            line / (depth.output * height.output),
            line % (depth.output * height.output),
        );
        let size = self.read_dtype(0).size() as i64;
        all.lines.clear();
        all.padding.clear();
        for (kd, kh) in (0..depth.kernel).flat_map(|d| (0..height.kernel).map(move |h| (d, h))) {
            let taps = (kd * height.kernel + kh) * (width.kernel + 1) * blocking.panel + b.channel;
            let weights = weights.shift(taps * size_of::<T>() as i64);
            match g.row((line / height.output, line % height.output), (kd, kh)) {
                Some(row) => {
                    let at = (image * g.inputs() + row - width.padding) * self.groups + b.channel;
                    all.lines.push((x.shift(at * size), weights));
                }
                None => all.padding.push(weights),
            }
        }
    }
}
