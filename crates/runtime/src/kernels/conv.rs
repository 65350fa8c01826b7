//! Convolutions and their gradients: products of matrices whose columns are gathered from images, or added up
//! to images, a block at a time; or sums in register tiles; for the result also Winograd's algorithms and Fourier
//! transforms.

mod columns;
mod correlate;
mod dense;
mod depthwise;
mod direct;
mod fft;
mod forward;
mod images;
mod input;
mod padded;
mod turned;
mod weight;
mod winograd;

use super::work::{Call, Packs, Work};
use crate::error::{Result, damaged};
use crate::kernels::matmul::{Made, chosen, epilogue, finish, link};
use crate::memory::Storage;
use crate::simd::Level;
use crate::sums::Lane;
use crate::tile::affine::{ceil, extent, product};
use crate::tile::{Failure, Failures, Linked};
use direct::Cut;
use fft::Fft;
use kiln_base::{DType, Dim};
use kiln_plan::cost::geometry::{Axis, Geometry};
use kiln_plan::{self as plan, Algorithm, ConvRole, FftTile, Images, Winograd};

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
    algorithm: Algorithm,
    /// How sums in register tiles are cut, where the algorithm is one of those.
    cut: Option<Cut>,
    /// How it is transformed, where the algorithm does that.
    fft: Option<Box<Fft>>,
    /// How it is cut into register tiles...
    dense: Option<Box<dense::Cut>>,
    /// ...with a channel a group.
    each: Option<Box<depthwise::Cut>>,
    /// How it is cut by one of Winograd's algorithms.
    winograd: Option<Box<winograd::Cut>>,
    /// The convolution of the result's gradient with turned filters that a gradient of the images is.
    turned: Option<Box<Conv>>,
    /// What makes the images, a part at a time.
    made: Option<Box<Linked>>,
    epilogue: Option<Linked>,
}

impl Work for Conv {
    unsafe fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        // SAFETY: linked for arguments of these lengths; what is packed was packed by this kind of work.
        unsafe { self.run(call.args, call.packed, call.parallel, call.failures) };
        Ok(None)
    }

    fn last(&self) -> Option<&Linked> {
        self.epilogue()
    }

    fn packs(&self) -> Option<Packs> {
        let (weights, bytes) = (self.weights(), self.packed_bytes()?);
        Some(Packs { weights, bytes })
    }

    unsafe fn pack(&self, call: &Call<'_>) {
        // SAFETY: the first is the weights, the second has the bytes that `packs` says.
        unsafe { self.pack(call.args[0], call.args[1], call.parallel, call.failures) }
    }
}

/// Elements of the columns of a block.
const COLUMN_ELEMENTS: i64 = 1 << 17;
/// Blocks that there must be at least, so that threads can share them.
const LEAST_BLOCKS: i64 = 8;

impl Conv {
    /// Whether there is code for it.
    pub(crate) fn computes(p: &plan::Conv) -> bool {
        matches!(p.dtype, DType::F32 | DType::F64)
    }

    /// Checks and links a convolution whose arguments have these lengths.
    pub(crate) fn new(p: &plan::Conv, values: &[i64], lens: &[i64], level: Level) -> Result<Conv> {
        let g = p.geometry(values).map_err(|e| damaged!("{e}"))?;
        let get = |d: &Dim| extent(d, values);
        let (batch, groups) = (get(&p.batch)?, get(&p.groups)?);
        let (cin, cout) = (get(&p.in_channels)?, get(&p.out_channels)?);
        let [i, o, k] = [|a: &Axis| a.input, |a: &Axis| a.output, |a: &Axis| a.kernel]
            .map(|f| product(&[f(&g.axes[0]), f(&g.axes[1]), f(&g.axes[2])]));
        let (i, o, k) = (i?, o?, k?);
        let x = product(&[batch, groups, cin, i])?;
        let w = product(&[groups, cout, cin, k])?;
        let y = product(&[batch, groups, cout, o])?;
        let total = match p.role {
            ConvRole::Result => y,
            ConvRole::Input => x,
            ConvRole::Weight => w,
        };
        let made = p
            .prologue
            .as_ref()
            .map(|made| link(made, values, lens, level));
        let made = made.transpose()?;
        let can_be_made = p.role == ConvRole::Result && p.images != Images::Turned;
        if (made.as_ref()).is_some_and(|(_, len)| *len != x || !can_be_made) {
            return Err(damaged!("a convolution of images that are made otherwise"));
        }
        product(&[cin.max(1), k.max(1), o.max(1), cout.max(1), batch.max(1)])?;
        let mut conv = Conv {
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
            algorithm: chosen(p.computed_by(values), &p.algorithms(values))?,
            cut: None,
            fft: None,
            dense: None,
            each: None,
            winograd: None,
            turned: None,
            made: made.map(|(linked, _)| linked),
            epilogue: epilogue(&p.epilogue, values, lens, (total, None), level)?,
        };
        let is_input = p.role == ConvRole::Input;
        let finished = |conv: &Conv, is_near: bool| {
            let channels = if is_input { conv.cin } else { conv.cout };
            let sizes = (total, conv.groups * channels);
            match p.dtype {
                DType::F32 if is_near => finish(&p.epilogue, values, lens, sizes, level),
                _ => Ok(None),
            }
        };
        match (conv.algorithm, Winograd::of(conv.algorithm)) {
            (Algorithm::ChannelsLast, _) if (conv.cin, conv.cout) == (1, 1) => {
                let turned = p.images == Images::Turned;
                let finish = finished(&conv, depthwise::is_near(&conv))?;
                let cut = depthwise::Cut::new(&conv, turned, finish)?;
                conv.each = Some(Box::new(cut));
            }
            (Algorithm::ChannelsLast | Algorithm::Direct, _) if p.role != ConvRole::Weight => {
                let [x, y] = p.images.last().map(|last| !last);
                let turned = if is_input { [y, x] } else { [x, y] };
                let finish = finished(&conv, !turned[1])?;
                conv.dense = Some(Box::new(dense::Cut::new(&conv, turned, finish)?));
            }
            (_, Some(winograd)) => {
                let finish = finished(&conv, conv.groups * conv.cin < 1 << 24)?;
                let cut = winograd::Cut::new(&conv, winograd, finish)?;
                conv.winograd = Some(Box::new(cut));
            }
            _ => conv.prepare(|| p.fft_tile(values))?,
        }
        Ok(conv)
    }

