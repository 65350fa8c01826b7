//! The result of a convolution: blocks of output positions are gathered into columns and multiplied with
//! the weights.

use super::columns::{Fill, FillColumns};
use super::{COLUMN_ELEMENTS, Conv, LEAST_BLOCKS};
use crate::contraction::multiply;
use crate::error::Result;
use crate::kernels::matmul::{Args, Made, Work, run_blocks, split};
use crate::memory::{Storage, room};
use crate::simd::compiled;
use crate::sums::Lane;
use crate::tile::Failures;
use crate::tile::affine::ceil;

/// A block of one image.
#[derive(Copy, Clone)]
struct Cut {
    /// Output positions.
    positions: i64,
    /// Output channels.
    channels: i64,
    /// Whether the columns are the input itself.
    in_place: bool,
}

/// How blocks are computed.
enum How {
    /// Each gathers the columns of one image.
    Product(Cut),
    /// Products of the columns of several small images, which are gathered before: how many a block has,
    /// and its output channels.
    Images { images: i64, channels: i64 },
}

/// Multiply-adds of a block, where it can be divided.
const BLOCK_WORK: i64 = 1 << 24;
/// Output positions of an image up to which several images share a block.
const SMALL_PLANE: i64 = 256;
/// Elements of the columns that are gathered for several blocks.
const SHARED_ELEMENTS: i64 = 1 << 20;
/// What gathering an element costs, in multiply-adds.
const GATHER_WORK: i64 = 16;

/// Columns that all threads read, or write parts of.
struct Columns<T>(*mut T);
// SAFETY: the pointer is only passed on; who writes where is said where it is used.
unsafe impl<T> Sync for Columns<T> {}

impl Conv {
    /// Runs it by [`kiln_plan::Algorithm::Columns`].
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn columns<T: Lane>(
        &self,
        args: &[*mut u8],
        parallel: bool,
        failures: &Failures,
    ) {
        let g = &self.geometry;
        let depth = self.cin * g.kernels();
        if self.batch * self.groups * self.cout * g.outputs() == 0 {
            return;
        }
        let how = self.how();
        let cut = match how {
            How::Product(cut) => cut,
            How::Images { images, channels } => {
                // SAFETY: the caller's.
                return unsafe { self.shared::<T>(args, images, channels, parallel, failures) };
            }
        };
        let across = ceil(g.outputs(), cut.positions);
        let down = ceil(self.cout, cut.channels);
        let items = self.batch * self.groups * down * across;
        let cost = cut.positions * cut.channels * depth.max(1);
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks((items, cost), launch, |i, args, scratch, work| unsafe {
            // What is made is used for all channels.
            let (channel, position) = match self.made {
                Some(_) => (i % down, i / down % across),
                None => (i / across % down, i % across),
            };
            let block = Block {
                image: i / (across * down * self.groups),
                group: i / (across * down) % self.groups,
                channel: channel * cut.channels,
                position: position * cut.positions,
            };
            self.block::<T>(args, cut, &block, scratch, work)
        });
    }

    /// Elements of the columns that exist at a time.
    pub(super) fn column_workspace(&self, threads: i64) -> i64 {
        let depth = self.cin * self.geometry.kernels();
        match self.how() {
            How::Product(cut) if cut.in_place => 0,
            How::Product(cut) => threads * depth * cut.positions,
            How::Images { .. } => (depth * self.geometry.outputs() * self.batch)
                .min(SHARED_ELEMENTS.max(depth * self.geometry.outputs())),
        }
    }

