//! The source of a block: the images themselves, or a copy of the lines that it reads, padding included.

use super::blocking::Blocking;
use super::{ChannelBlock, Conv};
use crate::kernels::conv::narrow::Images;
use crate::kernels::matmul::Materialised;
use kiln_kernel::bugs::bug;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::simd::compiled;
use kiln_kernel::simd::transpose::{Transpose, TransposeKernel};
use kiln_kernel::sums::Lane;

/// The buffers that a thread keeps between blocks.
#[derive(Default)]
pub(super) struct Scratch {
    copy: Option<Storage>,
    /// The image, group and start that the copy is of.
    holds: Option<(i64, i64, [i64; 3])>,
    pub materialised: Materialised,
    /// Results that are still to be transposed.
    pub results: Option<Storage>,
}

/// The arguments, and the images.
pub(super) type ImageArgs<'a> = (&'a [*mut u8], Images<'a>);

/// The positions whose channels a block reads.
pub(super) struct Source {
    /// The address of the first position.
    first: *const u8,
    /// The coordinates of the first position in depth, height and width, and the strides along these, in bytes.
    from: [i64; 3],
    apart: [i64; 3],
    /// The stride between images.
    images_apart: i64,
}

impl Source {
    /// Returns the images as a source.
    pub(super) fn images<T>(blocking: &Blocking, x: *const T, b: &ChannelBlock) -> Source {
        let at =
            b.image * blocking.image_len() + b.group * blocking.terms * blocking.channel_apart();
        Source {
            first: x.wrapping_offset(at as isize).cast(),
            from: [0; 3],
            apart: blocking
                .apart_in_images()
                .map(|n| n * size_of::<T>() as i64),
            images_apart: blocking.image_len() * size_of::<T>() as i64,
        }
    }

    /// Returns the source for an image `image` places after the first.
    pub(super) fn of_image(&self, image: i64) -> Source {
        let first = image * self.images_apart;
        Source {
            first: self.first.wrapping_offset(first as isize),
            ..*self
        }
    }

    pub(super) fn at(&self, at: [i64; 3]) -> *const u8 {
        let apart = (0..3).map(|i| (at[i] - self.from[i]) * self.apart[i]);
        self.first.wrapping_offset(apart.sum::<i64>() as isize)
    }
}

