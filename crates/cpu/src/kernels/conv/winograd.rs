//! Winograd convolutions of images with channels last (NHWC). Tiles of a × a inputs, a = m + 2, give m × m results by
//! a² products for each pair of channels; see [`Winograd`].
//!
//! The channels of a tile are transformed side by side. Then each of its a² elements is a row of a matrix of tiles by
//! input channels. This matrix is multiplied by that of the transformed filters, packed into panels of output channels.
//! A block, some tiles by some panels, goes through all steps while it is in the second-level cache.

mod blocking;

use super::Conv;
use super::narrow::Weights;
use crate::kernels::matmul::{Launch, split};
pub(super) use blocking::Blocking;
use blocking::Sizes;
use kiln_jit::contraction::{Accesses, Columns, Kernel, Left, Output};
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::Storage;
use kiln_kernel::view::{View, ViewMut};
use kiln_kernel::work::Call;
use std::ops::Range;

/// The cost of transforming an element of the weights, in multiply-adds.
const TRANSFORM_WORK: i64 = 128;

/// The buffers that a thread keeps between blocks.
#[derive(Default)]
struct Scratch {
    copy: Option<Storage>,
    inputs: Option<Storage>,
    products: Option<Storage>,
    /// Results before their epilogue.
    raw: Option<Storage>,
    /// The group and first tile of the inputs.
    holds: Option<(i64, i64)>,
}

/// Some output channels of some tiles.
struct TileBlock {
    group: i64,
    /// The first tile, among those of all images.
    tile: i64,
    tiles: i64,
    panel: i64,
    panels: i64,
}

/// A tile of an image.
struct ImageTile {
    image: i64,
    row: i64,
    column: i64,
}

impl Conv {
    /// Transforms the weights into panels; no other operand is read.
    pub(super) fn winograd_pack(
        &self,
        blocking: &Blocking,
        weights: View<u8>,
        to: ViewMut<f32>,
        parallel: bool,
        failures: &Failures,
    ) {
        let s = &blocking.sizes;
        let work = self.cin * s.panel * TRANSFORM_WORK;
        split(self.groups * s.panels, work, parallel, |from, until| {
            if let Err(e) = self.winograd_panels(s, (weights, to), from..until) {
                failures.report_error(e);
            }
        });
    }

    /// Transforms the weights of some panels, among those of all groups.
    fn winograd_panels(
        &self,
        s: &Sizes,
        (weights, to): (View<u8>, ViewMut<f32>),
        panels: Range<i64>,
    ) -> Result<()> {
        let mut storage = None;
        let taps = ViewMut::<f32>::room(&mut storage, 9 * s.panel)?;
        let size = self.read_dtype(1).size() as i64;
        let filters = s.filters(self)?;
        for (p, c) in panels.flat_map(|p| (0..self.cin).map(move |c| (p, c))) {
            let (group, first) = (p / s.panels, p % s.panels * s.panel);
            let at = ((group * self.cout + first) * self.cin + c) * 9;
            let (from, columns) = (weights.shift(at * size), s.panel.min(self.cout - first));
            taps.fill(0, 9 * s.panel, 0.0);
            let packed = (taps.bytes(), [s.panel, 1]);
            self.packer(1)
                .pack((from, [1, 9 * self.cin]), (9, columns), packed);
            let to = to.shift((p * s.squares * self.cin + c) * s.panel);
            transform(&filters, *taps.bytes(), to);
        }
        Ok(())
    }

    /// Runs a convolution by one of Winograd's algorithms.
    pub(super) fn winograd(
        &self,
        call: &Call,
        blocking: &Blocking,
        (images, weights): (View<u8>, Weights),
    ) -> Result<()> {
        let s = &blocking.sizes;
        let mut storage = None;
        let weights = weights.packed((&mut storage, blocking.packed(self)), |from, to| {
            self.winograd_pack(blocking, from, to, call.parallel, call.failures);
        })?;
        if s.all * self.groups * self.cout == 0 {
            return Ok(());
        }
        let (blocks, shares) = (ceil(s.all, s.tiles), ceil(s.panels, s.share));
        let work = s.squares * s.tiles * self.cin * s.share * s.panel;
        let launch = Launch {
            in_registers: blocking.register_epilogue.is_some(),
            ..Launch::new(self.epilogue.as_ref(), call)
        };
        launch.run(
            (self.groups * blocks * shares, work.max(1)),
            |i, scratch| {
                let (tile, panel) = (i / shares % blocks * s.tiles, i % shares * s.share);
                let block = TileBlock {
                    group: i / shares / blocks,
                    tile,
                    tiles: s.tiles.min(s.all - tile),
                    panel,
                    panels: s.share.min(s.panels - panel),
                };
                self.winograd_block(&launch, blocking, (images, weights), &block, scratch)
            },
        );
        Ok(())
    }

    fn winograd_block(
        &self,
        launch: &Launch,
        blocking: &Blocking,
        (images, weights): (View<u8>, View<f32>),
        b: &TileBlock,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let s = &blocking.sizes;
        let copy = ViewMut::<f32>::room(&mut scratch.copy, s.squares * self.cin)?;
        let inputs = ViewMut::room(&mut scratch.inputs, s.squares * s.inputs.element)?;
        let products = ViewMut::room(&mut scratch.products, s.squares * s.products.element)?;
        // Consecutive blocks often have the same tiles, for other channels.
        if scratch.holds != Some((b.group, b.tile)) {
            for tile in 0..b.tiles {
                let to = inputs.shift(tile * s.inputs.row);
                self.transform_inputs(images, blocking, b, tile, copy.bytes(), to);
            }
            scratch.holds = Some((b.group, b.tile));
        }
        self.multiply_elements(blocking, b, weights, *inputs, products)?;
        let mut accesses = Accesses::of(blocking.register_epilogue.as_deref(), &launch.args);
        for tile in 0..b.tiles {
            let from = products.shift(tile * s.products.row);
            let to = (launch, &mut accesses);
            self.transform_results(to, blocking, b, tile, *from, &mut scratch.raw)?;
        }
        Ok(())
    }

