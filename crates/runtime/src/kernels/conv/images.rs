//! Images as a convolution with a channel a group reads them where they hold the channels of a position side by side.

use super::Conv;
use crate::error::Result;
use crate::kernels::matmul::{Args, Made, split};
use crate::memory::{Storage, room};
use crate::simd::compiled;
use crate::simd::transpose::{Transpose, Turn};
use crate::sums::Lane;
use crate::tile::Failures;

impl Conv {
    /// Copies of the images, which have channels first, with the channels of a position side by side.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn turned_images<T: Lane>(
        &self,
        x: *const T,
        storage: &mut Option<Storage>,
        parallel: bool,
    ) -> Result<*const T> {
        let (channels, inputs) = (self.groups * self.cin, self.geometry.inputs());
        let [depth, height, width] = self.geometry.axes.map(|a| a.input);
        let to = room::<T>(storage, self.batch * inputs * channels)?;
        let pair = [x.cast_mut().cast::<u8>(), to.cast()];
        let pair = Args(&pair);
        let lines = self.batch * depth * height;
        split(lines, width * channels * 4, parallel, |first, end| {
            let pair = &pair;
            let (x, to) = (pair.0[0].cast::<T>(), pair.0[1].cast::<T>());
            for line in first..end {
                let (image, at) = (line / (depth * height), line % (depth * height) * width);
                // SAFETY: linking checked the images' length; a line is written by one part.
                unsafe {
                    compiled::<Turn<T>, _>(self.level)(Transpose {
                        from: x.offset((image * channels * inputs + at) as isize),
                        pitch: inputs as isize,
                        rows: channels as usize,
                        columns: width as usize,
                        to: to.offset((line * width * channels) as isize),
                        to_pitch: channels as isize,
                    });
                }
            }
        });
        Ok(to)
    }

    /// Where the images begin, of which what so many positions read is there.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn images_of<T>(
        &self,
        args: &[*mut u8],
        x: *const T,
        (position, positions): (i64, i64),
        made: &mut Made,
        failures: &Failures,
    ) -> Result<*const T> {
        let Some(program) = &self.made else {
            return Ok(x);
        };
        let (g, last) = (&self.geometry, position + positions - 1);
        let (all, inputs) = (g.outputs(), g.inputs());
        let (first, image) = (position / all, last / all);
        let (begin, end) = (position % all, last % all + 1);
        let (from, to) = match first == image {
            true => g.reach(begin, end),
            // The images between are read whole.
            false => (g.reach(begin, all).0, g.reach(0, end).1),
        };
        let channels = self.groups * self.cin;
        let at = (first * inputs + from) * channels;
        let len = ((image - first) * inputs + to - from) * channels;
        // SAFETY: the caller's.
        let to = unsafe { made.bring::<T>(program, args, (at, len), at, (1, len, len), failures)? };
        Ok(to.wrapping_offset(-at as isize))
    }
}
