//! Convolutions and their gradients, in register tiles. Results may also use Winograd's algorithms or Fourier
//! transforms.

mod dense;
mod depthwise;
mod fft;
mod images;
mod narrow;
mod weight;
mod winograd;

use super::terms::Terms;
use crate::kernels::matmul::{chosen, epilogue, link, register_epilogue};
use crate::tile::Linked;
use fft::Fft;
use kiln_base::{DType, Dim};
use kiln_jit::contraction::shown;
use kiln_kernel::affine::{extent, product};
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::failures::Failure;
use kiln_kernel::simd::Features;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{View, ViewMut};
use kiln_kernel::work::{Call, LinkedKernel, Packs, Program};
use kiln_plan::cost::geometry::{Axis, Geometry};
use kiln_plan::schedule::{Cpu, lanes};
use kiln_plan::{self as plan, Algorithm, ConvRole, Winograd};
use narrow::{Images, Weights};

/// A linked convolution or gradient of one.
pub(crate) struct Conv {
    /// The dtype of the accumulators.
    dtype: DType,
    /// The layout of its operands, as micro-kernels read them.
    terms: Terms,
    /// True if images are read as they are, with fewer bits than their accumulators.
    narrow: bool,
    role: ConvRole,
    batch: i64,
    groups: i64,
    cin: i64,
    cout: i64,
    geometry: Geometry,
    operands: [usize; 2],
    out: usize,
    schedule: Cpu,
    level: Features,
    blocking: ConvBlocking,
    /// The prologue that produces the images, a part at a time, or all of them before they are read if `whole`.
    prologue: Option<Box<Linked>>,
    whole_prologue: bool,
    epilogue: Option<Linked>,
}

/// Returns whose channels come first (NCHW): the images that are read; and the result, or the other operand of a
/// gradient of weights.
fn nchw(p: &plan::Conv) -> [bool; 2] {
    let [x, y] = p.images.last().map(|last| !last);
    match p.role {
        ConvRole::Input => [y, x],
        _ => [x, y],
    }
}

/// The blocking of a convolution, by algorithm.
enum ConvBlocking {
    /// Not determined yet.
    Unknown,
    /// Register tiles for a result, or a gradient of images.
    Dense(Box<dense::Blocking>),
    /// Register tiles for a depthwise one.
    Depthwise(Box<depthwise::Blocking>),
    /// Register tiles for a gradient of weights.
    Weight(Box<weight::Blocking>),
    Winograd(Box<winograd::Blocking>),
    Fft(Box<Fft>),
}

impl LinkedKernel for Conv {
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        let mut copies = Default::default();
        let operands = self.read(call, &mut copies)?;
        match self.dtype {
            DType::F64 | DType::I64 => self.run_typed::<f64>(call, operands)?,
            _ => self.run_typed::<f32>(call, operands)?,
        }
        Ok(None)
    }

    fn schedule(&self) -> Option<String> {
        let (tile, finished) = match &self.blocking {
            ConvBlocking::Unknown | ConvBlocking::Fft(_) => return None,
            ConvBlocking::Dense(blocking) => blocking.register_tile(),
            ConvBlocking::Weight(blocking) => (blocking.tile()?, false),
            ConvBlocking::Depthwise(blocking) => blocking.tile(self),
            ConvBlocking::Winograd(blocking) => {
                let tile = [blocking.sizes.rows, blocking.sizes.panel];
                (tile, blocking.register_epilogue.is_some())
            }
        };
        let sums = shown(self.level, self.terms.instruction, tile, finished);
        let resolved = self.resolved();
        Some(format!("{resolved}: {sums}{}", self.terms.shown()))
    }

    fn program(&self) -> Option<&dyn Program> {
        Some(self.epilogue.as_ref()?)
    }

    fn packs(&self) -> Option<Packs> {
        let (weights, bytes) = (self.operands[1], self.packed_bytes()?);
        Some(Packs { weights, bytes })
    }

    fn ignores_packed(&self) -> bool {
        let weights = self.operands[1];
        let alone = self.operands[0] != weights && self.out != weights;
        let mut programs = self.epilogue.iter().chain(self.prologue.as_deref());
        self.reads_packed_alone()
            && alone
            && programs.all(|p| p.walks.iter().all(|w| w.arg != weights))
    }

    fn pack(&self, call: &Call<'_>) {
        let mut copy = None;
        let (weights, to) = (call.args.view(0), call.args.view_mut(1));
        let weights = match self.widens(1) {
            true => self.widen(1, weights, &mut copy, call.parallel),
            false => Ok(weights),
        };
        match (weights, self.dtype) {
            (Err(e), _) => call.failures.report_error(e),
            (Ok(weights), DType::F64 | DType::I64) => self.pack_typed::<f64>(call, weights, to),
            (Ok(weights), _) => self.pack_typed::<f32>(call, weights, to),
        }
    }
}

