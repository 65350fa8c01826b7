//! Accumulation one tap of a position at a time, from the images without a copy. It is used where weights that are not
//! finite must not meet padding, and where copies of lines would be far larger than the images.

use super::blocking::{Blocking, to_u32};
use super::copy::{Copies, ImageArgs};
use super::{ChannelBlock, Conv, Results};
use kiln_jit::contraction::{Columns, Left, Order, Output, RightSide, Rows, Tile, TileGrid};
use kiln_kernel::error::Result;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{View, ViewMut};
use kiln_plan::ConvRole;

impl Blocking {
    /// Returns the tiles that add one tap of one position to its result; the terms of A have a stride of `stride`.
    fn one_tap(&self, c: &Conv, [stride, pitch]: [i64; 2]) -> Result<TileGrid> {
        let size = c.dtype.size() as i64;
        let right = RightSide::of_panel(self.panel * size);
        let (by, columns) = ((c.level, c.terms.instruction), self.panel.min(self.columns));
        let tile = Tile {
            step: stride * size,
            steps: to_u32(self.words)?,
            out: pitch * size,
            adds: true,
            ..Tile::new(by, Rows::of_matrix(1, 0), columns, right)
        };
        TileGrid::new(&tile, [1, 1, self.columns], Order::default())
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
    pub(super) fn add_taps<T: Lane>(
        &self,
        images: ImageArgs,
        blocking: &Blocking,
        b: &ChannelBlock,
        weights: View<T>,
        (dst, pitch): Results<T>,
        copies: &mut Copies,
    ) -> Result<()> {
        let windows = blocking.windows(b.from, b.to);
        let materialised = &mut copies.materialised;
        let (source, channel) = self.images_read(images, blocking, b, windows, materialised)?;
        let narrow = self.narrow;
        let mut words = vec![0u32; if narrow { blocking.words as usize } else { 0 }];
        let stride = if narrow { 1 } else { channel };
        let [kernels @ .., wide] = blocking.axes.map(|a| a.kernel);
        let (high, count) = (kernels[1], blocking.taps.len() as i64);
        let line = b.to[2] - b.from[2];
        let zero = [u64::from_ne_bytes([self.terms.padding(); 8])];
        let zero = View::of(&zero).bytes();
        let [tiles, padding] = [stride, 0].map(|n| blocking.one_tap(self, [n, pitch]));
        let (tiles, padding) = (tiles?, padding?);
        let weights = weights.shift(blocking.panel_at(b.group, 0));
        let front = i64::from(blocking.has_initial_row) * blocking.panel;
        let channels = b.channel..b.channel + b.channels;
        for (y, x) in (b.from[1]..b.to[1]).flat_map(|y| (b.from[2]..b.to[2]).map(move |x| (y, x))) {
            let to = ((y - b.from[1]) * line + x - b.from[2]) * pitch - b.channel;
            let to = dst.shift(to);
            match blocking.has_initial_row {
                true => channels
                    .clone()
                    .step_by(blocking.panel as usize)
                    .for_each(|panel| {
                        let columns = blocking.panel.min(channels.end - panel);
                        let initial_row = weights.slice(panel * blocking.panel_rows(), columns);
                        to.copy(panel, initial_row);
                    }),
                false => to.fill(b.channel, b.channels, T::ZERO),
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
                let (tiles, left) = match is_there {
                    true if narrow => {
                        let words = ViewMut::of(&mut words).bytes();
                        let (from, sizes) = ((source.at(read), [channel, 0]), (blocking.terms, 1));
                        self.packer(0).pack(from, sizes, (words, [1, 0]));
                        (&tiles, *words)
                    }
                    true => (&tiles, source.at(read)),
                    false => (&padding, zero),
                };
                let at = front + place * blocking.words * blocking.panel;
                let mut panels = Columns {
                    first: weights.shift(at).bytes(),
                    column: blocking.panel_rows() * size_of::<T>() as i64,
                };
                let (left, out) = (Left::Rows(left, &[]), Output::Memory(to.bytes()));
                tiles.compute([0..1, 0..1, channels.clone()], left, &mut panels, out)?;
            }
        }
        Ok(())
    }
}
