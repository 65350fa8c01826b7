//! The result of a convolution: blocks of output positions are gathered into columns and multiplied with
//! the weights; few channels a group are summed directly.

use super::columns::{Axis, Direct, DirectSum, Fill, FillColumns, Lane};
use super::{COLUMN_ELEMENTS, Conv, LEAST_BLOCKS, room};
use crate::error::Result;
use crate::matmul::{Args, Work, product_of, split};
use crate::memory::Storage;
use crate::simd::compiled;
use crate::tile::Failures;

/// How a block is computed.
#[derive(Copy, Clone)]
enum How {
    /// Sums over taps, one output channel of one image a block.
    Direct,
    /// Products of columns: output positions and output channels of a block, and whether the
    /// columns are the input itself.
    Product {
        positions: i64,
        channels: i64,
        in_place: bool,
    },
    /// Products of the columns of several small images: how many a block has, and its output
    /// channels.
    Images { images: i64, channels: i64 },
}

/// Channel pairs of a group up to which sums are taken directly.
const DIRECT_PAIRS: i64 = 4;
/// Output positions of an image up to which several images share a block.
const SMALL_PLANE: i64 = 256;

impl Conv {
    /// Runs it.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn result<T: Lane>(
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
        let (images, positions, channels) = match how {
            How::Direct => (1, g.outputs(), 1),
            How::Product {
                positions,
                channels,
                ..
            } => (1, positions, channels),
            How::Images { images, channels } => (images, g.outputs(), channels),
        };
        let across = (g.outputs() + positions - 1) / positions;
        let down = (self.cout + channels - 1) / channels;
        let items = (self.batch + images - 1) / images * self.groups * down * across;
        let args = Args(args);
        // SAFETY: the caller's; blocks write different places.
        split(
            items,
            images * positions * channels * depth.max(1),
            parallel,
            |from, to| unsafe {
                let args = &args;
                let mut work = match Work::new(self.epilogue.as_ref(), args.0, failures) {
                    Ok(work) => work,
                    Err(e) => return failures.broken(e),
                };
                let mut columns: Option<Storage> = None;
                for i in from..to {
                    let block = Block {
                        image: i / (across * down * self.groups) * images,
                        group: i / (across * down) % self.groups,
                        channel: i / across % down * channels,
                        position: i % across * positions,
                    };
                    let done = match how {
                        How::Images { images, channels } => {
                            let images = images.min(self.batch - block.image);
                            let channels = channels.min(self.cout - block.channel);
                            let sizes = (images, channels);
                            self.images::<T>(args.0, &block, sizes, &mut columns, &mut work)
                        }
                        _ => self.block::<T>(args.0, how, &block, &mut columns, &mut work),
                    };
                    if let Err(e) = done {
                        return failures.broken(e);
                    }
                }
            },
        );
    }

    unsafe fn block<T: Lane>(
        &self,
        args: &[*mut u8],
        how: How,
        b: &Block,
        columns: &mut Option<Storage>,
        work: &mut Work,
    ) -> Result<()> {
        let g = &self.geometry;
        let (all, taps) = (g.outputs(), g.kernels());
        let image = (b.image * self.groups + b.group) * self.cin * g.inputs();
        let x = self.operand::<T>(args, 0, image);
        let depth = self.cin * taps;
        let row = b.group * self.cout + b.channel;
        let weights = self.operand::<T>(args, 1, row * depth);
        let row = (b.image * self.groups + b.group) * self.cout + b.channel;
        let first = row * all + b.position;
        let (h, w) = match how {
            How::Product {
                positions,
                channels,
                ..
            } => (
                channels.min(self.cout - b.channel),
                positions.min(all - b.position),
            ),
            _ => (1, all),
        };
        let (dst, pitch) = if self.epilogue.is_some() {
            (work.scratch::<T>(h * w)?, w)
        } else {
            let out = args[self.out].cast::<T>();
            (out.wrapping_offset(first as isize), all)
        };
        // SAFETY: linking checked the buffers' lengths against the geometry.
        unsafe {
            match how {
                How::Direct | How::Images { .. } => {
                    let f = compiled::<DirectSum<T>, _>(self.level);
                    f(Direct {
                        geometry: g,
                        x,
                        weights,
                        cin: self.cin,
                        dst,
                    });
                }
                How::Product { in_place, .. } => {
                    let (cols, cols_row) = if in_place {
                        (x.wrapping_offset(b.position as isize), all)
                    } else {
                        let cols = room::<T>(columns, depth * w)?;
                        let f = compiled::<FillColumns<T>, _>(self.level);
                        f(Fill {
                            geometry: g,
                            x,
                            cin: self.cin,
                            from: b.position,
                            count: w,
                            pitch: w,
                            dst: cols,
                        });
                        (cols.cast_const(), w)
                    };
                    product_of(
                        (h, w, depth),
                        (dst, pitch, 1),
                        (weights, depth, 1),
                        (cols, cols_row, 1),
                    );
                }
            }
            work.finish((dst, pitch), first, (h, all), w);
        }
        Ok(())
    }
}