/// The minimum number of blocks, so that threads can share them.
const MIN_BLOCKS: i64 = 8;

impl Conv {
    /// True if there is code for it.
    pub(crate) fn computes(p: &plan::Conv) -> bool {
        match p.sums() {
            DType::F32 | DType::F64 => true,
            DType::I32 | DType::I64 => p.role == ConvRole::Result,
            _ => false,
        }
    }

    /// Checks and links a convolution whose arguments have these lengths.
    pub(crate) fn new(
        p: &plan::Conv,
        values: &[i64],
        lens: &[i64],
        level: Features,
    ) -> Result<Conv> {
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
        let prologue = p
            .prologue
            .as_ref()
            .map(|prologue| link(prologue, values, lens, level));
        let prologue = prologue.transpose()?;
        let in_parts = p.role == ConvRole::Result && p.images != plan::Images::ToChannelsLast;
        let can_have_prologue = in_parts || p.role != ConvRole::Input && p.is_half();
        if (prologue.as_ref()).is_some_and(|(_, len)| *len != x || !can_have_prologue) {
            return Err(damaged!("a convolution of images that are made otherwise"));
        }
        product(&[cin.max(1), k.max(1), o.max(1), cout.max(1), batch.max(1)])?;
        let schedule = chosen(p.schedule(values), &p.algorithms(values))?;
        let algorithm = schedule.algorithm;
        // A depthwise convolution has its own tiles, whose terms share no words.
        let each = g.is_near() && g.kernels() > 0 && !(nchw(p)[0] && prologue.is_some());
        let each = (cin, cout) == (1, 1) && (each || p.sums().is_float());
        let grouped = algorithm == Algorithm::Direct && !each;
        let mut conv = Conv {
            dtype: p.sums(),
            terms: Terms::new((p.dtypes, p.reduce_range), level, grouped),
            narrow: false,
            role: p.role,
            batch,
            groups,
            cin,
            cout,
            geometry: g,
            operands: p.operands.map(|a| a as usize),
            out: p.out as usize,
            schedule,
            level,
            blocking: ConvBlocking::Unknown,
            whole_prologue: prologue.is_some() && !in_parts,
            prologue: prologue.map(|(linked, _)| linked),
            epilogue: epilogue(&p.epilogue, values, lens, (total, None), level)?,
        };
        conv.check()?;
        conv.narrow = conv.reads_narrow(algorithm, nchw(p)[0]);
        conv.blocking = conv.choose_blocking(p, algorithm, (values, lens, total))?;
        Ok(conv)
    }

