//! Images as a convolution with a channel a group reads them where they hold the channels of a position side by side.

use super::Conv;
use crate::error::Result;
use crate::kernels::matmul::{Args, Made, split};
use crate::memory::{Storage, room};
use crate::simd::compiled;
use crate::simd::transpose::{Transpose, Turn};
use crate::sums::Lane;
use crate::tile::Failures;
use kiln_plan::cost::geometry::Geometry;

impl Conv {
    /// The images, or copies of them with the channels of a position side by side and with this padding.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn turned_images<T: Lane>(
        &self,
        args: &[*mut u8],
        turned: Option<&Geometry>,
        storage: &mut Option<Storage>,
        parallel: bool,
    ) -> Result<*const T> {
        let x = self.operand::<T>(args, 0, 0);
        let Some(turned) = turned else {
            return Ok(x);
        };
        let channels = self.groups * self.cin;
        let to = room::<T>(storage, self.batch * turned.inputs() * channels)?;
        // SAFETY: there is room for the copies; the images have their elements.
        unsafe { self.turn_images(turned, x, to, parallel) };
        Ok(to)
    }

    /// Copies images with channels first into such with channels last, and with their padding.
    ///
    /// # Safety
    /// The images have the elements that linking checked, and there is room for the copies.
    unsafe fn turn_images<T: Lane>(&self, g: &Geometry, x: *const T, to: *mut T, parallel: bool) {
        let channels = self.groups * self.cin;
        let [depth, height, width] = &self.geometry.axes;
        let [planes, lines, across] = g.axes.map(|a| a.input);
        // Padding that the copies have.
        let shift = |i: usize| self.geometry.axes[i].padding - g.axes[i].padding;
        let shift = [0, 1, 2].map(shift);
        let pair = [x.cast_mut().cast::<u8>(), to.cast()];
        let pair = Args(&pair);
        let rows = self.batch * planes * lines;
        // The part of a row that is no padding.
        let (from, until) = (
            shift[2].clamp(0, across),
            (shift[2] + width.input).clamp(0, across),
        );
        split(rows, across * channels * 4, parallel, |first, end| {
            let pair = &pair;
            let (x, to) = (pair.0[0].cast::<T>(), pair.0[1].cast::<T>());
            for row in first..end {
                let (image, plane, line) =
                    (row / (planes * lines), row / lines % planes, row % lines);
                let (d, h) = (plane - shift[0], line - shift[1]);
                let is_there = (0..depth.input).contains(&d) && (0..height.input).contains(&h);
                let to = to.wrapping_offset((row * across * channels) as isize);
                let (from, until) = if is_there {
                    (from, until.max(from))
                } else {
                    (across, across)
                };
                let source = (image * channels * depth.input + d) * height.input + h;
                // SAFETY: the caller's; rows are written by one part each, and what is read lies in the images.
                unsafe {
                    for at in (0..from * channels).chain(until * channels..across * channels) {
                        *to.offset(at as isize) = T::ZERO;
                    }
                    let plane = depth.input * height.input * width.input;
                    compiled::<Turn<T>, _>(self.level)(Transpose {
                        from: x.wrapping_offset((source * width.input + from - shift[2]) as isize),
                        pitch: plane as isize,
                        rows: channels as usize,
                        columns: (until - from) as usize,
                        to: to.wrapping_offset((from * channels) as isize),
                        to_pitch: channels as isize,
                    });
                }
            }
        });
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
