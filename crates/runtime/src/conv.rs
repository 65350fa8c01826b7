//! Convolutions: blocks of output positions are gathered into columns and multiplied with the
//! weights; few channels a group are summed directly.

mod columns;

use crate::error::{Result, damaged};
use crate::matmul::{Args, Number, Work, epilogue, product_of, split};
use crate::memory::Storage;
use crate::simd::{Level, compiled};
use crate::tile::affine::{eval, extent, product};
use crate::tile::{Failures, Linked};
use columns::{Axis, Direct, Fill, Geometry};
use kiln_base::plan;
use kiln_base::{DType, Dim};

/// A linked convolution.
pub(crate) struct Conv {
    dtype: DType,
    batch: i64,
    groups: i64,
    cin: i64,
    cout: i64,
    geometry: Geometry,
    x: usize,
    weight: usize,
    out: usize,
    how: How,
    level: Level,
    pub(crate) epilogue: Option<Linked>,
}

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
/// Elements of the columns of a block.
const COLUMN_ELEMENTS: i64 = 1 << 17;
/// Multiply-adds of a block, where it can be divided.
const BLOCK_WORK: i64 = 1 << 24;
/// Output positions of an image up to which several images share a block.
const SMALL_PLANE: i64 = 256;
/// Blocks of several images that there must be at least, so that threads can share them.
const LEAST_BLOCKS: i64 = 16;

impl Conv {
    /// Checks and links a convolution whose arguments have these lengths.
    pub(crate) fn new(p: &plan::Conv, values: &[i64], lens: &[i64], level: Level) -> Result<Conv> {
        let rank = p.input.len();
        let lists = [&p.output, &p.kernel, &p.stride, &p.padding, &p.dilation];
        if rank > 3 || lists.iter().any(|l| l.len() != rank) {
            return Err(damaged!("a convolution over {rank} axes"));
        }
        let positive = |d: &Dim| match eval(d, values)? {
            v if (1..1 << 31).contains(&v) => Ok(v),
            v => Err(damaged!("a convolution with a step of {v}")),
        };
        let mut axes = [Axis::ONE; 3];
        for i in 0..rank {
            axes[3 - rank + i] = Axis {
                input: extent(&p.input[i], values)?,
                output: extent(&p.output[i], values)?,
                kernel: extent(&p.kernel[i], values)?,
                stride: positive(&p.stride[i])?,
                padding: eval(&p.padding[i], values)?,
                dilation: positive(&p.dilation[i])?,
            };
            if axes[3 - rank + i].padding.abs() >= 1 << 31 {
                return Err(damaged!("a convolution with too much padding"));
            }
        }
        let g = Geometry { axes };
        let get = |d: &Dim| extent(d, values);
        let (batch, groups) = (get(&p.batch)?, get(&p.groups)?);
        let (cin, cout) = (get(&p.in_channels)?, get(&p.out_channels)?);
        let [i, o, k] = [|a: &Axis| a.input, |a: &Axis| a.output, |a: &Axis| a.kernel]
            .map(|f| product(&[f(&g.axes[0]), f(&g.axes[1]), f(&g.axes[2])]));
        let (i, o, k) = (i?, o?, k?);
        let total = product(&[batch, groups, cout, o])?;
        let fits = |arg: u16, len: i64| lens[arg as usize] >= len;
        if !fits(p.x, product(&[batch, groups, cin, i])?)
            || !fits(p.weight, product(&[groups, cin, k, cout])?)
            || p.epilogue.is_none() && !fits(p.out, total)
        {
            return Err(damaged!("a convolution is larger than its buffers"));
        }
        product(&[cin.max(1), k.max(1), o.max(1), cout.max(1)])?;
        Ok(Conv {
            dtype: p.dtype,
            batch,
            groups,
            cin,
            cout,
            how: how(&g, (batch, groups), cin, cout, k, o),
            geometry: g,
            x: p.x as usize,
            weight: p.weight as usize,
            out: p.out as usize,
            level,
            epilogue: epilogue(&p.epilogue, values, lens, total, level)?,
        })
    }

    /// Runs it.
    ///
    /// # Safety
    /// `args` are the buffers it was linked for; see [`crate::tile::Runner::new`].
    pub(crate) unsafe fn run(&self, args: &[*mut u8], parallel: bool, failures: &Failures) {
        // SAFETY: the caller's; the dtype was checked.
        unsafe {
            match self.dtype {
                DType::F64 => self.run_typed::<f64>(args, parallel, failures),
                _ => self.run_typed::<f32>(args, parallel, failures),
            }
        }
    }

