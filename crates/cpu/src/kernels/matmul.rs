//! Batched matrix products, with blocks whose size depends on the shapes alone, spread over the pool.

mod block;
mod narrow;
mod operand;
mod packed;
mod parts;
mod vector;
mod work;

pub(crate) use operand::{Materialised, Operand, link};
pub(crate) use work::{Args, EpilogueRunner, epilogue, finish, run_blocks, split};

use super::terms::Terms;
use crate::tile::Linked;
use block::ProductBlock;
use kiln_base::{DType, Instruction};
use kiln_jit::contraction::{RegisterEpilogue, TERMS, multiply_as, shape, shown};
use kiln_kernel::affine::{ceil, extent, product};
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::failures::{Failure, Failures};
use kiln_kernel::simd::Features;
use kiln_kernel::sums::Lane;
use kiln_kernel::work::{Call, Packs, Program};
use kiln_plan::cost::ProductEpilogue;
use kiln_plan::schedule::{Cpu, lanes};
use kiln_plan::{self as plan, Algorithm};
use std::sync::Arc;

/// A linked matrix product.
pub(crate) struct MatMul {
    /// The dtype of the accumulators.
    dtype: DType,
    /// The layout of its operands, as micro-kernels read them.
    terms: Terms,
    batch: Vec<i64>,
    m: i64,
    k: i64,
    n: i64,
    lhs: Operand,
    rhs: Operand,
    out: usize,
    epilogue_kind: ProductEpilogue,
    /// True if B may be packed in *prepare*.
    packable: bool,
    /// The rows and columns of a block.
    block: (i64, i64),
    schedule: Cpu,
    level: Features,
    pub(crate) epilogue: Option<Linked>,
    /// The same epilogue applied to accumulators in registers, where possible.
    finish: Option<Arc<RegisterEpilogue>>,
}

impl kiln_kernel::work::LinkedKernel for MatMul {
    unsafe fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        // SAFETY: linked for arguments of these lengths; the packed B was packed by this kind of work.
        unsafe { self.run(call.args, call.packed, call.parallel, call.failures) };
        Ok(None)
    }

    fn schedule(&self) -> Option<String> {
        let resolved = self.resolved();
        let [rows, vectors] = resolved.tile?.map(i64::from);
        let tile = [rows, vectors * i64::from(lanes(self.level, self.dtype))];
        let sums = shown(
            self.level,
            self.terms.instruction(),
            tile,
            self.finish.is_some(),
        );
        Some(format!("{resolved}: {sums}{}", self.terms.shown()))
    }

    fn program(&self) -> Option<&dyn Program> {
        Some(self.epilogue.as_ref()?)
    }

    fn packs(&self) -> Option<Packs> {
        let (weights, bytes) = (self.right(), self.packed_bytes()?);
        Some(Packs { weights, bytes })
    }

    fn forgets_packed(&self) -> bool {
        let (weights, prologue) = (self.right(), self.lhs.prologue.as_deref());
        let by_packed = self.schedule.algorithm == Algorithm::Packed && self.rhs.prologue.is_none();
        let alone = (prologue.is_some() || self.lhs.arg != weights) && self.out != weights;
        let mut programs = self.epilogue.iter().chain(prologue);
        by_packed && alone && programs.all(|p| p.walks.iter().all(|w| w.arg != weights))
    }

    unsafe fn pack(&self, call: &Call<'_>) {
        // SAFETY: the first argument is B, the second has the bytes that `packs` returns.
        unsafe { self.pack(call.args[0], call.args[1], call.parallel) }
    }
}

/// The most elements that rows of A span if instructions hold all offsets.
const NEAR: i64 = 1 << 24;

/// The longest K, which is computed without interruption. Only rows that alias one element can be longer than memory.
pub(crate) const LONGEST: i64 = 1 << 36;

impl MatMul {
    /// True if there is code for it.
    pub(crate) fn computes(p: &plan::MatMul) -> bool {
        let sums = [DType::F32, DType::F64, DType::I32, DType::I64];
        sums.contains(&p.sums())
    }

