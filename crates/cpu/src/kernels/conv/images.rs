//! Images in the layout that a kernel reads or writes.

use super::Conv;
use super::narrow::Images;
use crate::kernels::matmul::{Launch, Materialised, split};
use kiln_jit::contraction::pack;
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::transpose::transpose;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{View, ViewMut};
use kiln_plan::cost::geometry::Geometry;

/// The layout of copies of images for a depthwise convolution: channels side by side.
pub(super) struct ImageCopies {
    /// The extents of an image.
    pub extents: [i64; 3],
    /// True if the images have channels first (NCHW).
    pub nchw: bool,
    /// The strides of positions in a copy; zeros fill the gaps.
    pub steps: [i64; 3],
}

impl ImageCopies {
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
    pub(super) fn copy_images<'a, T: Lane>(
        &self,
        x: View<T>,
        copies: &ImageCopies,
        storage: &'a mut Option<Storage>,
        parallel: bool,
    ) -> Result<View<'a, T>> {
        let to = ViewMut::room(storage, copies.len(self))?;
        let ([depth, height, width], [deep, high, wide]) = (copies.extents, copies.copied());
        let (channels, inputs) = (self.groups, depth * height * width);
        if copies.steps != [1; 3] {
            to.fill(0, copies.len(self), T::ZERO);
        }
        let lines = self.batch * depth * height;
        split(lines, width * channels * 4, parallel, |first, end| {
            for line in first..end {
                let (image, d, h) = (line / height / depth, line / height % depth, line % height);
                let place = (image * deep + d * copies.steps[0]) * high + h * copies.steps[1];
                let pitch = copies.steps[2] * channels;
                let to = to.shift(place * wide * channels);
                let from = match copies.nchw {
                    true => {
                        let at = image * channels * inputs + (d * height + h) * width;
                        (x.shift(at), 1, inputs)
                    }
                    false => (x.shift(line * width * channels), channels, 1),
                };
                pack(self.level, from, (width, channels), (to, pitch));
            }
        });
        Ok(*to)
    }

    /// Transposes some positions of an image's result to channels first, and applies the epilogue. `channel` counts the
    /// channels of all images, `position` the `all` positions of an image.
    pub(super) fn write_nchw<T: Lane>(
        &self,
        launch: &Launch,
        (from, pitch): (View<T>, i64),
        (channel, channels): (i64, i64),
        (all, position, positions): (i64, i64, i64),
        raw: &mut Option<Storage>,
    ) -> Result<()> {
        let first = channel * all + position;
        let (to, to_pitch) = match self.epilogue {
            Some(_) => (ViewMut::room(raw, positions * channels)?, positions),
            None => (launch.args.view_mut(self.out).shift(first), all),
        };
        transpose(
            self.level,
            (from, pitch),
            (positions, channels),
            (to, to_pitch),
        );
        launch.apply_epilogue((to, to_pitch), first, (channels, all), positions)
    }

    /// Returns the images, of which at least the part that some positions read is present.
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
        let lines = ((1, len, len), len);
        let to =
            materialised.bring(program, &launch.args, (at, len), at, lines, launch.failures)?;
        Ok(to.shift(-at * self.image_dtype().size() as i64))
    }
}