    unsafe fn run_typed<T: Number + columns::Lane>(
        &self,
        args: &[*mut u8],
        parallel: bool,
        failures: &Failures,
    ) {
        let g = &self.geometry;
        let depth = self.cin * g.kernels();
        let (images, positions, channels) = match self.how {
            How::Direct => (1, g.outputs(), 1),
            How::Product {
                positions,
                channels,
                ..
            } => (1, positions, channels),
            How::Images { images, channels } => (images, g.outputs(), channels),
        };
        if self.batch * self.groups * self.cout * g.outputs() == 0 {
            return;
        }
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
                    let done = match self.how {
                        How::Images { images, channels } => {
                            let images = images.min(self.batch - block.image);
                            let channels = channels.min(self.cout - block.channel);
                            let sizes = (images, channels);
                            self.images::<T>(args.0, &block, sizes, &mut columns, &mut work)
                        }
                        _ => self.block::<T>(args.0, &block, &mut columns, &mut work),
                    };
                    if let Err(e) = done {
                        return failures.broken(e);
                    }
                }
            },
        );
    }

    unsafe fn block<T: Number + columns::Lane>(
        &self,
        args: &[*mut u8],
        b: &Block,
        columns: &mut Option<Storage>,
        work: &mut Work,
    ) -> Result<()> {
        let g = &self.geometry;
        let (all, taps) = (g.outputs(), g.kernels());
        let image = (b.image * self.groups + b.group) * self.cin * g.inputs();
        let x = args[self.x]
            .cast::<T>()
            .cast_const()
            .wrapping_offset(image as isize);
        let weights = (b.group * self.cin * taps * self.cout + b.channel) as isize;
        let weights = args[self.weight]
            .cast::<T>()
            .cast_const()
            .wrapping_offset(weights);
        let row = (b.image * self.groups + b.group) * self.cout + b.channel;
        let first = row * all + b.position;
        let (h, w) = match self.how {
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
            match self.how {
                How::Direct | How::Images { .. } => {
                    let f = compiled::<columns::DirectSum<T>, _>(self.level);
                    f(Direct {
                        geometry: g,
                        x,
                        weights,
                        cin: self.cin,
                        cout: self.cout,
                        dst,
                    });
                }
                How::Product { in_place, .. } => {
                    let depth = self.cin * taps;
                    let (cols, cols_row) = if in_place {
                        (x.wrapping_offset(b.position as isize), all)
                    } else {
                        let bytes = (depth * w) as usize * size_of::<T>();
                        if columns.as_ref().is_none_or(|c| c.len() < bytes) {
                            *columns = Some(Storage::new(bytes)?);
                        }
                        let cols = columns.as_ref().map_or(std::ptr::null_mut(), |c| c.ptr());
                        let f = compiled::<columns::FillColumns<T>, _>(self.level);
                        f(Fill {
                            geometry: g,
                            x,
                            cin: self.cin,
                            from: b.position,
                            count: w,
                            pitch: w,
                            dst: cols.cast(),
                        });
                        (cols.cast::<T>().cast_const(), w)
                    };
                    product_of(
                        (h, w, depth),
                        (dst, pitch, 1),
                        (weights, 1, self.cout),
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
    unsafe fn images<T: Number + columns::Lane>(
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
        let size = size_of::<T>() as i64;
        // The columns, and behind them the raw product.
        let bytes = ((depth + channels) * width * size) as usize;
        if columns.as_ref().is_none_or(|c| c.len() < bytes) {
            *columns = Some(Storage::new(bytes)?);
        }
        let cols = columns.as_ref().map_or(std::ptr::null_mut(), |c| c.ptr());
        let cols = cols.cast::<T>();
        let raw = cols.wrapping_offset((depth * width) as isize);
        let weights = args[self.weight].cast::<T>().cast_const();
        let weights = weights.wrapping_offset((b.group * depth * self.cout + b.channel) as isize);
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
            let fill = compiled::<columns::FillColumns<T>, _>(self.level);
            for i in 0..images {
                let image = ((b.image + i) * self.groups + b.group) * self.cin * g.inputs();
                let x = args[self.x].cast::<T>().cast_const();
                fill(Fill {
                    geometry: g,
                    x: x.wrapping_offset(image as isize),
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
                (weights, 1, self.cout),
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

/// Chooses how to compute a block; depends on the shapes alone.
fn how(
    g: &Geometry,
    (batch, groups): (i64, i64),
    cin: i64,
    cout: i64,
    taps: i64,
    outputs: i64,
) -> How {
    if cin * cout <= DIRECT_PAIRS {
        return How::Direct;
    }
    let depth = (cin * taps).max(1);
    let outputs = outputs.max(1);
    let most = (COLUMN_ELEMENTS / depth).max(48) / 16 * 16;
    let narrow = |positions: i64| {
        let mut channels = cout.max(1);
        while channels >= 128 && channels * depth * positions > BLOCK_WORK {
            channels = (channels / 2 + 15) / 16 * 16;
        }
        channels
    };
    let images = (most / outputs).min(batch * groups / LEAST_BLOCKS);
    if images > 1 && outputs <= SMALL_PLANE {
        let blocks = (batch + images - 1) / images;
        let images = (batch + blocks - 1) / blocks;
        let channels = narrow(images * outputs);
        return How::Images { images, channels };
    }
    let plain = |a: &Axis| a.kernel == 1 && a.stride == 1 && a.padding == 0 && a.input == a.output;
    let in_place = g.axes.iter().all(plain);
    let most = if in_place { 4096 } else { most };
    // Equal blocks rather than a small last one.
    let blocks = (outputs + most - 1) / most;
    let positions = ((outputs + blocks - 1) / blocks + 15) / 16 * 16;
    let positions = positions.min(outputs);
    How::Product {
        positions,
        channels: narrow(positions),
        in_place,
    }
}
