//! Winograd convolutions of images with channels last (NHWC). Tiles of a × a inputs, a = m + 2, give m × m results by
//! a² products for each pair of channels; see [`Winograd`].
//!
//! The channels of a tile are transformed side by side. Then each of its a² elements is a row of a matrix of tiles by
//! input channels. This matrix is multiplied by that of the transformed filters, packed into panels of output channels.
//! A block, some tiles by some panels, goes through all steps while it is in the second-level cache.

mod blocking;

use super::Conv;
use super::narrow::Weights;
use crate::kernels::matmul::{Args, EpilogueRunner, run_blocks, split};
pub(super) use blocking::Blocking;
use blocking::Sizes;
use kiln_jit::contraction::{Accesses, Call, Kernel};
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::{Storage, room};
use std::ops::Range;

/// The cost of transforming an element of the weights, in multiply-adds.
const TRANSFORM_WORK: i64 = 128;

/// The buffers that a thread keeps between blocks.
#[derive(Default)]
struct Scratch {
    copy: Option<Storage>,
    inputs: Option<Storage>,
    products: Option<Storage>,
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
    ///
    /// # Safety
    /// As [`Conv::pack`].
    pub(super) unsafe fn winograd_pack(
        &self,
        blocking: &Blocking,
        weights: *const f32,
        to: *mut f32,
        parallel: bool,
        failures: &Failures,
    ) {
        let s = &blocking.sizes;
        let args = [weights.cast_mut().cast::<u8>(), to.cast()];
        let args = Args(&args);
        let work = self.cin * s.panel * TRANSFORM_WORK;
        split(self.groups * s.panels, work, parallel, |from, until| {
            let args = &args;
            let both = (
                args.0[0].cast::<f32>().cast_const(),
                args.0[1].cast::<f32>(),
            );
            // SAFETY: the caller's; each part has panels of its own.
            if let Err(e) = unsafe { self.winograd_panels(s, both, from..until) } {
                failures.broken(e);
            }
        });
    }

    /// Transforms the weights of some panels, among those of all groups.
    ///
    /// # Safety
    /// As [`Conv::pack`].
    unsafe fn winograd_panels(
        &self,
        s: &Sizes,
        (weights, to): (*const f32, *mut f32),
        panels: Range<i64>,
    ) -> Result<()> {
        let mut storage = None;
        let taps = room::<f32>(&mut storage, 9 * s.panel)?;
        let filters = s.filters(self)?;
        for (p, c) in panels.flat_map(|p| (0..self.cin).map(move |c| (p, c))) {
            let (group, panel) = (p / s.panels, p % s.panels);
            for (tap, column) in (0..9).flat_map(|t| (0..s.panel).map(move |c| (t, c))) {
                let filter = panel * s.panel + column;
                let at = ((group * self.cout + filter) * self.cin + c) * 9 + tap;
                // SAFETY: linking checked the weights' length; there is room for the taps.
                unsafe {
                    let weight = match filter < self.cout {
                        true => *weights.offset(at as isize),
                        false => 0.0,
                    };
                    *taps.offset((tap * s.panel + column) as isize) = weight;
                }
            }
            let at = (p * s.squares * self.cin + c) * s.panel;
            // SAFETY: the taps are there; each panel has a place of its own.
            unsafe { transform(&filters, taps.cast(), to.wrapping_offset(at as isize)) };
        }
        Ok(())
    }

