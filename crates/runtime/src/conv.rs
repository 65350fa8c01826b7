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
}

/// Channel pairs of a group up to which sums are taken directly.
const DIRECT_PAIRS: i64 = 4;
/// Elements of the columns of a block.
const COLUMN_ELEMENTS: i64 = 1 << 17;
/// Multiply-adds of a block, where it can be divided.
const BLOCK_WORK: i64 = 1 << 24;

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
            how: how(&g, cin, cout, k, o),
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
        let (positions, channels) = match self.how {
            How::Direct => (g.outputs(), 1),
            How::Product {
                positions,
                channels,
                ..
            } => (positions, channels),
        };
        if self.batch * self.groups * self.cout * g.outputs() == 0 {
            return;
        }
        let across = (g.outputs() + positions - 1) / positions;
        let down = (self.cout + channels - 1) / channels;
        let items = self.batch * self.groups * down * across;
        let args = Args(args);
        // SAFETY: the caller's; blocks write different places.
        split(
            items,
            positions * channels * depth.max(1),
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
                        image: i / (across * down * self.groups),
                        group: i / (across * down) % self.groups,
                        channel: i / across % down * channels,
                        position: i % across * positions,
                    };
                    if let Err(e) = self.block::<T>(args.0, &block, &mut columns, &mut work) {
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
            How::Direct => (1, all),
            How::Product {
                positions,
                channels,
                ..
            } => (
                channels.min(self.cout - b.channel),
                positions.min(all - b.position),
            ),
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
                How::Direct => {
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

/// A block of the result.
struct Block {
    image: i64,
    group: i64,
    channel: i64,
    position: i64,
}

/// Chooses how to compute a block; depends on the shapes alone.
fn how(g: &Geometry, cin: i64, cout: i64, taps: i64, outputs: i64) -> How {
    if cin * cout <= DIRECT_PAIRS {
        return How::Direct;
    }
    let depth = (cin * taps).max(1);
    let plain = |a: &Axis| a.kernel == 1 && a.stride == 1 && a.padding == 0 && a.input == a.output;
    let in_place = g.axes.iter().all(plain);
    let most = if in_place {
        4096
    } else {
        (COLUMN_ELEMENTS / depth).max(48) / 16 * 16
    };
    // Equal blocks rather than a small last one.
    let blocks = (outputs.max(1) + most - 1) / most;
    let positions = ((outputs.max(1) + blocks - 1) / blocks + 15) / 16 * 16;
    let positions = positions.min(outputs.max(1));
    let mut channels = cout.max(1);
    while channels >= 128 && channels * depth * positions > BLOCK_WORK {
        channels = (channels / 2 + 15) / 16 * 16;
    }
    How::Product {
        positions,
        channels,
        in_place,
    }
}