    /// Cuts it as its algorithm wants it.
    fn prepare(&mut self, tile: impl Fn() -> Option<FftTile>) -> Result<()> {
        match (self.role, self.algorithm) {
            (_, Algorithm::Columns) | (ConvRole::Weight, _) => {}
            (ConvRole::Input, _) => self.turn()?,
            (_, Algorithm::Depthwise) => self.cut = Cut::new(self),
            (_, Algorithm::Fft) => {
                self.fft = tile().map(|tile| Box::new(Fft::new(tile)));
                let transform = self.fft.as_ref().map_or(0, |fft| fft.numbers());
                product(&[self.groups, self.cin, self.cout, transform])?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Runs it, with weights that [`Conv::pack`] packed before, if there are any.
    ///
    /// # Safety
    /// `args` are the buffers it was linked for; see [`crate::tile::Runner::new`]. What is packed are their
    /// weights.
    pub(crate) unsafe fn run(
        &self,
        args: &[*mut u8],
        packed: Option<*mut u8>,
        parallel: bool,
        failures: &Failures,
    ) {
        // SAFETY: the caller's; the dtype was checked.
        unsafe {
            match self.dtype {
                DType::F64 => self.run_typed::<f64>(args, packed, parallel, failures),
                _ => self.run_typed::<f32>(args, packed, parallel, failures),
            }
        }
    }

    unsafe fn run_typed<T: Lane>(
        &self,
        args: &[*mut u8],
        packed: Option<*mut u8>,
        parallel: bool,
        failures: &Failures,
    ) {
        // SAFETY: the caller's.
        unsafe {
            if let Some(conv) = &self.turned {
                return self.turned::<T>(conv, args, parallel, failures);
            }
            if let Some(cut) = &self.each {
                return self.each::<T>(args, cut, packed, parallel, failures);
            }
            if let Some(cut) = &self.dense {
                return self.dense::<T>(args, cut, packed, parallel, failures);
            }
            if let Some(cut) = &self.winograd {
                return self.winograd(args, cut, packed, parallel, failures);
            }
            match self.role {
                ConvRole::Result => match (self.algorithm, &self.cut) {
                    (Algorithm::Depthwise, Some(cut)) => {
                        self.depthwise::<T>(args, cut, parallel, failures);
                    }
                    (Algorithm::Fft, _) if let Some(fft) = &self.fft => {
                        self.fft(fft, args, packed, parallel, failures);
                    }
                    _ => self.columns::<T>(args, parallel, failures),
                },
                ConvRole::Input => self.input::<T>(args, parallel, failures),
                ConvRole::Weight if self.algorithm == Algorithm::Direct => {
                    self.correlate::<T>(args, parallel, failures);
                }
                ConvRole::Weight => self.weight::<T>(args, parallel, failures),
            }
        }
    }

    /// Bytes of the weights once they are packed; none for algorithms that read them as they are.
    pub(crate) fn packed_bytes(&self) -> Option<usize> {
        let elements = match (&self.dense, &self.each, &self.fft, &self.winograd) {
            _ if self.turned.is_some() => return None,
            (Some(cut), ..) => cut.packed(),
            (_, Some(cut), ..) => cut.packed(self),
            (_, _, Some(fft), _) => self.fft_packed(fft),
            (.., cut) => cut.as_ref()?.packed(self),
        };
        Some(elements as usize * self.dtype.size())
    }

    /// Packs the weights, which depend on no other operand.
    ///
    /// # Safety
    /// `weights` is the operand that it was linked for; `to` has room for [`Conv::packed_bytes`].
    pub(crate) unsafe fn pack(
        &self,
        weights: *mut u8,
        to: *mut u8,
        parallel: bool,
        failures: &Failures,
    ) {
        // SAFETY: the caller's; the dtype was checked.
        unsafe {
            if let Some(fft) = &self.fft {
                return self.fft_pack(fft, weights, to, parallel, failures);
            }
            if let Some(cut) = &self.winograd {
                return self.winograd_pack(cut, weights.cast(), to.cast(), parallel, failures);
            }
            match self.dtype {
                DType::F64 => self.pack_typed::<f64>(weights, to, parallel),
                _ => self.pack_typed::<f32>(weights, to, parallel),
            }
        }
    }

    unsafe fn pack_typed<T: Lane>(&self, weights: *mut u8, to: *mut u8, parallel: bool) {
        // SAFETY: the caller's.
        unsafe {
            match (&self.dense, &self.each) {
                (Some(cut), _) => self.pack_dense::<T>(cut, weights.cast(), to.cast(), parallel),
                (_, Some(cut)) => self.pack_each::<T>(cut, weights.cast(), to.cast()),
                (None, None) => {}
            }
        }
    }

    /// The work on its result.
    pub(crate) fn epilogue(&self) -> Option<&Linked> {
        match &self.turned {
            Some(conv) => conv.epilogue(),
            None => self.epilogue.as_ref(),
        }
    }

    /// The argument of the weights, when they are an operand.
    pub(crate) fn weights(&self) -> usize {
        self.operands[1]
    }

    /// The address of element `at` of an operand; of one that is made, no address.
    fn operand<T>(&self, args: &[*mut u8], i: usize, at: i64) -> *const T {
        match &self.made {
            Some(_) if i == 0 => std::ptr::null(),
            _ => args[self.operands[i]]
                .cast::<T>()
                .cast_const()
                .wrapping_offset(at as isize),
        }
    }

    /// Some channels from number `first` of all images' on, of which elements `from..to` are there: where they would
    /// begin, and how far apart.
    ///
    /// # Safety
    /// As [`Conv::run`]; they exist.
    unsafe fn channels_at<T>(
        &self,
        args: &[*mut u8],
        (first, count): (i64, i64),
        (from, to): (i64, i64),
        made: &mut Made,
        failures: &Failures,
    ) -> Result<(*const T, i64)> {
        let inputs = self.geometry.inputs();
        let Some(program) = &self.made else {
            return Ok((self.operand(args, 0, first * inputs), inputs));
        };
        let (at, len) = (first * inputs + from, (to - from).max(0));
        let lines = (count, inputs, len);
        // SAFETY: the caller's.
        let made = unsafe { made.bring::<T>(program, args, (at, len), at, lines, failures)? };
        Ok((made.wrapping_offset(-from as isize), len))
    }

    /// Elements that it takes beside its arguments, on so many threads.
    pub(crate) fn workspace(&self, threads: i64) -> i64 {
        if let Some(conv) = &self.turned {
            return self.filters() + conv.workspace(threads);
        }
        if let Some(cut) = &self.dense {
            return self.dense_workspace(cut, threads);
        }
        if let Some(cut) = &self.each {
            return self.each_workspace(cut);
        }
        if let Some(cut) = &self.winograd {
            return cut.workspace(self, threads);
        }
        if let Some(fft) = &self.fft {
            return self.fft_workspace(fft, threads);
        }
        match (self.role, &self.cut) {
            (ConvRole::Result, Some(cut)) => threads * cut.workspace(self),
            (ConvRole::Result, _) => self.column_workspace(threads),
            (ConvRole::Weight, _) if self.algorithm == Algorithm::Direct => {
                threads * self.correlate_workspace()
            }
            // Columns and gathered gradients.
            _ => 2 * threads * COLUMN_ELEMENTS,
        }
    }

    /// How many blocks a number of channels is cut into, of how many each, where `per_channel` elements
    /// are gathered for each one and `others` says how many blocks there are beside.
    fn cut_channels(&self, channels: i64, per_channel: i64, others: i64) -> i64 {
        let least = ceil(LEAST_BLOCKS, others);
        let most = (COLUMN_ELEMENTS / per_channel.max(1)).max(1);
        let blocks = least.max(ceil(channels, most)).min(channels.max(1));
        ceil(channels, blocks)
    }
}

/// Memory that a thread keeps from block to block of a gradient.
#[derive(Default)]
struct Scratch {
    gathered: Option<Storage>,
    columns: Option<Storage>,
}