    /// Runs a convolution by one of Winograd's algorithms.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn winograd(
        &self,
        args: &[*mut u8],
        blocking: &Blocking,
        (images, weights): (*const u8, Weights),
        parallel: bool,
        failures: &Failures,
    ) {
        let s = &blocking.sizes;
        let mut storage = None;
        let found = weights.packed((&mut storage, blocking.packed(self)), |from, to| {
            // SAFETY: the caller's; there is room for all panels.
            unsafe { self.winograd_pack(blocking, from, to, parallel, failures) }
        });
        let weights = match found {
            Ok(found) => found,
            Err(e) => return failures.broken(e),
        };
        if s.all * self.groups * self.cout == 0 {
            return;
        }
        let (blocks, shares) = (ceil(s.all, s.tiles), ceil(s.panels, s.share));
        let work = s.squares * s.tiles * self.cin * s.share * s.panel;
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        let weights = Args(&[weights.cast_mut().cast(), images.cast_mut()]);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (self.groups * blocks * shares, work.max(1)),
            launch,
            |i, args, scratch: &mut Scratch, work| unsafe {
                let weights = &weights;
                let (tile, panel) = (i / shares % blocks * s.tiles, i % shares * s.share);
                let block = TileBlock {
                    group: i / shares / blocks,
                    tile,
                    tiles: s.tiles.min(s.all - tile),
                    panel,
                    panels: s.share.min(s.panels - panel),
                };
                let from = (
                    weights.0[1].cast_const(),
                    weights.0[0].cast::<f32>().cast_const(),
                );
                self.winograd_block(args, blocking, from, &block, scratch, work)
            },
        );
    }

    unsafe fn winograd_block(
        &self,
        args: &[*mut u8],
        blocking: &Blocking,
        (images, weights): (*const u8, *const f32),
        b: &TileBlock,
        scratch: &mut Scratch,
        work: &mut EpilogueRunner,
    ) -> Result<()> {
        let s = &blocking.sizes;
        let copy = room::<f32>(&mut scratch.copy, s.squares * self.cin)?;
        let inputs = room::<f32>(&mut scratch.inputs, s.squares * s.inputs.element)?;
        let products = room::<f32>(&mut scratch.products, s.squares * s.products.element)?;
        // SAFETY: linking checked the buffers' lengths against the geometry, and there is room.
        unsafe {
            // Consecutive blocks often have the same tiles, for other channels.
            if scratch.holds != Some((b.group, b.tile)) {
                for tile in 0..b.tiles {
                    let to = inputs.offset((tile * s.inputs.row) as isize);
                    self.transform_inputs(images, blocking, b, tile, copy.cast(), to);
                }
                scratch.holds = Some((b.group, b.tile));
            }
            self.multiply_elements(blocking, b, weights, inputs, products);
            let mut accesses = Accesses::of(blocking.finish.as_deref(), args);
            for tile in 0..b.tiles {
                let from = products.offset((tile * s.products.row) as isize);
                let to = (args, &mut accesses);
                self.transform_results(to, blocking, b, tile, from, work)?;
            }
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
    ///
    /// # Safety
    /// As [`Conv::run`]; there is room at `to`.
    unsafe fn transform_inputs(
        &self,
        images: *const u8,
        blocking: &Blocking,
        b: &TileBlock,
        tile: i64,
        copy: *mut u8,
        to: *mut f32,
    ) {
        let (s, size) = (&blocking.sizes, self.image_dtype().size() as i64);
        let [_, height, width] = &self.geometry.axes;
        let (image_tile, side) = (self.image_tile(blocking, b.tile + tile), s.winograd.side());
        let y = image_tile.row * s.winograd.step() - height.padding;
        let x = image_tile.column * s.winograd.step() - width.padding;
        let from = |y: i64, x: i64| {
            let position = (image_tile.image * height.input + y) * width.input + x;
            let at = (position * self.groups + b.group) * self.cin * size;
            images.wrapping_offset(at as isize)
        };
        let is_inside = y >= 0 && y + side <= height.input && x >= 0 && x + side <= width.input;
        if is_inside {
            // SAFETY: the caller's.
            return unsafe { transform(&blocking.transforms[0], from(y, x), to) };
        }
        for (i, j) in (0..side).flat_map(|i| (0..side).map(move |j| (i, j))) {
            let line = (self.cin * size) as usize;
            let to = copy.wrapping_add((i * side + j) as usize * line);
            let is_there =
                (0..height.input).contains(&(y + i)) && (0..width.input).contains(&(x + j));
            // SAFETY: the position is there; the copy has room for all of the tile.
            unsafe {
                match is_there {
                    true => {
                        let from = from(y + i, x + j);
                        std::ptr::copy_nonoverlapping(from, to, line);
                    }
                    false => std::ptr::write_bytes(to, 0, line),
                }
            }
        }
        // SAFETY: the copy is there.
        unsafe { transform(&blocking.transforms[1], copy, to) }
    }

    /// Multiplies inputs by weights, for each element of a block's tiles.
    ///
    /// # Safety
    /// All of them are there, and there is room for the products.
    unsafe fn multiply_elements(
        &self,
        blocking: &Blocking,
        b: &TileBlock,
        weights: *const f32,
        inputs: *const f32,
        products: *mut f32,
    ) {
        let s = &blocking.sizes;
        let rest = if b.tiles == s.tiles { 1 } else { 2 };
        for panel in 0..b.panels {
            let first = (b.group * s.panels + b.panel + panel) * s.squares;
            for element in 0..s.squares {
                let inputs = inputs.wrapping_offset((element * s.inputs.element) as isize);
                let at = (first + element) * self.cin * s.panel;
                let right = weights.wrapping_offset(at as isize);
                let to = element * s.products.element + panel * s.panel;
                let is_last = usize::from(b.panel + panel + 1 == s.panels);
                for row in (0..b.tiles).step_by(s.rows as usize) {
                    let of = if row + s.rows > b.tiles { rest } else { 0 };
                    let to = to + row * s.products.row;
                    let call = Call {
                        left: inputs.wrapping_offset((row * s.inputs.row) as isize).cast(),
                        right: right.cast(),
                        out: products.wrapping_offset(to as isize).cast(),
                        finish: std::ptr::null(),
                        taps: std::ptr::null(),
                        tiles: 1,
                    };
                    // SAFETY: the caller's.
                    unsafe { blocking.sums[of][is_last].run(&call) };
                }
            }
        }
    }

    /// Transforms the products of a tile of a block into results.
    ///
    /// # Safety
    /// As [`Conv::run`]; the products are there.
    unsafe fn transform_results(
        &self,
        (args, accesses): (&[*mut u8], &mut Accesses),
        blocking: &Blocking,
        b: &TileBlock,
        tile: i64,
        from: *const f32,
        work: &mut EpilogueRunner,
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
        let pitch = s.share * s.panel;
        let raw = self.epilogue.is_some() && blocking.finish.is_none();
        let out = match (raw, &blocking.finish) {
            (true, _) => work.scratch::<f32>(step * step * pitch)?,
            (false, Some(_)) => std::ptr::null_mut(),
            (false, None) => self.result_at::<f32>(args, first),
        };
        let call = Call {
            left: from.cast(),
            right: std::ptr::null(),
            out: out.cast(),
            finish: accesses.at((position, channel)).as_ptr(),
            taps: std::ptr::null(),
            tiles: 1,
        };
        // SAFETY: the caller's; tiles at the edges write only results that exist.
        unsafe { results.run(&call) };
        if raw {
            let rows = step.min(height - image_tile.row * step);
            let columns = step.min(width - image_tile.column * step);
            let channels = (b.panels * s.panel).min(self.cout - b.panel * s.panel);
            for row in 0..rows {
                let raw = out.wrapping_offset((row * step * pitch) as isize);
                let first = first + row * width * all;
                // SAFETY: the raw results are there.
                unsafe { work.finish((raw, pitch), first, (columns, all), channels) };
            }
        }
        Ok(())
    }
}

/// Transforms a square.
///
/// # Safety
/// As [`Kernel::run`].
unsafe fn transform(by: &Kernel, from: *const u8, to: *mut f32) {
    let call = Call {
        left: from,
        right: std::ptr::null(),
        out: to.cast(),
        finish: std::ptr::null(),
        taps: std::ptr::null(),
        tiles: 1,
    };
    // SAFETY: the caller's.
    unsafe { by.run(&call) }
}
