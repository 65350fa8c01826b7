//! Accumulation one tap of a position at a time, from the images without a copy. It is used where weights that are not
//! finite must not meet padding, and where copies of lines would be far larger than the images.

use super::blocking::{Blocking, many};
use super::copy::{ImageArgs, Scratch};
use super::{ChannelBlock, Conv, Results};
use kiln_jit::contraction::{Call, Kernel, RightSide, Rows, Tile};
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::sums::Lane;
use kiln_plan::ConvRole;

impl Blocking {
    /// Returns a register tile that adds one tap of one position to its result; the terms of A are `apart` elements
    /// apart.
    fn one_tap(&self, c: &Conv, columns: i64, [apart, pitch]: [i64; 2]) -> Result<Kernel> {
        let size = c.dtype.size() as i64;
        Kernel::of(Tile {
            level: c.level,
            instruction: c.terms.instruction(),
            rows: Rows::of_matrix(1, 0),
            columns: columns as u16,
            step: apart * size,
            right: RightSide::of_panel(self.panel * size),
            steps: many(self.sums)?,
            taps: 1,
            out: pitch * size,
            adds: true,
            starts: false,
            strip: [0; 2],
            finish: None,
        })
    }

    /// Returns the place that a position reads at a tap, if it reads one.
    fn read(&self, c: &Conv, at: [i64; 3], taps: [i64; 3]) -> Option<[i64; 3]> {
        let mut read = [0; 3];
        for (i, a) in self.axes.iter().enumerate() {
            read[i] = match c.role {
                ConvRole::Input => {
                    let at = at[i] + a.padding - taps[i] * a.dilation;
                    (at.rem_euclid(a.stride) == 0).then(|| at / a.stride)?
                }
                _ => a.source(at[i], taps[i]),
            };
        }
        Some(read)
    }
}

impl Conv {
    /// Accumulates a block, one tap of a position at a time. Taps that read padding add zeros times weights, but
    /// nothing in a gradient of images.
    ///
    /// # Safety
    /// As [`Conv::dense_block`].
    pub(super) unsafe fn add_taps<T: Lane>(
        &self,
        images: ImageArgs,
        blocking: &Blocking,
        b: &ChannelBlock,
        weights: *const T,
        ((dst, pitch), scratch): (Results<T>, &mut Scratch),
        failures: &Failures,
    ) -> Result<()> {
        let windows = blocking.windows(b.from, b.to);
        // SAFETY: the caller's.
        let (source, channel) = unsafe {
            self.images_read::<T>(
                images,
                blocking,
                b,
                windows,
                &mut scratch.materialised,
                failures,
            )?
        };
        let narrow = self.narrow;
        let mut words = vec![0u32; if narrow { blocking.sums as usize } else { 0 }];
        let apart = if narrow { 1 } else { channel };
        let [kernels @ .., wide] = blocking.axes.map(|a| a.kernel);
        let (high, count) = (kernels[1], blocking.taps.len() as i64);
        let line = b.to[2] - b.from[2];
        let zero = u64::from_ne_bytes([self.terms.padding(); 8]);
        for panel in (b.channel..b.channel + b.channels).step_by(blocking.panel as usize) {
            let columns = blocking.panel.min(blocking.columns - panel);
            let [kernel, padding] = [apart, 0].map(|n| blocking.one_tap(self, columns, [n, pitch]));
            let (kernel, padding) = (kernel?, padding?);
            let starts = weights.wrapping_offset(blocking.panel_at(b.group, panel) as isize);
            let weights =
                starts.wrapping_offset((i64::from(blocking.starts) * blocking.panel) as isize);
            for (y, x) in
                (b.from[1]..b.to[1]).flat_map(|y| (b.from[2]..b.to[2]).map(move |x| (y, x)))
            {
                let to = ((y - b.from[1]) * line + x - b.from[2]) * pitch + panel - b.channel;
                let to = dst.wrapping_offset(to as isize);
                // SAFETY: there is room for the results.
                unsafe {
                    for i in 0..columns as isize {
                        *to.offset(i) = if blocking.starts {
                            *starts.offset(i)
                        } else {
                            T::ZERO
                        };
                    }
                }
                for tap in 0..count {
                    let taps = [tap / wide / high, tap / wide % high, tap % wide];
                    let (place, read) = (
                        blocking.taps[tap as usize],
                        blocking.read(self, [b.from[0], y, x], taps),
                    );
                    let Some(read) = read.filter(|_| place >= 0) else {
                        continue;
                    };
                    let is_there = (0..3).all(|i| (0..blocking.image[i]).contains(&read[i]));
                    if !is_there && blocking.checks_finite(self) {
                        continue;
                    }
                    let (kernel, left) = match is_there {
                        true => (&kernel, source.at(read)),
                        false => (&padding, (&raw const zero).cast()),
                    };
                    let left = match is_there && narrow {
                        true => {
                            // SAFETY: the caller's; there is room for the words.
                            unsafe {
                                self.join(left, channel, blocking.terms, words.as_mut_ptr().cast())
                            };
                            words.as_ptr().cast()
                        }
                        false => left,
                    };
                    let row = place * blocking.sums * blocking.panel;
                    let call = Call {
                        left,
                        right: weights.wrapping_offset(row as isize).cast(),
                        out: to.cast(),
                        finish: std::ptr::null(),
                        taps: std::ptr::null(),
                        tiles: 1,
                    };
                    // SAFETY: the caller's; only elements within the images are read.
                    unsafe { kernel.run(&call) };
                }
            }
        }
        Ok(())
    }
}
