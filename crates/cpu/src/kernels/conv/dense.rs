//! Convolutions as implicit GEMM: results, and gradients of images, with the channels of a position side by side.
//!
//! The M of a register tile runs over neighbouring positions of the result in some lines. Its N runs over output
//! channels, whose weights are packed into panels. The lines that a block reads are copied first, with their padding.
//! No copy is made if nothing is padded and the images are in NHWC; then the taps of a filter's row are contiguous, and
//! form one run of K. A gradient of images is one convolution for each stride offset of the filter ([`Phase`]), with
//! flipped taps.

mod blocking;
mod copy;
mod pack;
mod phase;
mod tap_by_tap;

pub(super) use blocking::Blocking;

use super::Conv;
use super::narrow::{Images, Weights};
use crate::kernels::matmul::{Launch, Results};
use blocking::PhasePart;
use copy::{Copies, ImageArgs, Source};
use kiln_jit::contraction::{Accesses, Columns, Left, Output};
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{Arguments, View};
use kiln_kernel::work::Call;
use std::ops::Range;

/// The buffers that a thread keeps between blocks.
#[derive(Default)]
struct Scratch {
    copies: Copies,
    /// Results that are still to be transposed, or finished.
    results: Option<Storage>,
    /// Results in the layout of the epilogue.
    raw: Option<Storage>,
}

/// Some channels of some lines of the result, of one image or of several.
#[derive(Copy, Clone)]
struct ChannelBlock {
    /// The first image, and the number of images.
    image: i64,
    images: i64,
    group: i64,
    /// The bounds in depth, height and width.
    from: [i64; 3],
    to: [i64; 3],
    /// The first channel of the group, and the number of channels.
    channel: i64,
    channels: i64,
}

impl ChannelBlock {
    fn of(blocking: &Blocking, mut item: i64) -> ChannelBlock {
        let mut next = |count: i64| {
            let at = item % count;
            item /= count;
            at
        };
        let channel = next(blocking.ranges()) * blocking.channels;
        let group = next(blocking.groups);
        let [w, h, d] = [2, 1, 0].map(|i| next(blocking.blocks(i)) * blocking.block[i]);
        let from = [d, h, w];
        let to = |i: usize| (from[i] + blocking.block[i]).min(blocking.result[i]);
        let image = item * blocking.images;
        ChannelBlock {
            image,
            images: blocking.images.min(blocking.batch - image),
            group,
            from,
            to: [0, 1, 2].map(to),
            channel,
            channels: blocking.channels.min(blocking.columns - channel),
        }
    }

    /// Returns the part of the block in one of its images.
    fn of_image(&self, i: i64) -> ChannelBlock {
        ChannelBlock {
            image: self.image + i,
            images: 1,
            ..*self
        }
    }
}

impl Conv {
    /// Returns the number of elements of its workspace, on `threads` threads.
    pub(super) fn dense_workspace(&self, blocking: &Blocking, threads: i64) -> i64 {
        blocking.packed() + threads * (blocking.copied() + blocking.results())
    }

    /// Runs it.
    pub(super) fn dense<T: Lane>(
        &self,
        call: &Call,
        blocking: &Blocking,
        (images, weights): (Images, Weights),
    ) -> Result<()> {
        if blocking.items() == 0 {
            return Ok(());
        }
        let mut storage = None;
        let weights = weights.packed::<T>((&mut storage, blocking.packed()), |from, to| {
            self.pack_dense(blocking, from, to, call.parallel);
        })?;
        // A flag follows the panels.
        let finite = weights.get(blocking.packed() - 1) == T::ZERO;
        let one_by_one = blocking.tap_by_tap || !finite && blocking.checks_finite(self);
        let launch = Launch {
            in_registers: blocking.register_epilogue.is_some() && !one_by_one,
            ..Launch::new(self.epilogue.as_ref(), call)
        };
        launch.run((blocking.items(), blocking.cost()), |i, scratch| {
            let block = ChannelBlock::of(blocking, i);
            let weights = (weights, one_by_one);
            self.dense_block((&launch, images), blocking, &block, weights, scratch)
        });
        Ok(())
    }

    fn dense_block<T: Lane>(
        &self,
        images: ImageArgs,
        blocking: &Blocking,
        b: &ChannelBlock,
        (weights, one_by_one): (View<T>, bool),
        scratch: &mut Scratch,
    ) -> Result<()> {
        let launch = images.0;
        let first = blocking.position(b.image, b.from);
        let at = (first, b.group * blocking.columns + b.channel);
        let positions = (b.to[1] - b.from[1]) * (b.to[2] - b.from[2]);
        let Scratch {
            copies,
            results,
            raw,
        } = scratch;
        let own = (results, positions * blocking.channels, blocking.channels);
        let results = self.destination(launch, at, blocking.writes_nchw, own)?;
        if one_by_one {
            self.add_taps(images, blocking, b, weights, results, copies)?;
        } else {
            let source = self.source(images, blocking, b, copies)?;
            // Positions pass over one group of panels at a time, whose weights stay in the cache.
            let end = b.channel + b.channels;
            for first in (b.channel..end).step_by(blocking.hot as usize) {
                let columns = first..end.min(first + blocking.hot);
                let here = |p: &&PhasePart| blocking.is_at(p, b.from[0]);
                for part in blocking.parts.iter().filter(here) {
                    for image in 0..b.images {
                        let (source, b) = (source.of_image(image), b.of_image(image));
                        let operands = (&source, weights, columns.clone());
                        self.part(&launch.args, blocking, &b, part, operands, results)?;
                    }
                }
            }
        }
        // A block is a line, or whole lines of a plane.
        let sizes = (positions, b.channels);
        self.finish(launch, results, at, sizes, (blocking.writes_nchw, raw))
    }

    /// Computes the results of a block and part, in some columns.
    fn part<T: Lane>(
        &self,
        args: &Arguments,
        blocking: &Blocking,
        b: &ChannelBlock,
        part: &PhasePart,
        (source, weights, columns): (&Source, View<T>, Range<i64>),
        (dst, pitch): Results<T>,
    ) -> Result<()> {
        let phases = blocking.phases_of(part);
        let [(d, _), (top, bottom), (left, right)] =
            [0, 1, 2].map(|i| phases[i].within(b.from[i], b.to[i]));
        // The first line and position of the part.
        let first = [d, 0, 0];
        let at = [0, 1, 2].map(|i| phases[i].first + first[i] * phases[i].step);
        let read = [0, 1, 2].map(|i| phases[i].axis.source(first[i], 0));
        let line = b.to[2] - b.from[2];
        let to = ((at[1] - b.from[1]) * line + at[2] - b.from[2]) * pitch - b.channel;
        let mut accesses = Accesses::of(blocking.register_epilogue.as_deref(), args);
        let out = match blocking.register_epilogue {
            Some(_) => {
                let result = (blocking.position(b.image, at), b.group * blocking.columns);
                Output::Epilogue(&mut accesses, result)
            }
            None => Output::Memory(dst.shift(to).bytes()),
        };
        let before = part.before * blocking.words * blocking.panel;
        let weights = weights.shift(blocking.panel_at(b.group, 0) + before);
        let mut panels = Columns {
            first: weights.bytes(),
            column: blocking.panel_rows() * size_of::<T>() as i64,
        };
        let images = Left::Rows(source.at(read), &part.taps);
        let tiles = [top..bottom, left..right, columns];
        part.grid.compute(tiles, images, &mut panels, out)
    }
}
