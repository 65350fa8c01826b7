//! Gradients of the weights of depthwise convolutions.
//!
//! The taps of a filter's line are the result of convolving a line of the images with a line of the gradient of the
//! result ([`Depthwise`]), with stride and dilation exchanged. Accumulators stay in registers over all lines of a block.

use super::{Conv, Range, Scratch, Sums};
use crate::kernels::conv::images::ImageCopies;
use kiln_jit::contraction::{
    Call, Depthwise, Kernel, RightSide, Rows, Tile, even_rows, most_depthwise_rows,
};
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::sums::Lane;

/// The lines of a block.
const LINES: i64 = 16;
/// The positions of a call.
const POSITIONS: i64 = 32;

/// The copies that are made first.
pub(super) struct Blocking {
    /// The images, and the gradient of the result, where they have channels first.
    laid: [Option<ImageCopies>; 2],
}

impl Blocking {
    pub fn new(c: &Conv, nchw: [bool; 2]) -> Blocking {
        let axes = c.geometry.axes;
        let extents = [axes.map(|a| a.input), axes.map(|a| a.output)];
        let laid = |i: usize| nchw[i].then(|| ImageCopies::nchw(extents[i]));
        Blocking {
            laid: [laid(0), laid(1)],
        }
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
    ///
    /// # Safety
    /// The operands exist.
    pub unsafe fn bring<T: Lane>(
        &self,
        c: &Conv,
        mut operands: [*const T; 2],
        copies: &mut [Option<Storage>; 2],
        parallel: bool,
    ) -> Result<[*const T; 2]> {
        for (i, copy) in copies.iter_mut().enumerate() {
            if let Some(laid) = &self.laid[i] {
                // SAFETY: the caller's.
                operands[i] = unsafe { c.copy_images(operands[i], laid, copy, parallel)? };
            }
        }
        Ok(operands)
    }

    /// Computes the sums of a range.
    ///
    /// # Safety
    /// The operands, with channels last, and the sums exist.
    pub unsafe fn sum<T: Lane>(
        &self,
        c: &Conv,
        [x, y]: [*const T; 2],
        range: &Range,
        sums: &Sums<T>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let g = &c.geometry;
        let [depth, height, width] = &g.axes;
        let (size, column) = (size_of::<T>() as i64, range.column);
        // The contents of lines of padding.
        let zeros = room::<T>(&mut scratch.images, width.input * c.groups)?;
        // SAFETY: there is room.
        unsafe { zeros.write_bytes(0, (width.input * c.groups) as usize) };
        let lines = c.batch * depth.output * height.output;
        let most = most_depthwise_rows(c.level, c.dtype, POSITIONS as u32);
        let rows = even_rows(width.kernel, most);
        for block in range.blocks[0]..range.blocks[1] {
            let lines = block * LINES..(block * LINES + LINES).min(lines);
            for (d, h) in (0..depth.kernel).flat_map(|d| (0..height.kernel).map(move |h| (d, h))) {
                for from in (0..width.output).step_by(POSITIONS as usize) {
                    let to = (from + POSITIONS).min(width.output);
                    for tap in (0..width.kernel).step_by(rows as usize) {
                        let rows = rows.min(width.kernel - tap);
                        let first = width.source(from, tap);
                        scratch.list.clear();
                        for line in lines.clone() {
                            let image = line / (depth.output * height.output);
                            let place = line / height.output % depth.output;
                            let row = g.row((place, line % height.output), (d, h));
                            let x = match row {
                                Some(row) => {
                                    let at = (image * g.inputs() + row + first) * c.groups;
                                    x.wrapping_offset((at + column) as isize)
                                }
                                None => zeros.wrapping_offset((first * c.groups) as isize),
                            };
                            let at = (line * width.output + from) * c.groups + column;
                            let y = y.wrapping_offset(at as isize);
                            scratch.list.extend([x as usize, y as usize]);
                        }
                        scratch.list.extend([0; 2]);
                        let inside = |row: i64| {
                            let (low, high) = width.inside((tap + row) * width.dilation, from, to);
                            [low - from, high - from].map(|n| n as u32)
                        };
                        let tap = (d * height.kernel + h) * width.kernel + tap;
                        let kernel = Kernel::of_depthwise(Depthwise {
                            tile: Tile {
                                level: c.level,
                                instruction: c.terms.instruction(),
                                rows: Rows::of_matrix(rows, 0),
                                columns: range.columns as u16,
                                step: 0,
                                right: RightSide::of_matrix(c.groups * size),
                                steps: 1,
                                taps: (to - from) as u32,
                                out: sums.pitch * size,
                                adds: block > range.blocks[0] || from > 0,
                                starts: false,
                                strip: [0; 2],
                                finish: None,
                            },
                            stride: width.dilation as u32,
                            dilation: width.stride as u32,
                            reads: c.dtype,
                            position: c.groups * size,
                            inside: (0..rows).map(inside).collect(),
                        })?;
                        let call = Call {
                            left: scratch.list.as_ptr().cast(),
                            right: std::ptr::null(),
                            out: sums.to.wrapping_offset((tap * sums.pitch) as isize).cast(),
                            finish: std::ptr::null(),
                            taps: std::ptr::null(),
                            tiles: 1,
                        };
                        // SAFETY: the caller's; nothing outside a line is read.
                        unsafe { kernel.run(&call) };
                    }
                }
            }
        }
        Ok(())
    }
}