    /// Checks and links a product whose arguments have these lengths.
    pub(crate) fn new(
        p: &plan::MatMul,
        values: &[i64],
        lens: &[i64],
        level: Features,
    ) -> Result<MatMul> {
        let batch = p
            .batch
            .iter()
            .map(|d| extent(d, values))
            .collect::<Result<Vec<_>>>()?;
        let (m, k, n) = (
            extent(&p.m, values)?,
            extent(&p.k, values)?,
            extent(&p.n, values)?,
        );
        product(&[m.max(1), k.max(1), n.max(1)])?;
        if k > LONGEST {
            return Err(damaged!("a product with sums of {k} terms"));
        }
        let all: Vec<i64> = batch.iter().copied().chain([m, n]).collect();
        let total = product(&all)?;
        let operand = |side: usize, rows: i64, cols: i64| {
            let (x, shape) = ([&p.lhs, &p.rhs][side], (&batch[..], rows, cols));
            match &p.prologues[side] {
                None => Operand::new(x, shape, values, lens[x.arg as usize]),
                Some(prologue) => Operand::of_prologue(x, prologue, shape, values, lens, level),
            }
        };
        let schedule = chosen(p.schedule(values), &p.algorithms(values))?;
        let algorithm = schedule.algorithm;
        let epilogue = epilogue(&p.epilogue, values, lens, (total, Some(n)), level)?;
        let mut linked = MatMul {
            dtype: p.sums(),
            terms: Terms::new((p.dtypes, p.reduce_range), level, false),
            lhs: operand(0, m, k)?,
            rhs: operand(1, k, n)?,
            out: p.out as usize,
            epilogue_kind: p.epilogue_kind(),
            packable: p.algorithm.names().any(|by| by == Algorithm::Packed),
            block: (1, 1),
            schedule,
            level,
            batch,
            m,
            k,
            n,
            epilogue,
            finish: None,
        };
        let distances = [linked.lhs.row, linked.lhs.col, k].map(i64::abs);
        let near = distances.into_iter().all(|n| n < NEAR)
            && linked.lhs.col.abs().saturating_mul(k) < NEAR;
        linked.terms = Terms::new((p.dtypes, p.reduce_range), level, near && linked.n < NEAR);
        if near && algorithm == Algorithm::Packed && linked.dtype.size() == 4 {
            linked.finish = finish(&p.epilogue, values, lens, (total, linked.n), level)?;
        }
        linked.check()?;
        linked.block = match algorithm {
            Algorithm::Panels => linked.cut(),
            Algorithm::Small => linked.small_block(),
            _ => linked.block,
        };
        Ok(linked)
    }

    /// Checks that its schedule is legal.
    fn check(&self) -> Result<()> {
        let s = &self.schedule;
        s.check(self.level, self.terms.instruction())
            .map_err(|e| damaged!("{e}"))?;
        let takes = match s.algorithm {
            Algorithm::Panels | Algorithm::Small => s.parts.is_none(),
            Algorithm::Packed => {
                let wide = self.terms.are_narrow() && self.panel() > narrow::PANEL as i64;
                let sums = s.terms.is_none() || self.waiting_sums() > 0;
                s.parts.is_none() && sums && !wide
            }
            Algorithm::Parts => s.block.is_none(),
            _ => *s == Cpu::from(s.algorithm),
        };
        match takes {
            true => Ok(()),
            false => Err(damaged!("{s} gives sizes that this product has no use for")),
        }
    }

    /// Returns the schedule, completed with all the sizes in use.
    pub(crate) fn resolved(&self) -> Cpu {
        let mut all = self.schedule;
        let size = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        let lanes = i64::from(lanes(self.level, self.dtype));
        let tile = |rows: i64, vectors: i64| Some([rows as u8, vectors as u8]);
        match all.algorithm {
            Algorithm::Packed => {
                let (rows, panels) = self.packed_block_size();
                let panel = self.panel();
                all.tile = tile(self.tile_rows(), panel * self.panels_at_once() / lanes);
                all.block = Some([size(rows), size(panels * panel)]);
            }
            Algorithm::Panels | Algorithm::Small => {
                let (m, n) = (self.block.0.min(self.m), self.block.1.min(self.n));
                let (rows, vectors) = shape(self.how(), m, n);
                all.tile = tile(rows, vectors);
                all.block = Some([size(self.block.0), size(self.block.1)]);
                let terms = all.terms.map_or(TERMS, i64::from);
                all.terms = Some(size(terms.min(self.k.max(1))));
            }
            Algorithm::Parts => all.parts = u16::try_from(self.parts()).ok(),
            _ => {}
        }
        all
    }