    unsafe fn block<T: Lane>(
        &self,
        args: &[*mut u8],
        cut: Cut,
        b: &Block,
        (columns, made): &mut (Option<Storage>, Made),
        work: &mut Work,
    ) -> Result<()> {
        let g = &self.geometry;
        let (all, taps) = (g.outputs(), g.kernels());
        let image = b.image * self.groups + b.group;
        let depth = self.cin * taps;
        let row = b.group * self.cout + b.channel;
        let weights = self.operand::<T>(args, 1, row * depth);
        let row = image * self.cout + b.channel;
        let first = row * all + b.position;
        let h = cut.channels.min(self.cout - b.channel);
        let w = cut.positions.min(all - b.position);
        let (dst, pitch) = if self.epilogue.is_some() {
            (work.scratch::<T>(h * w)?, w)
        } else {
            let out = args[self.out].cast::<T>();
            (out.wrapping_offset(first as isize), all)
        };
        // SAFETY: linking checked the buffers' lengths against the geometry.
        unsafe {
            let channels = (image * self.cin, self.cin);
            let reach = g.reach(b.position, b.position + w);
            let (x, apart) = self.channels_at::<T>(args, channels, reach, made, work.failures)?;
            let (cols, cols_row) = if cut.in_place {
                (x.wrapping_offset(b.position as isize), apart)
            } else {
                let cols = room::<T>(columns, depth * w)?;
                compiled::<FillColumns<T>, _>(self.level)(Fill {
                    geometry: g,
                    x,
                    apart,
                    cin: self.cin,
                    from: b.position,
                    count: w,
                    pitch: w,
                    dst: cols,
                });
                (cols.cast_const(), w)
            };
            multiply(
                self.level,
                (h, w, depth),
                (dst, pitch),
                (weights, depth, 1),
                (cols, cols_row, 1),
                false,
            )?;
            work.finish((dst, pitch), first, (h, all), w);
        }
        Ok(())
    }
}

impl Conv {
    /// Gathers the columns of all images, or of as many as there is room for, then multiplies.
    unsafe fn shared<T: Lane>(
        &self,
        args: &[*mut u8],
        images: i64,
        channels: i64,
        parallel: bool,
        failures: &Failures,
    ) {
        let g = &self.geometry;
        let (all, taps) = (g.outputs(), g.kernels());
        let depth = self.cin * taps;
        let most = (SHARED_ELEMENTS / (depth * all).max(1)).clamp(1, self.batch);
        let mut storage = None;
        let columns = match room::<T>(&mut storage, depth * most * all) {
            Ok(columns) => Columns(columns),
            Err(e) => return failures.broken(e),
        };
        let args = Args(args);
        for i in 0..self.groups * ceil(self.batch, most) {
            let (group, first) = (i % self.groups, i / self.groups * most);
            let count = most.min(self.batch - first);
            let width = count * all;
            let work = taps * width * GATHER_WORK;
            // SAFETY: linking checked the buffers' lengths against the geometry; each channel has rows of
            // its own.
            split(self.cin, work, parallel, |from, to| unsafe {
                let (args, columns) = (&args, &columns);
                let mut made = Made::default();
                for i in 0..count {
                    let channel = ((first + i) * self.groups + group) * self.cin + from;
                    let (channels, reach) = ((channel, to - from), (0, g.inputs()));
                    let found = self.channels_at(args.0, channels, reach, &mut made, failures);
                    let (x, apart) = match found {
                        Ok(found) => found,
                        Err(e) => return failures.broken(e),
                    };
                    compiled::<FillColumns<T>, _>(self.level)(Fill {
                        geometry: g,
                        x,
                        apart,
                        cin: to - from,
                        from: 0,
                        count: all,
                        pitch: width,
                        dst: columns.0.offset((from * taps * width + i * all) as isize),
                    });
                }
            });
            let (across, down) = (ceil(count, images), ceil(self.cout, channels));
            let work = images * all * channels * depth;
            let launch = (self.epilogue.as_ref(), args.0, parallel, failures);
            // SAFETY: the caller's; blocks write different places, and none writes the columns.
            run_blocks((across * down, work), launch, |i, args, raw, work| unsafe {
                let columns = &columns;
                let (image, channel) = (i / down * images, i % down * channels);
                let block = Block {
                    image: first + image,
                    group,
                    channel,
                    position: 0,
                };
                let size = (images.min(count - image), channels.min(self.cout - channel));
                let columns = columns.0.offset((image * all) as isize).cast_const();
                self.images(args, &block, size, (columns, width), raw, work)
            });
        }
    }