impl Conv {
    /// Returns the source of a block, copied if need be.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn bring<T: Lane>(
        &self,
        images: ImageArgs,
        blocking: &Blocking,
        b: &ChannelBlock,
        scratch: &mut Scratch,
        failures: &Failures,
    ) -> Result<Source> {
        let windows = blocking.windows(b.from, b.to);
        let from = windows.map(|w| w.0);
        let copy = |to: *const T| Source {
            first: to.cast(),
            from,
            apart: blocking.apart(),
            images_apart: blocking.copied_image() * size_of::<T>() as i64,
        };
        let which = (b.image, b.group, b.from);
        let held = scratch
            .holds
            .map(|h| bug("a copy is taken for that of another block", h, |_| which));
        if blocking.is_copied && held == Some(which) {
            return Ok(copy(room::<T>(&mut scratch.copy, blocking.copied())?));
        }
        let mut found = |image: i64| {
            let (b, materialised) = (&b.of_image(image), &mut scratch.materialised);
            // SAFETY: the caller's.
            unsafe { self.images_read::<T>(images, blocking, b, windows, materialised, failures) }
        };
        if !blocking.is_copied {
            return Ok(found(0)?.0);
        }
        let source = copy(room::<T>(&mut scratch.copy, blocking.copied())?);
        for image in 0..b.images {
            let (found, channel) = found(image)?;
            let source = source.of_image(image);
            for z in windows[0].0..windows[0].1 {
                for y in windows[1].0..windows[1].1 {
                    let to = source.at([z, y, from[2]]).cast_mut().cast::<T>();
                    let there =
                        (0..blocking.image[0]).contains(&z) && (0..blocking.image[1]).contains(&y);
                    let line = (there, [z, y]);
                    // SAFETY: there is room for all lines; the elements that are read are within the images.
                    unsafe { self.copy_line(blocking, (&found, channel), line, windows[2], to) };
                }
            }
        }
        scratch.holds = Some(which);
        Ok(source)
    }

    /// Copies a line of an image between two positions, or only padding if the line is outside the image.
    ///
    /// # Safety
    /// The part within the image exists, and there is room.
    unsafe fn copy_line<T: Lane>(
        &self,
        blocking: &Blocking,
        (images, channel): (&Source, i64),
        (there, [z, y]): (bool, [i64; 2]),
        (from, until): (i64, i64),
        to: *mut T,
    ) {
        let (channels, width) = (blocking.sums, if there { blocking.image[2] } else { 0 });
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
        let position = |i: i64| x.wrapping_offset((i * images.apart[2]) as isize);
        // SAFETY: the caller's.
        unsafe {
            to.write_bytes(padding, (front * channels) as usize);
            let to = to.offset((front * channels) as isize);
            match blocking.reads_nchw {
                true if self.narrow => {
                    self.pack_channels(x, (channel, blocking.terms), (n, to.cast()));
                }
                // The channels of all positions are contiguous, and so are their words.
                _ if blocking.is_one_run(self) => {
                    self.terms.make(0, (x, 1), n * blocking.terms, to.cast())
                }
                _ if self.narrow => (0..n).for_each(|i| {
                    let to = to.offset((i * channels) as isize).cast();
                    self.join(position(i), channel, blocking.terms, to);
                }),
                true => compiled::<TransposeKernel<T>, _>(self.level)(Transpose {
                    from: x.cast::<T>(),
                    pitch: channel as isize,
                    rows: channels as usize,
                    columns: n as usize,
                    to,
                    to_pitch: channels as isize,
                }),
                false if blocking.groups == 1 => {
                    std::ptr::copy_nonoverlapping(x.cast::<T>(), to, (n * channels) as usize);
                }
                false => (0..n).for_each(|i| {
                    let to = to.offset((i * channels) as isize);
                    std::ptr::copy_nonoverlapping(position(i).cast(), to, channels as usize);
                }),
            }
            to.offset((n * channels) as isize)
                .write_bytes(padding, (behind * channels) as usize);
        }
    }

    /// Returns the images, of which at least the part that a block reads is present, and the stride between channels.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn images_read<T>(
        &self,
        images: ImageArgs,
        blocking: &Blocking,
        b: &ChannelBlock,
        windows: [(i64, i64); 3],
        materialised: &mut Materialised,
        failures: &Failures,
    ) -> Result<(Source, i64)> {
        // SAFETY: the caller's.
        unsafe {
            match self.image_dtype().size() {
                1 => self.begin::<u8>(images, blocking, b, windows, materialised, failures),
                2 => self.begin::<u16>(images, blocking, b, windows, materialised, failures),
                _ => self.begin::<T>(images, blocking, b, windows, materialised, failures),
            }
        }
    }

    /// Implements [`Conv::images_read`] for an element type.
    ///
    /// # Safety
    /// As [`Conv::run`]; the images are of this type.
    unsafe fn begin<T>(
        &self,
        images: ImageArgs,
        blocking: &Blocking,
        b: &ChannelBlock,
        windows: [(i64, i64); 3],
        materialised: &mut Materialised,
        failures: &Failures,
    ) -> Result<(Source, i64)> {
        let source = |x: *const T| Source::images(blocking, x, b);
        let program = match images.1 {
            Images::InMemory(x) => return Ok((source(x.cast()), blocking.channel_apart())),
            Images::Prologue(program) => program,
        };
        let [z, y, x] = [0, 1, 2].map(|i| {
            let (from, until) = windows[i];
            let from = from.clamp(0, blocking.image[i]);
            (from, until.clamp(from, blocking.image[i]))
        });
        let [deep, high, _] = blocking.apart_in_images();
        let channels = blocking.apart_in_images()[2];
        let lines = |z: i64, y: i64| z * deep + y * high;
        let image = b.image * blocking.image_len();
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
        if !blocking.reads_nchw {
            let at = image + from;
            let lines = (1, len, len);
            // SAFETY: the caller's.
            let to = unsafe {
                materialised.bring::<T>(program, images.0, (at, len), at, lines, failures)?
            };
            return Ok((source(to.wrapping_offset(-at as isize)), 1));
        }
        // The part is the same for each channel of the group.
        let group = image + b.group * blocking.terms * blocking.channel_apart();
        let (at, lines) = (
            group + from,
            (blocking.terms, blocking.channel_apart(), len),
        );
        // SAFETY: the caller's.
        let to =
            unsafe { materialised.bring::<T>(program, images.0, (at, len), at, lines, failures)? };
        Ok((source(to.wrapping_offset(-at as isize)), len))
    }
}
