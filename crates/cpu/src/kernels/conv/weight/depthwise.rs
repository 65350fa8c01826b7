//! Gradients of the weights of depthwise convolutions.
//!
//! The taps of a filter's line are the result of convolving a line of the images with a line of the gradient of the
//! result ([`Depthwise`]), with stride and dilation exchanged. Accumulators stay in registers over all lines of a block.

use super::{Conv, Copies, Range, Sums};
use crate::kernels::conv::images::CopyLayout;
use kiln_jit::contraction::{
    Depthwise, Kernel, Lines, Output, RightSide, Rows, Tile, even_rows, max_depthwise_rows,
};
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{View, ViewMut};

/// The lines of a block.
const LINES: i64 = 16;
/// The positions of a call.
const POSITIONS: i64 = 32;

/// The copies that are made first, and the kernels.
pub(super) struct Blocking {
    /// The images, and the gradient of the result, where they have channels first.
    laid: [Option<CopyLayout>; 2],
    /// The calls for a line of taps.
    calls: Vec<TapCall>,
    /// For the columns of most ranges and of the last one; and in these, to start sums and to add to them.
    kernels: Vec<[[Kernel; 2]; 2]>,
}

/// Some taps of a line, summed over some positions.
struct TapCall {
    tap: i64,
    first: i64,
    /// The index of its kernels.
    kernels: usize,
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
            calls: Vec::new(),
            kernels: Vec::new(),
        }
    }

    /// Links the kernels for ranges of these columns.
    pub fn link(&mut self, c: &Conv, columns: i64) -> Result<()> {
        let (width, size) = (&c.geometry.axes[2], c.dtype.size() as i64);
        let position = c.groups * size;
        let most = max_depthwise_rows(c.level, c.dtype, POSITIONS as u32);
        let rows = even_rows(width.kernel, most);
        let last = c.groups - (c.groups - 1) / columns * columns;
        let mut known: Vec<(i64, Vec<[u32; 2]>)> = Vec::new();
        for from in (0..width.output).step_by(POSITIONS as usize) {
            let to = (from + POSITIONS).min(width.output);
            for tap in (0..width.kernel).step_by(rows as usize) {
                let rows = rows.min(width.kernel - tap);
                let inside = |row: i64| {
                    let (low, high) = width.inside((tap + row) * width.dilation, from, to);
                    [low - from, high - from].map(|n| n as u32)
                };
                let this = (to - from, (0..rows).map(inside).collect());
                let kernels = known.iter().position(|other| *other == this);
                self.calls.push(TapCall {
                    tap,
                    first: from,
                    kernels: kernels.unwrap_or(known.len()),
                });
                if kernels.is_some() {
                    continue;
                }
                let of = |count: i64, adds: bool| {
                    let (by, right) = (c.terms.instruction, RightSide::of_matrix(position));
                    Kernel::of(Depthwise {
                        tile: Tile {
                            taps: (to - from) as u32,
                            out: columns * size,
                            adds,
                            ..Tile::new((c.level, by), Rows::of_matrix(rows, 0), count, right)
                        },
                        stride: width.dilation as u32,
                        dilation: width.stride as u32,
                        reads: c.dtype,
                        position,
                        inside: this.1.clone(),
                    })
                };
                let both = |count: i64| -> Result<_> { Ok([of(count, false)?, of(count, true)?]) };
                self.kernels.push([both(columns)?, both(last)?]);
                known.push(this);
            }
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
        sums: Sums<T>,
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
        let is_last = usize::from(column + range.columns == c.groups);
        let mut all = Lines::default();
        for block in range.blocks[0]..range.blocks[1] {
            let lines = block * LINES..(block * LINES + LINES).min(lines);
            for (d, h) in (0..depth.kernel).flat_map(|d| (0..height.kernel).map(move |h| (d, h))) {
                for call in &self.calls {
                    let first = width.source(call.first, call.tap);
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
                        let at = (line * width.output + call.first) * c.groups + column;
                        all.lines.push((x, y.shift(at * size)));
                    }
                    let tap = (d * height.kernel + h) * width.kernel + call.tap;
                    let out = Output::Memory(sums.to.shift(tap * sums.pitch).bytes());
                    let adds = block > range.blocks[0] || call.first > 0;
                    let kernel = &self.kernels[call.kernels][is_last][usize::from(adds)];
                    kernel.compute_lines(&mut all, 0, out);
                }
            }
        }
        Ok(())
    }
}