    /// A block of several images: one product with their columns, which lie side by side in rows that
    /// far apart, and its rows taken apart into `[image, channel, position]`.
    unsafe fn images<T: Lane>(
        &self,
        args: &[*mut u8],
        b: &Block,
        (images, channels): (i64, i64),
        (columns, pitch): (*const T, i64),
        raw: &mut Option<Storage>,
        work: &mut Work,
    ) -> Result<()> {
        let all = self.geometry.outputs();
        let depth = self.cin * self.geometry.kernels();
        let width = images * all;
        let raw = room::<T>(raw, channels * width)?;
        let weights = (b.group * self.cout + b.channel) * depth;
        let weights = self.operand::<T>(args, 1, weights);
        let first_row = (b.image * self.groups + b.group) * self.cout + b.channel;
        let first = first_row * all;
        let step = self.groups * self.cout * all;
        let (dst, distance) = if self.epilogue.is_some() {
            (work.scratch::<T>(images * channels * all)?, channels * all)
        } else {
            let out = args[self.out].cast::<T>();
            (out.wrapping_offset(first as isize), step)
        };
        // SAFETY: linking checked the buffers' lengths against the geometry; the columns are there, and
        // the raw product has the room reserved above.
        unsafe {
            multiply(
                self.level,
                (channels, width, depth),
                (raw, width),
                (weights, depth, 1),
                (columns, pitch, 1),
                false,
            )?;
            for i in 0..images {
                for c in 0..channels {
                    let from = raw.wrapping_offset((c * width + i * all) as isize);
                    let to = dst.wrapping_offset((i * distance + c * all) as isize);
                    std::ptr::copy_nonoverlapping(from, to, all as usize);
                }
            }
            work.finish((dst, distance), first, (images, step), channels * all);
        }
        Ok(())
    }
}

/// A block of the result.
struct Block {
    image: i64,
    group: i64,
    channel: i64,
    position: i64,
}

impl Conv {
    /// Chooses how to compute a block; depends on the shapes alone.
    fn how(&self) -> How {
        let (cin, cout) = (self.cin, self.cout);
        let g = &self.geometry;
        let depth = (cin * g.kernels()).max(1);
        let outputs = g.outputs();
        if outputs <= SMALL_PLANE && self.batch > 1 {
            return self.small_images(outputs);
        }
        let in_place = g.is_pointwise();
        let most = if in_place && self.made.is_none() {
            4096
        } else {
            (COLUMN_ELEMENTS / depth).max(48) / 16 * 16
        };
        // Equal blocks rather than a small last one.
        let blocks = ceil(outputs, most);
        let positions = (ceil(ceil(outputs, blocks), 16) * 16).min(outputs);
        let mut channels = cout.max(1);
        while channels >= 128 && channels * depth * positions > BLOCK_WORK {
            channels = ceil(channels / 2, 16) * 16;
        }
        How::Product(Cut {
            positions,
            channels,
            in_place,
        })
    }

    /// Blocks of several images and some channels, of which each packs its part of the columns and of
    /// the weights once.
    fn small_images(&self, outputs: i64) -> How {
        let mut best = (i64::MAX, self.batch, self.cout);
        let mut across = 1;
        while across <= LEAST_BLOCKS.min(self.batch) {
            let images = ceil(self.batch, across);
            let channels = ceil(ceil(self.cout * across, LEAST_BLOCKS), 16) * 16;
            let down = ceil(self.cout, channels);
            let packed = self.batch * outputs * down + self.cout * across;
            // Few blocks leave threads idle.
            let cost = packed * ceil(LEAST_BLOCKS, across * down);
            if cost < best.0 {
                best = (cost, images, channels);
            }
            across *= 2;
        }
        How::Images {
            images: best.1,
            channels: best.2,
        }
    }
}
