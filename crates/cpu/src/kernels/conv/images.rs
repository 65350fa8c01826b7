//! Images in the layout that a kernel reads or writes.

use super::Conv;
use super::narrow::Images;
use crate::kernels::matmul::{Args, EpilogueRunner, Materialised, split};
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::simd::compiled;
use kiln_kernel::simd::transpose::{Transpose, TransposeKernel};
use kiln_kernel::sums::Lane;
use kiln_plan::cost::geometry::Geometry;

/// The layout of copies of images for a depthwise convolution: channels side by side.
pub(super) struct ImageCopies {
    /// The extents of an image.
    extents: [i64; 3],
    /// True if the images have channels first (NCHW).
    nchw: bool,
    /// The strides of positions in a copy; zeros fill the gaps.
    steps: [i64; 3],
}

impl ImageCopies {
    /// Returns the layout of copies of images that have channels first.
    pub fn nchw(extents: [i64; 3]) -> ImageCopies {
        ImageCopies::apart(extents, true, [1; 3])
    }

    /// Returns the layout of copies whose positions have these strides.
    pub fn apart(extents: [i64; 3], nchw: bool, steps: [i64; 3]) -> ImageCopies {
        ImageCopies {
            extents,
            nchw,
            steps,
        }
    }

    /// Returns the extents of a copy.
    pub fn copied(&self) -> [i64; 3] {
        [0, 1, 2].map(|i| match self.extents[i] {
            0 => 0,
            n => (n - 1).saturating_mul(self.steps[i]) + 1,
        })
    }

    /// Returns the number of elements of all copies.
    pub fn len(&self, c: &Conv) -> i64 {
        let channels = c.batch.saturating_mul(c.groups);
        self.copied()
            .into_iter()
            .fold(channels, i64::saturating_mul)
    }
}

impl Conv {
    /// Copies images to a layout.
    ///
    /// # Safety
    /// The images exist.
    pub(super) unsafe fn copy_images<T: Lane>(
        &self,
        x: *const T,
        copies: &ImageCopies,
        storage: &mut Option<Storage>,
        parallel: bool,
    ) -> Result<*const T> {
        let to = room::<T>(storage, copies.len(self))?;
        let ([depth, height, width], [deep, high, wide]) = (copies.extents, copies.copied());
        let (channels, inputs) = (self.groups, depth * height * width);
        if copies.steps != [1; 3] {
            // SAFETY: there is room.
            unsafe { to.write_bytes(0, copies.len(self) as usize) };
        }
        let pair = [x.cast_mut().cast::<u8>(), to.cast()];
        let pair = Args(&pair);
        let lines = self.batch * depth * height;
        split(lines, width * channels * 4, parallel, |first, end| {
            let pair = &pair;
            let (x, to) = (pair.0[0].cast::<T>(), pair.0[1].cast::<T>());
            for line in first..end {
                let (image, d, h) = (line / height / depth, line / height % depth, line % height);
                let place = (image * deep + d * copies.steps[0]) * high + h * copies.steps[1];
                let apart = copies.steps[2] * channels;
                // SAFETY: the caller's; a line is written by one part.
                unsafe {
                    let to = to.offset((place * wide * channels) as isize);
                    if copies.nchw {
                        let at = image * channels * inputs + (d * height + h) * width;
                        compiled::<TransposeKernel<T>, _>(self.level)(Transpose {
                            from: x.offset(at as isize),
                            pitch: inputs as isize,
                            rows: channels as usize,
                            columns: width as usize,
                            to,
                            to_pitch: apart as isize,
                        });
                        continue;
                    }
                    let x = x.offset((line * width * channels) as isize);
                    for i in 0..width {
                        let to = to.offset((i * apart) as isize);
                        let x = x.offset((i * channels) as isize);
                        std::ptr::copy_nonoverlapping(x, to, channels as usize);
                    }
                }
            }
        });
        Ok(to)
    }

    /// Transposes some positions of an image's result to channels first, and applies the epilogue. `channel` counts the
    /// channels of all images, `position` the `all` positions of an image.
    ///
    /// # Safety
    /// As [`Conv::run`]; the results are there.
    pub(super) unsafe fn write_nchw<T: Lane>(
        &self,
        args: &[*mut u8],
        (from, pitch): (*const T, i64),
        (channel, channels): (i64, i64),
        (all, position, positions): (i64, i64, i64),
        work: &mut EpilogueRunner,
    ) -> Result<()> {
        let first = channel * all + position;
        let (to, apart) = match self.epilogue {
            Some(_) => (work.scratch::<T>(positions * channels)?, positions),
            None => (self.result_at::<T>(args, first), all),
        };
        // SAFETY: the caller's; there is room for the results.
        unsafe {
            compiled::<TransposeKernel<T>, _>(self.level)(Transpose {
                from,
                pitch: pitch as isize,
                rows: positions as usize,
                columns: channels as usize,
                to,
                to_pitch: apart as isize,
            });
            work.finish((to, apart), first, (channels, all), positions);
        }
        Ok(())
    }

    /// Returns the address of the images, of elements T, of which at least the part that some positions read is
    /// present.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn images_of<T>(
        &self,
        args: &[*mut u8],
        (g, images): (&Geometry, Images),
        (position, positions): (i64, i64),
        materialised: &mut Materialised,
        failures: &Failures,
    ) -> Result<*const u8> {
        let program = match images {
            Images::InMemory(x) => return Ok(x),
            Images::Prologue(program) => program,
        };
        let last = position + positions - 1;
        let (all, inputs) = (g.outputs(), g.inputs());
        let (first, image) = (position / all, last / all);
        let (begin, end) = (position % all, last % all + 1);
        let (from, to) = match first == image {
            true => g.footprint(begin, end),
            // Images between the first and the last are read whole.
            false => (g.footprint(begin, all).0, g.footprint(0, end).1),
        };
        let channels = self.groups * self.cin;
        let at = (first * inputs + from) * channels;
        let len = ((image - first) * inputs + to - from) * channels;
        // SAFETY: the caller's.
        let to = unsafe {
            materialised.bring::<T>(program, args, (at, len), at, (1, len, len), failures)?
        };
        Ok(to.wrapping_offset(-at as isize).cast())
    }
}
