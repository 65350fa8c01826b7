//! The source of a block: the images themselves, or a copy of the lines that it reads, padding included.

use super::blocking::Blocking;
use super::{ChannelBlock, Conv};
use crate::kernels::conv::narrow::Images;
use crate::kernels::matmul::{Launch, Materialised};
use kiln_kernel::bugs::bug;
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use kiln_kernel::view::{View, ViewMut};

/// The copies that a thread keeps between blocks.
#[derive(Default)]
pub(super) struct Copies {
    copy: Option<Storage>,
    /// The image, group and start that the copy is of.
    holds: Option<(i64, i64, [i64; 3])>,
    pub materialised: Materialised,
}

/// The run, and the images.
pub(super) type ImageArgs<'a> = (&'a Launch<'a>, Images<'a>);

/// The positions whose channels a block reads.
pub(super) struct Source<'a> {
    /// The elements from the first position on.
    first: View<'a, u8>,
    /// The coordinates of the first position in depth, height and width, and the strides along these, in bytes.
    from: [i64; 3],
    strides: [i64; 3],
    /// The stride between images.
    image_stride: i64,
}

impl<'a> Source<'a> {
    /// Returns the source for an image `image` places after the first.
    pub(super) fn of_image(&self, image: i64) -> Source<'a> {
        Source {
            first: self.first.shift(image * self.image_stride),
            ..*self
        }
    }

    pub(super) fn at(&self, at: [i64; 3]) -> View<'a, u8> {
        let offsets = (0..3).map(|i| (at[i] - self.from[i]) * self.strides[i]);
        self.first.shift(offsets.sum())
    }
}

impl Conv {
    /// Returns the source of a block, copied if need be.
    pub(super) fn source<'a>(
        &self,
        images: ImageArgs<'a>,
        blocking: &Blocking,
        b: &ChannelBlock,
        copies: &'a mut Copies,
    ) -> Result<Source<'a>> {
        let windows = blocking.windows(b.from, b.to);
        let from = windows.map(|w| w.0);
        if !blocking.is_copied {
            let materialised = &mut copies.materialised;
            return Ok(self
                .images_read(images, blocking, b, windows, materialised)?
                .0);
        }
        let size = self.dtype.size() as i64;
        let which = (b.image, b.group, b.from);
        let held = copies.holds.replace(which);
        let held = held.map(|h| bug("a copy is taken for that of another block", h, |_| which));
        let to = ViewMut::<u8>::room(&mut copies.copy, blocking.copied() * size)?;
        let source = Source {
            first: *to,
            from,
            strides: blocking.strides(),
            image_stride: blocking.copied_image() * size,
        };
        if held == Some(which) {
            return Ok(source);
        }
        copies.holds = None;
        for image in 0..b.images {
            let (b, materialised) = (b.of_image(image), &mut copies.materialised);
            let (found, channel) = self.images_read(images, blocking, &b, windows, materialised)?;
            for (z, y) in (windows[0].0..windows[0].1)
                .flat_map(|z| (windows[1].0..windows[1].1).map(move |y| (z, y)))
            {
                let at = [z - from[0], y - from[1]];
                let at = at[0] * source.strides[0] + at[1] * source.strides[1];
                let to = to.shift(image * source.image_stride + at);
                let there =
                    (0..blocking.image[0]).contains(&z) && (0..blocking.image[1]).contains(&y);
                self.copy_line(blocking, (&found, channel), (there, [z, y]), windows[2], to);
            }
        }
        copies.holds = Some(which);
        Ok(source)
    }

    /// Copies a line of an image between two positions, or only padding if the line is outside the image.
    fn copy_line(
        &self,
        blocking: &Blocking,
        (images, channel): (&Source, i64),
        (there, [z, y]): (bool, [i64; 2]),
        (from, until): (i64, i64),
        to: ViewMut<u8>,
    ) {
        let (channels, width) = (blocking.words, if there { blocking.image[2] } else { 0 });
        let first = from.max(0).min(until);
        let end = until.min(width).max(first);
        let (front, behind, n) = (first - from, until - end, end - first);
        let behind = bug("padding behind a line is not zero", behind, |_| 0);
        let padding = bug(
            "padding is 0 where 128 is added",
            self.terms.padding(),
            |_| 0,
        );
        let x = images.at([z, y, first]);
        let bytes = channels * self.dtype.size() as i64;
        to.fill(0, front * bytes, padding);
        let to = to.shift(front * bytes);
        if n > 0 {
            let from = (x, [channel, blocking.image_strides()[2]]);
            let packed = (to, [1, channels]);
            self.packer(0).pack(from, (blocking.terms, n), packed);
        }
        to.fill(n * bytes, behind * bytes, padding);
    }

    /// Returns the images, of which at least the part that a block reads is present, and the stride between channels.
    pub(super) fn images_read<'a>(
        &self,
        (launch, images): ImageArgs<'a>,
        blocking: &Blocking,
        b: &ChannelBlock,
        windows: [(i64, i64); 3],
        materialised: &'a mut Materialised,
    ) -> Result<(Source<'a>, i64)> {
        let size = self.read_dtype(0).size() as i64;
        let image = b.image * blocking.image_len();
        let group = image + b.group * blocking.terms * blocking.channel_stride();
        let source = |x: View<'a, u8>| Source {
            first: x.shift(group * size),
            from: [0; 3],
            strides: blocking.image_strides().map(|n| n * size),
            image_stride: blocking.image_len() * size,
        };
        let program = match images {
            Images::InMemory(x) => return Ok((source(x), blocking.channel_stride())),
            Images::Prologue(program) => program,
        };
        let [z, y, x] = [0, 1, 2].map(|i| {
            let (from, until) = windows[i];
            let from = from.clamp(0, blocking.image[i]);
            (from, until.clamp(from, blocking.image[i]))
        });
        let [deep, high, channels] = blocking.image_strides();
        let lines = |z: i64, y: i64| z * deep + y * high;
        // Of a single line, only a part is read.
        let (from, until) = match (z.1 - z.0, y.1 - y.0) {
            (1, 1) => {
                let line = lines(z.0, y.0);
                (line + x.0 * channels, line + x.1 * channels)
            }
            (0, _) | (_, 0) => (0, 0),
            _ => (lines(z.0, y.0), lines(z.1 - 1, y.1)),
        };
        let len = until - from;
        // With channels first, the part is the same for each channel of the group.
        let (at, lines, channel) = match blocking.reads_nchw {
            true => {
                let lines = (blocking.terms, blocking.channel_stride(), len);
                (group + from, lines, len)
            }
            false => (image + from, (1, len, len), 1),
        };
        let (args, which) = (&launch.args, (at, len));
        let lines = (lines, len);
        let to = materialised.materialise(program, args, which, at, lines, launch.failures)?;
        Ok((source(to.shift(-at * size)), channel))
    }
}