impl Conv {
    /// A block of several images: their columns side by side, one product, and its rows taken apart
    /// into `[image, channel, position]`.
    unsafe fn images<T: Lane>(
        &self,
        args: &[*mut u8],
        b: &Block,
        (images, channels): (i64, i64),
        columns: &mut Option<Storage>,
        work: &mut Work,
    ) -> Result<()> {
        let g = &self.geometry;
        let (all, taps) = (g.outputs(), g.kernels());
        let depth = self.cin * taps;
        let width = images * all;
        // The columns, and behind them the raw product.
        let cols = room::<T>(columns, (depth + channels) * width)?;
        let raw = cols.wrapping_offset((depth * width) as isize);
        let weights = (b.group * self.cout + b.channel) * depth;
        let weights = self.operand::<T>(args, 1, weights);
        let first_row = (b.image * self.groups + b.group) * self.cout + b.channel;
        let first = first_row * all;
        let step = self.groups * self.cout * all;
        let (dst, pitch) = if self.epilogue.is_some() {
            (work.scratch::<T>(images * channels * all)?, channels * all)
        } else {
            let out = args[self.out].cast::<T>();
            (out.wrapping_offset(first as isize), step)
        };
        // SAFETY: linking checked the buffers' lengths against the geometry; the columns and the raw
        // product have the room reserved above.
        unsafe {
            let fill = compiled::<FillColumns<T>, _>(self.level);
            for i in 0..images {
                let image = ((b.image + i) * self.groups + b.group) * self.cin * g.inputs();
                fill(Fill {
                    geometry: g,
                    x: self.operand::<T>(args, 0, image),
                    cin: self.cin,
                    from: 0,
                    count: all,
                    pitch: width,
                    dst: cols.wrapping_offset((i * all) as isize),
                });
            }
            product_of(
                (channels, width, depth),
                (raw, width, 1),
                (weights, depth, 1),
                (cols.cast_const(), width, 1),
            );
            for i in 0..images {
                for c in 0..channels {
                    let from = raw.wrapping_offset((c * width + i * all) as isize);
                    let to = dst.wrapping_offset((i * pitch + c * all) as isize);
                    std::ptr::copy_nonoverlapping(from, to, all as usize);
                }
            }
            work.finish((dst, pitch), first, (images, step), channels * all);
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
        if cin * cout <= DIRECT_PAIRS {
            return How::Direct;
        }
        let g = &self.geometry;
        let depth = (cin * g.kernels()).max(1);
        let outputs = g.outputs();
        let plain =
            |a: &Axis| a.kernel == 1 && a.stride == 1 && a.padding == 0 && a.input == a.output;
        let in_place = g.axes.iter().all(plain);
        let mut best: Option<(i64, How)> = None;
        let mut consider = |images: i64, positions: i64, channels: i64, how: How| {
            let across = ceil(self.batch, images) * ceil(outputs, positions);
            let down = ceil(cout, channels);
            let width = images * positions;
            let (elements, weights) = (depth * self.batch * outputs, depth * cout);
            // Every element of the columns is gathered once for each block of channels, every weight
            // packed once for each block of positions; narrow products leave registers idle.
            let gather = if in_place && images == 1 { 1 } else { 2 };
            let sums = elements * cout / 64;
            let cost = gather * elements * down + weights * across + sums + sums * 24 / width;
            let room = if in_place && images == 1 {
                0
            } else {
                depth * width
            };
            let few = across * down * self.groups < LEAST_BLOCKS / 2;
            let large = room > 4 * COLUMN_ELEMENTS;
            let cost = cost.saturating_mul(1 + 2 * few as i64 + 8 * large as i64);
            if best.as_ref().is_none_or(|b| cost < b.0) {
                best = Some((cost, how));
            }
        };
        let mut channels = cout;
        loop {
            let mut parts = 1;
            while parts == 1 || ceil(outputs, parts) >= 48 {
                // Whole registers, and equal blocks rather than a small last one.
                let positions = (ceil(ceil(outputs, parts), 16) * 16).min(outputs);
                let product = How::Product {
                    positions,
                    channels,
                    in_place,
                };
                consider(1, positions, channels, product);
                parts *= 2;
            }
            let mut images = 2;
            while images <= self.batch && outputs <= SMALL_PLANE {
                let even = ceil(self.batch, ceil(self.batch, images));
                consider(
                    even,
                    outputs,
                    channels,
                    How::Images {
                        images: even,
                        channels,
                    },
                );
                images *= 2;
            }
            if channels < 64 {
                break;
            }
            channels = ceil(ceil(channels, 2), 16) * 16;
        }
        best.map_or(How::Direct, |b| b.1)
    }
}

fn ceil(a: i64, b: i64) -> i64 {
    (a + b - 1) / b.max(1)
}