    /// Checks that its schedule is legal.
    fn check(&self) -> Result<()> {
        let s = &self.schedule;
        s.check(self.level, self.terms.instruction)
            .map_err(|e| damaged!("{e}"))?;
        let is_weight = self.role == ConvRole::Weight;
        let is_each = (self.cin, self.cout) == (1, 1);
        // A depthwise convolution has tiles of one vector.
        let tile = match s.tile {
            Some([_, vectors]) if is_each => vectors == 1 && !is_weight,
            _ => true,
        };
        let takes = match s.algorithm {
            Algorithm::Fft => *s == Cpu::from(s.algorithm),
            _ if is_weight => tile && !(is_each && s.terms.is_some()),
            _ => tile && (s.terms, s.parts) == (None, None),
        };
        match takes {
            true => Ok(()),
            false => Err(damaged!(
                "{s} gives sizes that this convolution has no use for"
            )),
        }
    }

    /// Returns the schedule, completed with all the sizes in use.
    pub(crate) fn resolved(&self) -> Cpu {
        let all = self.schedule;
        let size = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        let lanes = i64::from(lanes(self.level, self.dtype));
        let of = |[rows, columns]: [i64; 2], block: [i64; 2]| Cpu {
            tile: Some([rows as u8, (columns / lanes) as u8]),
            block: Some(block.map(size)),
            ..all
        };
        match &self.blocking {
            ConvBlocking::Unknown | ConvBlocking::Fft(_) => all,
            ConvBlocking::Dense(blocking) => of(blocking.register_tile().0, blocking.block_sizes()),
            ConvBlocking::Depthwise(blocking) => of(blocking.tile(self).0, blocking.block_sizes()),
            ConvBlocking::Winograd(blocking) => {
                let s = &blocking.sizes;
                of([s.rows, s.panel], [s.tiles, s.share * s.panel])
            }
            ConvBlocking::Weight(blocking) => {
                let parts = u16::try_from(blocking.parts).ok();
                let tile = blocking.tile();
                let block = [blocking.channels * blocking.taps, blocking.columns];
                let sized = of(tile.unwrap_or([1, lanes]), block);
                Cpu {
                    parts,
                    terms: blocking.positions(),
                    tile: tile.and(sized.tile),
                    ..sized
                }
            }
        }
    }

    /// Returns its blocking by an algorithm.
    fn choose_blocking(
        &self,
        p: &plan::Conv,
        algorithm: Algorithm,
        (values, lens, total): (&[i64], &[i64], i64),
    ) -> Result<ConvBlocking> {
        let is_input = self.role == ConvRole::Input;
        let finished = |is_near: bool| {
            let channels = if is_input { self.cin } else { self.cout };
            let sizes = (total, self.groups * channels);
            match self.dtype {
                DType::F32 | DType::I32 if is_near => {
                    register_epilogue(&p.epilogue, values, lens, sizes, self.level)
                }
                _ => Ok(None),
            }
        };
        if let Some(winograd) = Winograd::of(algorithm) {
            let register_epilogue = finished(self.groups * self.cin < 1 << 24)?;
            let blocking = winograd::Blocking::new(self, winograd, register_epilogue)?;
            return Ok(ConvBlocking::Winograd(Box::new(blocking)));
        }
        if let (Algorithm::Fft, Some(tile)) = (algorithm, p.fft_tile(values)) {
            let fft = Fft::new(tile);
            product(&[self.groups, self.cin, self.cout, fft.numbers()])?;
            return Ok(ConvBlocking::Fft(Box::new(fft)));
        }
        let nchw = nchw(p);
        if self.role == ConvRole::Weight {
            return Ok(ConvBlocking::Weight(Box::new(weight::Blocking::new(
                self, nchw,
            )?)));
        }
        let g = &self.geometry;
        let one = (self.cin, self.cout) == (1, 1) && self.dtype != DType::I64;
        let each = one && g.is_near() && g.kernels() > 0;
        if each && !(nchw[0] && self.blockwise_prologue().is_some()) {
            let register_epilogue = finished(depthwise::is_near(self) && !nchw[1])?;
            let blocking = depthwise::Blocking::new(self, nchw, register_epilogue)?;
            return Ok(ConvBlocking::Depthwise(Box::new(blocking)));
        }
        let blocking = dense::Blocking::new(self, nchw, finished(!nchw[1])?, false)?;
        Ok(ConvBlocking::Dense(Box::new(blocking)))
    }

