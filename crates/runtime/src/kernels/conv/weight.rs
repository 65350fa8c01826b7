//! The gradient of a convolution's weights: products of the gradient of the result with gathered columns,
//! summed over images and positions.

use super::columns::{Fill, FillColumns};
use super::{COLUMN_ELEMENTS, Conv, Scratch};
use crate::contraction::multiply;
use crate::error::Result;
use crate::kernels::matmul::{Work, run_blocks};
use crate::memory::room;
use crate::simd::compiled;
use crate::sums::Lane;
use crate::tile::Failures;
use crate::tile::affine::ceil;

/// Positions that one product sums over.
const DEPTH: i64 = 1024;

/// Some input channels of a group.
struct Block {
    group: i64,
    channel: i64,
    channels: i64,
}

impl Conv {
    /// Runs it.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn weight<T: Lane>(
        &self,
        args: &[*mut u8],
        parallel: bool,
        failures: &Failures,
    ) {
        let g = &self.geometry;
        let taps = g.kernels();
        if self.groups * self.cin * taps * self.cout == 0 {
            return;
        }
        let depth = (self.batch * g.outputs()).clamp(1, DEPTH);
        let channels = self.cut_channels(self.cin, taps * depth, self.groups);
        let down = ceil(self.cin, channels);
        let work = channels * taps * self.cout * self.batch * g.outputs();
        let items = self.groups * down;
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (items, work.max(1)),
            launch,
            |i, args, scratch, work| unsafe {
                let channel = i % down * channels;
                let block = Block {
                    group: i / down,
                    channel,
                    channels: channels.min(self.cin - channel),
                };
                self.weight_block::<T>(args, &block, scratch, work)
            },
        );
    }

    unsafe fn weight_block<T: Lane>(
        &self,
        args: &[*mut u8],
        b: &Block,
        scratch: &mut Scratch,
        work: &mut Work,
    ) -> Result<()> {
        let g = &self.geometry;
        let (taps, outputs) = (g.kernels(), g.outputs());
        let width = b.channels * taps;
        let step = self.cin * taps;
        let first = b.group * self.cout * step + b.channel * taps;
        let (dst, pitch) = if self.epilogue.is_some() {
            (work.scratch::<T>(self.cout * width)?, width)
        } else {
            let out = args[self.out].cast::<T>();
            (out.wrapping_offset(first as isize), step)
        };
        // The sum is over parts of images, or over all positions of several.
        let most = DEPTH.min((COLUMN_ELEMENTS / width).max(16));
        let images = (most / outputs.max(1)).clamp(1, self.batch.max(1));
        let part = outputs.min(most).max(1);
        // SAFETY: linking checked the buffers' lengths against the geometry; gathered gradients and
        // columns have the room reserved for them.
        unsafe {
            if self.batch * outputs == 0 {
                for o in 0..self.cout {
                    let row = dst.wrapping_offset((o * pitch) as isize);
                    (0..width).for_each(|e| *row.offset(e as isize) = T::ZERO);
                }
            }
            let fill = compiled::<FillColumns<T>, _>(self.level);
            let mut image = 0;
            while image < self.batch {
                let images = images.min(self.batch - image);
                let mut from = 0;
                while from < outputs {
                    let count = part.min(outputs - from);
                    let depth = images * count;
                    let columns = room::<T>(&mut scratch.columns, width * depth)?;
                    for i in 0..images {
                        let x = ((image + i) * self.groups + b.group) * self.cin + b.channel;
                        fill(Fill {
                            geometry: g,
                            x: self.operand::<T>(args, 0, x * g.inputs()),
                            apart: g.inputs(),
                            cin: b.channels,
                            from,
                            count,
                            pitch: depth,
                            dst: columns.wrapping_offset((i * count) as isize),
                        });
                    }
                    let (y, y_row) = match images {
                        1 => {
                            let row = (image * self.groups + b.group) * self.cout;
                            (self.operand::<T>(args, 1, row * outputs + from), outputs)
                        }
                        _ => {
                            let y = room::<T>(&mut scratch.gathered, self.cout * depth)?;
                            let part = (image, images, from, count);
                            self.gather::<T>(args, (1, b.group), part, y);
                            (y.cast_const(), depth)
                        }
                    };
                    multiply(
                        self.level,
                        (self.cout, width, depth),
                        (dst, pitch),
                        (y, y_row, 1),
                        (columns.cast_const(), 1, depth),
                        image > 0 || from > 0,
                    )?;
                    from += count;
                }
                image += images;
            }
            work.finish((dst, pitch), first, (self.cout, step), width);
        }
        Ok(())
    }
}
