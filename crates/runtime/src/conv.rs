//! Convolutions and their gradients, as products of matrices whose columns are gathered from images, or
//! added up to images, a block at a time.

mod columns;
mod forward;
mod input;
mod weight;

use crate::error::{Result, damaged};
use crate::matmul::{chosen, epilogue};
use crate::memory::Storage;
use crate::simd::Level;
use crate::tile::affine::{eval, extent, product};
use crate::tile::{Failures, Linked};
use columns::{Axis, Geometry, Lane};
use kiln_base::plan::{self, ConvRole};
use kiln_base::{DType, Dim};

/// A linked convolution or gradient of one.
pub(crate) struct Conv {
    dtype: DType,
    role: ConvRole,
    batch: i64,
    groups: i64,
    cin: i64,
    cout: i64,
    geometry: Geometry,
    operands: [usize; 2],
    out: usize,
    level: Level,
    pub(crate) epilogue: Option<Linked>,
}

/// Elements of the columns of a block.
const COLUMN_ELEMENTS: i64 = 1 << 17;
/// Blocks that there must be at least, so that threads can share them.
const LEAST_BLOCKS: i64 = 8;

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
        let x = product(&[batch, groups, cin, i])?;
        let w = product(&[groups, cout, cin, k])?;
        let y = product(&[batch, groups, cout, o])?;
        let (operands, total) = match p.role {
            ConvRole::Result => ([x, w], y),
            ConvRole::Input => ([y, w], x),
            ConvRole::Weight => ([x, y], w),
        };
        let fits = |arg: u16, len: i64| lens[arg as usize] >= len;
        if !fits(p.operands[0], operands[0])
            || !fits(p.operands[1], operands[1])
            || p.epilogue.is_none() && !fits(p.out, total)
        {
            return Err(damaged!("a convolution is larger than its buffers"));
        }
        chosen(p.algorithm, &p.algorithms(values))?;
        product(&[cin.max(1), k.max(1), o.max(1), cout.max(1), batch.max(1)])?;
        Ok(Conv {
            dtype: p.dtype,
            role: p.role,
            batch,
            groups,
            cin,
            cout,
            geometry: g,
            operands: p.operands.map(|a| a as usize),
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

    unsafe fn run_typed<T: Lane>(&self, args: &[*mut u8], parallel: bool, failures: &Failures) {
        // SAFETY: the caller's.
        unsafe {
            match self.role {
                ConvRole::Result => self.result::<T>(args, parallel, failures),
                ConvRole::Input => self.input::<T>(args, parallel, failures),
                ConvRole::Weight => self.weight::<T>(args, parallel, failures),
            }
        }
    }

    /// The address of element `at` of an operand.
    fn operand<T>(&self, args: &[*mut u8], i: usize, at: i64) -> *const T {
        let first = args[self.operands[i]].cast::<T>().cast_const();
        first.wrapping_offset(at as isize)
    }

    /// How many blocks a number of channels is cut into, of how many each, where `per_channel` elements
    /// are gathered for each one and `others` says how many blocks there are beside.
    fn cut_channels(&self, channels: i64, per_channel: i64, others: i64) -> i64 {
        let least = (LEAST_BLOCKS + others - 1) / others.max(1);
        let most = (COLUMN_ELEMENTS / per_channel.max(1)).max(1);
        let blocks = least.max((channels + most - 1) / most).min(channels.max(1));
        (channels + blocks - 1) / blocks
    }
}

/// Memory that a thread keeps from block to block of a gradient.
#[derive(Default)]
struct Scratch {
    gathered: Option<Storage>,
    columns: Option<Storage>,
}

/// Memory for `len` elements, kept from block to block.
fn room<T>(storage: &mut Option<Storage>, len: i64) -> Result<*mut T> {
    let bytes = len as usize * size_of::<T>();
    if storage.as_ref().is_none_or(|s| s.len() < bytes) {
        *storage = Some(Storage::new(bytes)?);
    }
    let start = storage.as_ref().map_or(std::ptr::null_mut(), |s| s.ptr());
    Ok(start.cast())
}