    /// Returns the instruction, level and schedule that multiply elements of the accumulators' dtype.
    fn how(&self) -> (Instruction, Features, Option<&Cpu>) {
        let by = Instruction::of_numbers(self.dtype);
        (by, self.level, Some(&self.schedule))
    }

    /// Returns the number of elements of its workspace, on `threads` threads.
    pub(crate) fn workspace(&self, threads: i64) -> i64 {
        match self.schedule.algorithm {
            Algorithm::Vector => threads * self.k,
            Algorithm::Packed => self.packed_room() + self.copied_words() + self.waiting_sums(),
            Algorithm::Parts => self.parts_workspace(),
            _ => 0,
        }
    }

    /// Runs it, with the B that [`MatMul::pack`] packed before, if given.
    ///
    /// # Safety
    /// `args` are the buffers it was linked for; see [`tile::Runner::new`]. The packed matrix is their B.
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
                DType::F64 | DType::I64 => self.run_typed::<f64>(args, packed, parallel, failures),
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
            match self.schedule.algorithm {
                Algorithm::Packed => self.by_packed::<T>(args, packed, parallel, failures),
                Algorithm::Vector => self.vector::<T>(args, parallel, failures),
                Algorithm::Parts => self.in_parts::<T>(args, parallel, failures),
                _ => self.panels::<T>(args, parallel, failures),
            }
        }
    }

    unsafe fn panels<T: Lane>(&self, args: &[*mut u8], parallel: bool, failures: &Failures) {
        let batch: i64 = self.batch.iter().product();
        let (rows, cols) = (ceil(self.m, self.block.0), ceil(self.n, self.block.1));
        let blocks = batch * rows * cols;
        if blocks == 0 {
            return;
        }
        let cost = self.block.0 * self.block.1 * self.k.max(1);
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (blocks, cost),
            launch,
            |i, args, materialised, work| unsafe {
                // A part of B from a prologue is reused for all rows; otherwise a part of A from a prologue is reused for
                // all columns.
                let (b, i) = (i / (rows * cols), i % (rows * cols));
                let (r, c) = match self.rhs.prologue {
                    None => (i / cols, i % cols),
                    Some(_) => (i % rows, i / rows),
                };
                self.block::<T>(args, b, r, c, materialised, work)
            },
        );
    }

    unsafe fn block<T: Lane>(
        &self,
        args: &[*mut u8],
        b: i64,
        r: i64,
        c: i64,
        materialised: &mut [Materialised; 2],
        work: &mut EpilogueRunner,
    ) -> Result<()> {
        let (i0, j0) = (r * self.block.0, c * self.block.1);
        let (h, w) = (self.block.0.min(self.m - i0), self.block.1.min(self.n - j0));
        let first = (b * self.m + i0) * self.n + j0;
        let [left, right] = materialised;
        // SAFETY: the caller's; blocks lie within the matrices.
        let (lhs, rhs) = unsafe {
            (
                self.rows::<T>(args, (b, i0, h), left, work.failures)?,
                self.columns::<T>(args, (b, j0, w), right, work.failures)?,
            )
        };
        let (dst, pitch) = if self.epilogue.is_some() {
            (work.scratch::<T>(h * w)?, w)
        } else {
            let out = args[self.out].cast::<T>();
            (out.wrapping_offset(first as isize), self.n)
        };
        // SAFETY: linking proved the operands within their buffers; the block lies within the result
        // or the scratch memory.
        unsafe {
            let sizes = (h, w, self.k);
            multiply_as(self.how(), sizes, (dst, pitch), lhs, rhs, false)?;
            work.finish((dst, pitch), first, (h, self.n), w);
        }
        Ok(())
    }
}

/// Returns the schedule that a plan names, if its algorithm is legal.
pub(crate) fn chosen(named: Option<Cpu>, legal: &[Algorithm]) -> Result<Cpu> {
    match named {
        Some(named) if legal.contains(&named.algorithm) => Ok(named),
        Some(named) => Err(damaged!("{named} can't compute this kernel")),
        None => Err(damaged!("it is not said how a kernel is computed")),
    }
}
