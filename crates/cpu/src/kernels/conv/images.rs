//! Images in the layout that a kernel reads or writes.

use super::Conv;
use super::narrow::Images;
use crate::kernels::matmul::{Launch, Materialised, Results, split};
use kiln_jit::contraction::pack;
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::transpose::transpose;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{View, ViewMut};
use kiln_plan::ConvRole;
use kiln_plan::cost::geometry::Geometry;

/// The layout of copies of images for a depthwise convolution: channels side by side.
pub(super) struct CopyLayout {
    /// The extents of an image.
    pub extents: [i64; 3],
    /// True if the images have channels first (NCHW).
    pub nchw: bool,
    /// The strides of an image's positions in a copy; zeros fill the gaps.
    pub strides: [i64; 3],
}

impl CopyLayout {
    /// Returns the extents of a copied image.
    pub fn copied_extents(&self) -> [i64; 3] {
        [0, 1, 2].map(|i| match self.extents[i] {
            0 => 0,
            n => (n - 1).saturating_mul(self.strides[i]) + 1,
        })
    }

    /// Returns the number of elements of all copies.
    pub fn len(&self, c: &Conv) -> i64 {
        let channels = c.batch.saturating_mul(c.groups);
        self.copied_extents()
            .into_iter()
            .fold(channels, i64::saturating_mul)
    }
}

impl Conv {
    /// Copies images to a layout.
    pub(super) fn copy_images<'a, T: Lane>(
        &self,
        x: View<T>,
        copies: &CopyLayout,
        storage: &'a mut Option<Storage>,
        parallel: bool,
    ) -> Result<View<'a, T>> {
        let to = ViewMut::room(storage, copies.len(self))?;
        let [depth, height, width] = copies.extents;
        let [copied_depth, copied_height, copied_width] = copies.copied_extents();
        let (channels, image_positions) = (self.groups, depth * height * width);
        if copies.strides != [1; 3] {
            to.fill(0, copies.len(self), T::ZERO);
        }
        let lines = self.batch * depth * height;
        split(lines, width * channels * 4, parallel, |first, end| {
            for line in first..end {
                let (image, d, h) = (line / height / depth, line / height % depth, line % height);
                let place = (image * copied_depth + d * copies.strides[0]) * copied_height
                    + h * copies.strides[1];
                let pitch = copies.strides[2] * channels;
                let to = to.shift(place * copied_width * channels);
                let from = match copies.nchw {
                    true => {
                        let at = image * channels * image_positions + (d * height + h) * width;
                        (x.shift(at), 1, image_positions)
                    }
                    false => (x.shift(line * width * channels), channels, 1),
                };
                pack(self.level, from, (width, channels), (to, pitch));
            }
        });
        Ok(*to)
    }

    /// Returns the positions of an image of the result, and the channels of a position.
    fn result_sizes(&self) -> (i64, i64) {
        match self.role {
            ConvRole::Input => (self.geometry.inputs(), self.groups * self.cin),
            _ => (self.geometry.outputs(), self.groups * self.cout),
        }
    }

    /// Returns the destination of a block's results from a position of all images and a channel on: memory for `len` of
    /// them in rows `pitch` apart, if they are still to be transposed to channels first (`nchw`) or finished.
    pub(super) fn destination<'a, T: Lane>(
        &self,
        launch: &Launch<'a>,
        (position, channel): (i64, i64),
        nchw: bool,
        (storage, len, pitch): (&'a mut Option<Storage>, i64, i64),
    ) -> Result<Results<'a, T>> {
        let (_, all) = self.result_sizes();
        let to = (self.out, position * all + channel, all);
        match nchw {
            true => Ok((ViewMut::room(storage, len)?, pitch)),
            false => launch.destination(to, (storage, len, pitch)),
        }
    }

    /// Finishes a block's results, which start at a position of all images and a channel: transposes them to channels
    /// first (`nchw`), and applies the epilogue.
    pub(super) fn finish<T: Lane>(
        &self,
        launch: &Launch,
        (results, pitch): Results<T>,
        (first, channel): (i64, i64),
        (positions, channels): (i64, i64),
        (nchw, raw): (bool, &mut Option<Storage>),
    ) -> Result<()> {
        let (image, all) = self.result_sizes();
        if !nchw {
            let at = first * all + channel;
            return launch.apply_epilogue((results, pitch), at, (positions, all), channels);
        }
        let mut done = 0;
        while done < positions {
            let at = (first + done) % image;
            let count = (positions - done).min(image - at);
            let at = ((first + done) / image * all + channel) * image + at;
            let (to, to_pitch): Results<T> =
                launch.destination((self.out, at, image), (raw, count * channels, count))?;
            let from = (*results.shift(done * pitch), pitch);
            transpose(self.level, from, (count, channels), (to, to_pitch));
            launch.apply_epilogue((to, to_pitch), at, (channels, image), count)?;
            done += count;
        }
        Ok(())
    }

    /// Returns the images, running the prologue if there is one; only what these output positions read is valid.
    pub(super) fn images_of<'a>(
        &self,
        launch: &Launch,
        (g, images): (&Geometry, Images<'a>),
        (position, positions): (i64, i64),
        materialised: &'a mut Materialised,
    ) -> Result<View<'a, u8>> {
        let program = match images {
            Images::InMemory(x) => return Ok(x),
            Images::Prologue(program) => program,
        };
        let last = position + positions - 1;
        let (all, image_positions) = (g.outputs(), g.inputs());
        let (first_image, last_image) = (position / all, last / all);
        let (begin, end) = (position % all, last % all + 1);
        let (from, to) = match first_image == last_image {
            true => g.footprint(begin, end),
            // Images between the first and the last are read whole.
            false => (g.footprint(begin, all).0, g.footprint(0, end).1),
        };
        let channels = self.groups * self.cin;
        let at = (first_image * image_positions + from) * channels;
        let len = ((last_image - first_image) * image_positions + to - from) * channels;
        let lines = ((1, len, len), len);
        let to = materialised.materialise(
            program,
            &launch.args,
            (at, len),
            at,
            lines,
            launch.failures,
        )?;
        Ok(to.shift(-at * self.read_dtype(0).size() as i64))
    }
}