    fn image_tile(&self, blocking: &Blocking, tile: i64) -> ImageTile {
        let s = &blocking.sizes;
        ImageTile {
            image: tile / (s.down * s.across),
            row: tile / s.across % s.down,
            column: tile % s.across,
        }
    }

    /// Transforms the inputs of a tile of a block; `copy` has room for them, with their padding.
    fn transform_inputs(
        &self,
        images: View<u8>,
        blocking: &Blocking,
        b: &TileBlock,
        tile: i64,
        copy: ViewMut<u8>,
        to: ViewMut<f32>,
    ) {
        let (s, size) = (&blocking.sizes, self.read_dtype(0).size() as i64);
        let [_, height, width] = &self.geometry.axes;
        let (image_tile, side) = (self.image_tile(blocking, b.tile + tile), s.winograd.side());
        let y = image_tile.row * s.winograd.step() - height.padding;
        let x = image_tile.column * s.winograd.step() - width.padding;
        let from = |y: i64, x: i64| {
            let position = (image_tile.image * height.input + y) * width.input + x;
            images.shift((position * self.groups + b.group) * self.cin * size)
        };
        let is_inside = y >= 0 && y + side <= height.input && x >= 0 && x + side <= width.input;
        if is_inside {
            return transform(&blocking.transforms[0], from(y, x), to);
        }
        for (i, j) in (0..side).flat_map(|i| (0..side).map(move |j| (i, j))) {
            let line = self.cin * size;
            let at = (i * side + j) * line;
            let is_there =
                (0..height.input).contains(&(y + i)) && (0..width.input).contains(&(x + j));
            match is_there {
                true => copy.copy(at, from(y + i, x + j).slice(0, line)),
                false => copy.fill(at, line, 0),
            }
        }
        transform(&blocking.transforms[1], *copy, to);
    }

    /// Multiplies inputs by weights, for each element of a block's tiles.
    fn multiply_elements(
        &self,
        blocking: &Blocking,
        b: &TileBlock,
        weights: View<f32>,
        inputs: View<f32>,
        products: ViewMut<f32>,
    ) -> Result<()> {
        let s = &blocking.sizes;
        let sums = &blocking.sums[usize::from(b.tiles < s.tiles)];
        for panel in 0..b.panels {
            let first = (b.group * s.panels + b.panel + panel) * s.squares;
            let columns = s.panel.min(self.cout - (b.panel + panel) * s.panel);
            for element in 0..s.squares {
                let right = weights.shift((first + element) * self.cin * s.panel);
                let mut right = Columns {
                    first: right.bytes(),
                    column: 0,
                };
                let inputs = inputs.shift(element * s.inputs.element).bytes();
                let to = element * s.products.element + panel * s.panel;
                let out = Output::Memory(products.shift(to).bytes());
                let all = [0..1, 0..b.tiles, 0..columns];
                sums.compute(all, Left::Rows(inputs, &[]), &mut right, out)?;
            }
        }
        Ok(())
    }

    /// Transforms the products of a tile of a block into results.
    fn transform_results<'a>(
        &self,
        (launch, accesses): (&Launch<'a>, &mut Accesses<'a>),
        blocking: &Blocking,
        b: &TileBlock,
        tile: i64,
        from: View<f32>,
        raw: &mut Option<Storage>,
    ) -> Result<()> {
        let s = &blocking.sizes;
        let [_, height, width] = self.geometry.axes.map(|a| a.output);
        let (image_tile, step) = (self.image_tile(blocking, b.tile + tile), s.winograd.step());
        let ends = [
            image_tile.row + 1 == s.down,
            image_tile.column + 1 == s.across,
        ];
        let is_last = b.panel + b.panels == s.panels;
        let [down, across, channels] = [ends[0], ends[1], is_last].map(usize::from);
        let results = &blocking.results[down][across][channels];
        let position =
            (image_tile.image * height + image_tile.row * step) * width + image_tile.column * step;
        let (channel, all) = (
            b.group * self.cout + b.panel * s.panel,
            self.groups * self.cout,
        );
        let first = position * all + channel;
        let (from, none) = (Left::Rows(from.bytes(), &[]), View::of(&[]));
        if launch.in_registers {
            let out = Output::Epilogue(accesses, (position, channel));
            results.compute(from, none, out, 1);
            return Ok(());
        }
        let pitch = s.share * s.panel;
        let raw = (raw, step * step * pitch, pitch);
        let (out, _) = launch.destination::<f32>((self.out, first, all), raw)?;
        results.compute(from, none, Output::Memory(out.bytes()), 1);
        if self.epilogue.is_some() {
            let rows = step.min(height - image_tile.row * step);
            let columns = step.min(width - image_tile.column * step);
            let channels = (b.panels * s.panel).min(self.cout - b.panel * s.panel);
            for row in 0..rows {
                let raw = (out.shift(row * step * pitch), pitch);
                let first = first + row * width * all;
                launch.apply_epilogue(raw, first, (columns, all), channels)?;
            }
        }
        Ok(())
    }
}

/// Transforms a square.
fn transform(by: &Kernel, from: View<u8>, to: ViewMut<f32>) {
    let out = Output::Memory(to.bytes());
    by.compute(Left::Rows(from, &[]), View::of(&[]), out, 1);
}