    fn run_typed<T: Lane>(&self, call: &Call, (images, weights): (Images, Weights)) -> Result<()> {
        match (&self.blocking, images, weights) {
            (ConvBlocking::Dense(blocking), ..) => {
                self.dense::<T>(call, blocking, (images, weights))
            }
            (ConvBlocking::Depthwise(blocking), ..) => {
                self.depthwise::<T>(call, blocking, (images, weights))
            }
            (ConvBlocking::Weight(blocking), Images::InMemory(x), Weights::InMemory(y)) => {
                self.weight::<T>(call, blocking, [x, y])
            }
            (ConvBlocking::Winograd(blocking), Images::InMemory(x), _) => {
                self.winograd(call, blocking, (x, weights))
            }
            (ConvBlocking::Fft(fft), Images::InMemory(x), _) => {
                self.fft(fft, call, (x.cast(), weights))
            }
            _ => Err(damaged!("an operand of a convolution is not there")),
        }
    }

    /// Returns the size of the packed weights in bytes, or `None` for algorithms that read them as they are.
    pub(crate) fn packed_bytes(&self) -> Option<usize> {
        let elements = match &self.blocking {
            ConvBlocking::Unknown | ConvBlocking::Weight(_) => return None,
            ConvBlocking::Dense(blocking) => blocking.packed(),
            ConvBlocking::Depthwise(blocking) => blocking.packed(),
            ConvBlocking::Winograd(blocking) => blocking.packed(self),
            ConvBlocking::Fft(fft) => self.fft_packed(fft),
        };
        Some(elements as usize * self.dtype.size())
    }

    /// True if a run that is given packed weights reads no others.
    fn reads_packed_alone(&self) -> bool {
        match &self.blocking {
            ConvBlocking::Unknown | ConvBlocking::Weight(_) => false,
            ConvBlocking::Dense(_) | ConvBlocking::Winograd(_) | ConvBlocking::Fft(_) => true,
            ConvBlocking::Depthwise(blocking) => !blocking.checks_finite(),
        }
    }

    fn pack_typed<T: Lane>(&self, call: &Call, weights: View<u8>, to: ViewMut<u8>) {
        let (parallel, failures) = (call.parallel, call.failures);
        match &self.blocking {
            ConvBlocking::Unknown | ConvBlocking::Weight(_) => {}
            ConvBlocking::Dense(blocking) => {
                self.pack_dense::<T>(blocking, weights, to.cast(), parallel);
            }
            ConvBlocking::Depthwise(blocking) => {
                self.pack_depthwise::<T>(blocking, weights, to.cast());
            }
            ConvBlocking::Winograd(blocking) => {
                self.winograd_pack(blocking, weights, to.cast(), parallel, failures);
            }
            ConvBlocking::Fft(fft) => {
                self.fft_pack(fft, weights.cast(), to.cast(), parallel, failures)
            }
        }
    }

    /// Returns the number of elements of its workspace, on `threads` threads.
    pub(crate) fn workspace(&self, threads: i64) -> i64 {
        let widened = (0..2).filter(|i| self.brings(*i));
        let widened: i64 = widened.map(|i| self.operand_len(i)).sum();
        widened
            + match &self.blocking {
                ConvBlocking::Unknown => 0,
                ConvBlocking::Dense(blocking) => self.dense_workspace(blocking, threads),
                ConvBlocking::Depthwise(blocking) => self.depthwise_workspace(blocking),
                ConvBlocking::Weight(blocking) => blocking.workspace(self, threads),
                ConvBlocking::Winograd(blocking) => blocking.workspace(self, threads),
                ConvBlocking::Fft(fft) => self.fft_workspace(fft, threads),
            }
    }
}
