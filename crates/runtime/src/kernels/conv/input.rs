//! The gradient of a convolution's input: products of the weights with the gradient of the result give
//! columns, which are added up to images.

use super::columns::{AddColumns, Fill};
use super::{COLUMN_ELEMENTS, Conv, Scratch};
use crate::contraction::multiply;
use crate::error::Result;
use crate::kernels::matmul::{Work, run_blocks};
use crate::memory::room;
use crate::simd::compiled;
use crate::sums::Lane;
use crate::tile::Failures;
use crate::tile::affine::ceil;

/// Columns of a product that is not narrow.
const WIDE: i64 = 256;

/// Some channels of some images of the result.
struct Block {
    group: i64,
    image: i64,
    images: i64,
    channel: i64,
    channels: i64,
}

impl Conv {
    /// Runs it.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn input<T: Lane>(
        &self,
        args: &[*mut u8],
        parallel: bool,
        failures: &Failures,
    ) {
        let g = &self.geometry;
        if self.batch * self.groups * self.cin * g.inputs() == 0 {
            return;
        }
        let (taps, outputs) = (g.kernels(), g.outputs());
        // Small images share a block, so that its product is not narrow.
        let images = (WIDE / outputs.max(1)).clamp(1, self.batch);
        let across = ceil(self.batch, images);
        let width = (images * outputs).min(COLUMN_ELEMENTS / taps.max(1)).max(1);
        let channels = self.cut_channels(self.cin, taps * width, across * self.groups);
        let down = ceil(self.cin, channels);
        let work = images * channels * taps * self.cout * outputs;
        let items = across * self.groups * down;
        let launch = (self.epilogue(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (items, work.max(1)),
            launch,
            |i, args, scratch, work| unsafe {
                let (image, channel) = (i / (self.groups * down) * images, i % down * channels);
                let block = Block {
                    group: i / down % self.groups,
                    image,
                    images: images.min(self.batch - image),
                    channel,
                    channels: channels.min(self.cin - channel),
                };
                self.input_block::<T>(args, &block, scratch, work)
            },
        );
    }

    unsafe fn input_block<T: Lane>(
        &self,
        args: &[*mut u8],
        b: &Block,
        scratch: &mut Scratch,
        work: &mut Work,
    ) -> Result<()> {
        let g = &self.geometry;
        let (taps, outputs, inputs) = (g.kernels(), g.outputs(), g.inputs());
        let rows = b.channels * taps;
        let row = b.group * self.cout * self.cin * taps + b.channel * taps;
        let weights = self.operand::<T>(args, 1, row);
        let first = ((b.image * self.groups + b.group) * self.cin + b.channel) * inputs;
        let step = self.groups * self.cin * inputs;
        let size = b.channels * inputs;
        let (dst, pitch) = if self.epilogue().is_some() {
            (work.scratch::<T>(b.images * size)?, size)
        } else {
            let out = args[self.out].cast::<T>();
            (out.wrapping_offset(first as isize), step)
        };
        // A part of the positions of one image, or all positions of several.
        let part = (COLUMN_ELEMENTS / rows.max(1)).max(16).min(outputs);
        let part = if b.images > 1 { outputs } else { part };
        // SAFETY: linking checked the buffers' lengths against the geometry; gathered gradients and
        // columns have the room reserved for them.
        unsafe {
            for i in 0..b.images {
                let image = dst.wrapping_offset((i * pitch) as isize);
                (0..size).for_each(|e| *image.offset(e as isize) = T::ZERO);
            }
            let add = compiled::<AddColumns<T>, _>(self.level);
            let mut from = 0;
            while from < outputs {
                let count = part.min(outputs - from);
                let width = b.images * count;
                let (y, y_row) = match b.images {
                    1 => (self.gradient::<T>(args, b.group, b.image, from), outputs),
                    _ => {
                        let y = room::<T>(&mut scratch.gathered, self.cout * width)?;
                        self.gather::<T>(args, (0, b.group), (b.image, b.images, from, count), y);
                        (y.cast_const(), width)
                    }
                };
                let columns = room::<T>(&mut scratch.columns, rows * width)?;
                multiply(
                    self.level,
                    (rows, width, self.cout),
                    (columns, width),
                    (weights, 1, self.cin * taps),
                    (y, y_row, 1),
                    false,
                )?;
                for i in 0..b.images {
                    add(Fill {
                        geometry: g,
                        x: dst.wrapping_offset((i * pitch) as isize),
                        apart: g.inputs(),
                        cin: b.channels,
                        from,
                        count,
                        pitch: width,
                        dst: columns.wrapping_offset((i * count) as isize),
                    });
                }
                from += count;
            }
            work.finish((dst, pitch), first, (b.images, step), size);
        }
        Ok(())
    }

    /// Where the gradient of the result of an image and group begins, at a position, when it is the
    /// first operand.
    fn gradient<T>(&self, args: &[*mut u8], group: i64, image: i64, position: i64) -> *const T {
        let row = (image * self.groups + group) * self.cout;
        self.operand(args, 0, row * self.geometry.outputs() + position)
    }

    /// Gathers the gradient of the result, which is operand `which`, of some images side by side:
    /// `[cout, images, count]`.
    ///
    /// # Safety
    /// `to` has room for it.
    pub(super) unsafe fn gather<T: Lane>(
        &self,
        args: &[*mut u8],
        (which, group): (usize, i64),
        (image, images, from, count): (i64, i64, i64, i64),
        to: *mut T,
    ) {
        let outputs = self.geometry.outputs();
        for o in 0..self.cout {
            for i in 0..images {
                let row = ((image + i) * self.groups + group) * self.cout + o;
                let source = self.operand::<T>(args, which, row * outputs + from);
                let place = to.wrapping_offset(((o * images + i) * count) as isize);
                // SAFETY: linking checked the operand's length; the room is the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(source, place, count as usize) };
            }
        }
    }
}
