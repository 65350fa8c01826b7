//! Gradients of the weights of depthwise convolutions.
//!
//! The taps of a filter's line are the result of convolving a line of the images with a line of the gradient of the
//! result ([`Depthwise`]), with stride and dilation exchanged. Accumulators stay in registers over all lines of a block.

use super::{Conv, Copies, Range};
use crate::kernels::conv::images::CopyLayout;
use crate::kernels::matmul::Results;
use kiln_jit::contraction::{
    Columns, Left, Lines, Output, RightSide, Rows, Tile, TileGrid, even_rows, max_depthwise_rows,
};
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{View, ViewMut};
use kiln_plan::cost::geometry::Axis;

/// The lines of a block.
const LINES: i64 = 16;
/// The positions of a call.
const POSITIONS: i64 = 32;

/// The copies that are made first, and the tiles.
pub(super) struct Blocking {
    /// The images, and the gradient of the result, where they have channels first.
    laid: [Option<CopyLayout>; 2],
    /// For each call's positions, a line of taps: to start sums, and to add to them.
    tiles: Vec<[TileGrid; 2]>,
}

impl Blocking {
    pub fn new(c: &Conv, nchw: [bool; 2]) -> Blocking {
        let axes = c.geometry.axes;
        let extents = [axes.map(|a| a.input), axes.map(|a| a.output)];
        let laid = |i: usize| {
            nchw[i].then(|| CopyLayout {
                extents: extents[i],
                nchw: true,
                strides: [1; 3],
            })
        };
        Blocking {
            laid: [laid(0), laid(1)],
            tiles: Vec::new(),
        }
    }

    /// Links the tiles for ranges of these columns.
    pub fn link(&mut self, c: &Conv, columns: i64) -> Result<()> {
        let (width, size) = (&c.geometry.axes[2], c.dtype.size() as i64);
        let position = c.groups * size;
        // Taps are positions of the result, and positions are taps.
        let taps = Axis {
            output: width.kernel,
            kernel: width.output,
            stride: width.dilation,
            dilation: width.stride,
            ..*width
        };
        let most = max_depthwise_rows(c.level, c.dtype, POSITIONS as u32);
        let rows = Rows::of_matrix(even_rows(width.kernel, most), 0);
        let (by, right) = (c.terms.instruction, RightSide::of_matrix(position));
        for from in (0..width.output).step_by(POSITIONS as usize) {
            let of = |adds: bool| {
                let whole = Tile {
                    taps: POSITIONS.min(width.output - from) as u32,
                    out: columns * size,
                    adds,
                    ..Tile::new((c.level, by), rows, columns, right.clone())
                };
                TileGrid::of_lines(&whole, (c.dtype, position), (&taps, from), c.groups)
            };
            self.tiles.push([of(false)?, of(true)?]);
        }
        Ok(())
    }

    /// Returns the number of blocks of lines of all images.
    pub fn blocks(c: &Conv) -> i64 {
        let [deep, high, wide] = c.geometry.axes.map(|a| a.output);
        let lines = c.batch.saturating_mul(deep).saturating_mul(high);
        if wide == 0 { 0 } else { ceil(lines, LINES) }
    }

    /// Returns the number of elements of the copies.
    pub fn workspace(&self, c: &Conv) -> i64 {
        self.laid.iter().flatten().map(|laid| laid.len(c)).sum()
    }

    /// Returns the operands with channels last (NHWC).
    pub fn bring<'a, T: Lane>(
        &self,
        c: &Conv,
        mut operands: [View<'a, T>; 2],
        copies: &'a mut [Option<Storage>; 2],
        parallel: bool,
    ) -> Result<[View<'a, T>; 2]> {
        for (i, copy) in copies.iter_mut().enumerate() {
            if let Some(laid) = &self.laid[i] {
                operands[i] = c.copy_images(operands[i], laid, copy, parallel)?;
            }
        }
        Ok(operands)
    }

    /// Computes the sums of a range, from operands with channels last.
    pub fn sum<T: Lane>(
        &self,
        c: &Conv,
        [x, y]: [View<T>; 2],
        range: &Range,
        (sums, pitch): Results<T>,
        copies: &mut Copies,
    ) -> Result<()> {
        let g = &c.geometry;
        let [depth, height, width] = &g.axes;
        let (size, column) = (size_of::<T>() as i64, range.column);
        // The contents of lines of padding.
        let zeros = ViewMut::<T>::room(&mut copies.images, width.input * c.groups)?;
        zeros.fill(0, width.input * c.groups, T::ZERO);
        let [x, y, zeros] = [x, y, *zeros].map(View::bytes);
        let lines = c.batch * depth.output * height.output;
        let mut all = Lines::default();
        for block in range.blocks[0]..range.blocks[1] {
            let lines = block * LINES..(block * LINES + LINES).min(lines);
            for (d, h) in (0..depth.kernel).flat_map(|d| (0..height.kernel).map(move |h| (d, h))) {
                for (tiles, from) in self.tiles.iter().zip((0..).step_by(POSITIONS as usize)) {
                    let first = width.source(from, 0);
                    all.lines.clear();
                    for line in lines.clone() {
                        let image = line / (depth.output * height.output);
                        let place = line / height.output % depth.output;
                        let row = g.row((place, line % height.output), (d, h));
                        let x = match row {
                            Some(row) => {
                                let at = (image * g.inputs() + row + first) * c.groups;
                                x.shift((at + column) * size)
                            }
                            None => zeros.shift(first * c.groups * size),
                        };
                        let at = (line * width.output + from) * c.groups + column;
                        all.lines.push((x, y.shift(at * size)));
                    }
                    let tap = (d * height.kernel + h) * width.kernel;
                    let out = Output::Memory(sums.shift(tap * pitch).bytes());
                    let adds = block > range.blocks[0] || from > 0;
                    let row = [0..1, 0..width.kernel, 0..range.columns];
                    let left = Left::Lines(&mut all, 0);
                    tiles[usize::from(adds)].compute(row, left, &mut Columns::none(), out)?;
                }
            }
        }
        Ok(())
    }
}
