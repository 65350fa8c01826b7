//! Batched matrix products, with blocks whose size depends on the shapes alone, spread over the pool.

mod block;
mod operand;
mod pack;
mod vector;
mod work;

pub(crate) use operand::{Materialised, Operand, link};
pub(crate) use work::{Launch, Results, add_parts, epilogue, register_epilogue, split};

use super::terms::Terms;
use crate::tile::Linked;
use block::{Grid, ProductBlock};
use kiln_base::{DType, Instruction};
use kiln_jit::contraction::{
    Accesses, Columns, Left, Matrix, Order, Output, RegisterEpilogue, RightSide, Rows, TERMS, Tile,
    TileGrid, multiply, shape, shown,
};
use kiln_kernel::affine::{ceil, extent, product};
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::failures::Failure;
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::Features;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{Arguments, View, ViewMut};
use kiln_kernel::work::{Call, Packs, Program};
use kiln_plan::cost::ProductEpilogue;
use kiln_plan::schedule::{Cpu, lanes};
use kiln_plan::{self as plan, Algorithm};
use pack::{CopiedLeft, PackedRight, READ_ROWS, Wide, WidenedPanels};
use std::sync::Arc;
use vector::rows_by_vector;

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
    schedule: Cpu,
    grid: Grid,
    /// The columns of a packed panel: whole vectors, as many as a register tile has.
    panel: i64,
    /// The register tiles over packed panels, for each range of K that is summed at a time.
    sums: Vec<TileGrid>,
    level: Features,
    pub(crate) epilogue: Option<Linked>,
    /// The same epilogue applied to accumulators in registers, where possible.
    register_epilogue: Option<Arc<RegisterEpilogue>>,
}

impl kiln_kernel::work::LinkedKernel for MatMul {
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        match self.dtype {
            DType::F64 | DType::I64 => self.run_typed::<f64>(call)?,
            _ => self.run_typed::<f32>(call)?,
        }
        Ok(None)
    }

    fn schedule(&self) -> Option<String> {
        let resolved = self.resolved();
        let [rows, vectors] = resolved.tile?.map(i64::from);
        let tile = [rows, vectors * i64::from(lanes(self.level, self.dtype))];
        let sums = shown(
            self.level,
            self.terms.instruction,
            tile,
            self.register_epilogue.is_some(),
        );
        Some(format!("{resolved}: {sums}{}", self.terms.shown()))
    }

    fn program(&self) -> Option<&dyn Program> {
        Some(self.epilogue.as_ref()?)
    }

    fn packs(&self) -> Option<Packs> {
        let (weights, bytes) = (self.rhs.arg, self.packed_bytes()?);
        Some(Packs { weights, bytes })
    }

    fn ignores_packed(&self) -> bool {
        let (weights, prologue) = (self.rhs.arg, self.lhs.prologue.as_deref());
        let by_packed = self.schedule.algorithm == Algorithm::Packed && self.rhs.prologue.is_none();
        let alone = (prologue.is_some() || self.lhs.arg != weights) && self.out != weights;
        let mut programs = self.epilogue.iter().chain(prologue);
        by_packed && alone && programs.all(|p| p.walks.iter().all(|w| w.arg != weights))
    }

    fn pack(&self, call: &Call<'_>) {
        let (weights, to) = (call.args.view(0), call.args.view_mut(1));
        self.pack_right(
            (Some(weights), &call.args),
            to,
            call.parallel,
            call.failures,
        );
    }
}

/// The maximum number of elements that rows of A span if instructions hold all offsets.
const NEAR: i64 = 1 << 24;

/// The maximum K, which is computed without interruption. Only rows that alias one element can be longer than memory.
pub(crate) const MAX_K: i64 = 1 << 36;

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
        if k > MAX_K {
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
        let (lhs, rhs) = (operand(0, m, k)?, operand(1, k, n)?);
        let distances = [lhs.row, lhs.col, k].map(i64::abs);
        let near =
            distances.into_iter().all(|n| n < NEAR) && lhs.col.abs().saturating_mul(k) < NEAR;
        let terms = Terms::new((p.dtypes, p.reduce_range), level, near && n < NEAR);
        let in_registers = near && algorithm == Algorithm::Packed && p.sums().size() == 4;
        let register_epilogue = match in_registers {
            true => register_epilogue(&p.epilogue, values, lens, (total, n), level)?,
            false => None,
        };
        let mut linked = MatMul {
            dtype: p.sums(),
            panel: schedule.panel_columns(level, terms.instruction, n),
            terms,
            lhs,
            rhs,
            out: p.out as usize,
            epilogue_kind: p.epilogue_kind(),
            packable: p.algorithm.names().any(|by| by == Algorithm::Packed),
            grid: Grid::default(),
            sums: Vec::new(),
            schedule,
            level,
            batch,
            m,
            k,
            n,
            epilogue,
            register_epilogue,
        };
        linked.check()?;
        linked.grid = linked.grid();
        if algorithm == Algorithm::Packed && linked.results() > 0 {
            let tiles = |range| TileGrid::new(&linked.tile(range), [1, m, n], Order::default());
            linked.sums = linked.ranges().map(tiles).collect::<Result<_>>()?;
        }
        Ok(linked)
    }

    /// Checks that its schedule is legal.
    fn check(&self) -> Result<()> {
        let s = &self.schedule;
        s.check(self.level, self.terms.instruction)
            .map_err(|e| damaged!("{e}"))?;
        let takes = match s.algorithm {
            Algorithm::Panels | Algorithm::Small => s.parts.is_none(),
            Algorithm::Packed => {
                s.parts.is_none() && (s.terms.is_none() || self.waiting_sums() > 0)
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
                let (rows, columns) = self.grid.block;
                all.tile = tile(self.tile_rows(), self.panel * self.panels_at_once() / lanes);
                all.block = Some([size(rows), size(columns)]);
            }
            Algorithm::Panels | Algorithm::Small => {
                let block = self.grid.block;
                let (m, n) = (block.0.min(self.m), block.1.min(self.n));
                let (rows, vectors) = shape(self.parameters(), m, n);
                all.tile = tile(rows, vectors);
                all.block = Some([size(block.0), size(block.1)]);
                let terms = all.terms.map_or(TERMS, i64::from);
                all.terms = Some(size(terms.min(self.k.max(1))));
            }
            Algorithm::Parts => all.parts = u16::try_from(self.parts()).ok(),
            _ => {}
        }
        all
    }

    /// Returns the instruction, level and schedule that multiply elements of the accumulators' dtype.
    fn parameters(&self) -> (Instruction, Features, Option<&Cpu>) {
        let by = Instruction::of_numbers(self.dtype);
        (by, self.level, Some(&self.schedule))
    }

    /// Returns the number of products.
    fn matrices(&self) -> i64 {
        self.batch.iter().product()
    }

    /// Returns the number of results of all products.
    fn results(&self) -> i64 {
        self.matrices() * self.m * self.n
    }

    /// Returns the number of elements of its workspace, on `threads` threads.
    pub(crate) fn workspace(&self, threads: i64) -> i64 {
        match self.schedule.algorithm {
            Algorithm::Vector => threads * self.k,
            Algorithm::Packed => self.packed_room() + self.copied_words() + self.layers(),
            Algorithm::Parts => self.layers(),
            _ => 0,
        }
    }

    /// Returns the number of elements of sums that wait until all are there.
    fn layers(&self) -> i64 {
        match self.schedule.algorithm {
            Algorithm::Packed => self.waiting_sums(),
            Algorithm::Parts => self.parts() * self.results(),
            _ => 0,
        }
    }

    /// Returns the number of accumulators that take as much room as the packed matrices.
    fn packed_room(&self) -> i64 {
        ceil(
            self.packed_elements() * self.packed_size(),
            self.dtype.size() as i64,
        )
    }

    /// Returns the size of the packed B in bytes, or `None` if it is never packed. If another algorithm is used for
    /// these sizes, what is packed in *prepare* is for other runs.
    pub(crate) fn packed_bytes(&self) -> Option<usize> {
        let bytes = (self.packed_elements() * self.packed_size()) as usize;
        (self.packable && self.rhs.prologue.is_none() && bytes > 0).then_some(bytes)
    }

    /// Runs it.
    fn run_typed<T: Lane>(&self, call: &Call) -> Result<()> {
        if self.results() == 0 {
            return Ok(());
        }
        let (args, parallel) = (&call.args, call.parallel);
        let [mut of_right, mut of_left, mut of_sums] = [None, None, None];
        let sums = match self.layers() {
            0 => None,
            all => Some(ViewMut::<T>::room(&mut of_sums, all)?),
        };
        let operands = match (self.schedule.algorithm, call.packed) {
            (Algorithm::Packed, packed) => {
                let right = match packed {
                    Some(packed) => packed,
                    None => {
                        let to = ViewMut::<T>::room(&mut of_right, self.packed_room())?.bytes();
                        let own = self.rhs.prologue.is_none();
                        let weights = own.then(|| args.view(self.rhs.arg));
                        self.pack_right((weights, args), to, parallel, call.failures);
                        to
                    }
                };
                let left = self.copy_left(args, &mut of_left, parallel)?;
                Operands::Packed(PackedRight(*right), left)
            }
            (Algorithm::Vector, _) => Operands::Vector,
            _ => Operands::InPlace,
        };
        let launch = Launch {
            in_registers: self.register_epilogue.is_some(),
            ..Launch::new(self.epilogue.as_ref(), call)
        };
        launch.run((self.grid.count, self.grid.cost), |i, scratch| {
            let block = self.block_of(i);
            self.block::<T>(&launch, operands, (&block, sums), scratch)
        });
        match sums {
            Some(sums) => self.add_layers(&launch, sums),
            None => Ok(()),
        }
    }

    /// Computes a block.
    fn block<T: Lane>(
        &self,
        launch: &Launch,
        operands: Operands,
        (b, sums): (&ProductBlock, Option<ViewMut<T>>),
        scratch: &mut Scratch,
    ) -> Result<()> {
        let (args, failures) = (&launch.args, launch.failures);
        let first = (b.batch * self.m + b.row) * self.n + b.col;
        let (dst, pitch) = match sums {
            Some(sums) => (sums.shift(b.part * self.results() + first), self.n),
            None => {
                let (to, pitch) = ((self.out, first, self.n), self.raw_pitch());
                launch.destination::<T>(to, (&mut scratch.raw, b.rows * pitch, pitch))?
            }
        };
        let [left, right] = &mut scratch.materialised;
        if let Operands::Packed(packed, copied) = operands {
            let rows = (b.batch, b.row, b.rows);
            let kept = (left, &mut scratch.copy);
            let (lhs, [_, across]) = self.left_rows(args, rows, copied, kept, failures)?;
            self.sum_packed(args, b, (lhs, across), packed, dst, &mut scratch.wide)?;
        } else {
            let (lhs, [down, across]) =
                self.lines(0, args, (b.batch, b.row, b.rows), left, failures)?;
            let (rhs, [row, col]) =
                self.lines(1, args, (b.batch, b.col, b.cols), right, failures)?;
            let (from, to) = b.terms;
            let lhs = (lhs.cast::<T>().shift(from * across), down, across);
            let rhs = (rhs.cast::<T>().shift(from * row), row, col);
            match operands {
                Operands::Vector => self.sum_vector(b, lhs, rhs, dst, &mut scratch.copy)?,
                _ => {
                    let sizes = (b.rows, b.cols, to - from);
                    multiply(
                        self.parameters(),
                        sizes,
                        (dst, pitch),
                        lhs,
                        rhs.into(),
                        false,
                    )?;
                }
            }
        }
        match sums {
            Some(_) => Ok(()),
            None => launch.apply_epilogue((dst, pitch), first, (b.rows, self.n), b.cols),
        }
    }

    /// Computes a block of a product with a vector.
    fn sum_vector<T: Lane>(
        &self,
        b: &ProductBlock,
        left: Matrix<T>,
        right: Matrix<T>,
        mut dst: ViewMut<T>,
        copy: &mut Option<Storage>,
    ) -> Result<()> {
        // The matrix with the result's index first, and the vector.
        let ((matrix, row, col), (vector, step), len) = match self.n != 1 {
            true => ((right.0, right.2, right.1), (left.0, left.2), b.cols),
            false => (left, (right.0, right.1), b.rows),
        };
        if col != 1 {
            let (vector, matrix) = ((vector, 0, step), (matrix, col, row));
            let (sizes, to) = ((1, len, self.k), (dst, len));
            return multiply(self.parameters(), sizes, to, vector, matrix.into(), false);
        }
        let mut copied;
        let vector = match step {
            1 => vector.slice(0, self.k),
            _ => {
                copied = ViewMut::room(copy, self.k)?;
                let to = copied.slice_mut(0, self.k);
                (0..).zip(to).for_each(|(j, to)| *to = vector.get(j * step));
                copied.slice(0, self.k)
            }
        };
        rows_by_vector(self.level, (matrix, row), vector, dst.slice_mut(0, len));
        Ok(())
    }

    /// Returns the ranges of K's steps that are summed at a time over packed panels.
    fn ranges(&self) -> impl Iterator<Item = (i64, i64)> {
        let (steps, part) = (self.steps(), self.steps_at_once());
        let all = (0..steps.max(1)).step_by(part as usize);
        all.map(move |from| (from, part.min(steps - from)))
    }

    /// Returns the pitch of results that wait for an epilogue.
    fn raw_pitch(&self) -> i64 {
        self.grid.block.1.min(self.n)
    }

    /// Returns the whole register tile of a range of K over packed panels.
    fn tile(&self, (from, steps): (i64, i64)) -> Tile {
        let size = self.dtype.size() as i64;
        let (panel, at_once, rows) = (self.panel, self.panels_at_once(), self.tile_rows());
        let half_dtype = self.half_dtype().filter(|_| !self.widens_panels());
        let [down, across] = self.left_strides();
        let pitch = match (self.layers(), &self.epilogue) {
            (1.., _) | (_, None) => self.n,
            _ if self.register_epilogue.is_some() => 0,
            _ => self.raw_pitch(),
        };
        let right = RightSide {
            half_dtype,
            panel: match at_once > 1 {
                true => panel * self.panel_rows() * self.packed_size(),
                false => 0,
            },
            ..RightSide::of_panel(panel * half_dtype.map_or(size, |half| half.size() as i64))
        };
        let (by, columns) = (self.terms.instruction, (panel * at_once).min(self.n));
        Tile {
            step: across,
            steps: steps as u32,
            out: pitch * size,
            adds: from > 0,
            has_initial_row: self.terms.is_flipped() && from == 0,
            strip: [rows * down, rows],
            epilogue: self.register_epilogue.clone(),
            ..Tile::new(
                (self.level, by),
                Rows::of_matrix(rows, down),
                columns,
                right,
            )
        }
    }

    /// Computes a block of a product with packed panels.
    fn sum_packed<T: Lane>(
        &self,
        args: &Arguments,
        b: &ProductBlock,
        (left, across): (View<u8>, i64),
        PackedRight(packed): PackedRight,
        dst: ViewMut<T>,
        wide: &mut Wide,
    ) -> Result<()> {
        let packed_size = self.packed_size();
        let matrix = b.batch.min(self.right_matrices() - 1) * self.matrix_elements();
        let mut accesses = Accesses::of(self.register_epilogue.as_deref(), args);
        for ((from, _), sums) in self.ranges().zip(&self.sums) {
            // The row that accumulators start with precedes the first step.
            let front = from + i64::from(self.terms.is_flipped() && from > 0);
            // Blocks start at a panel.
            let at = matrix + b.col * self.panel_rows() + front * self.panel;
            let mut panels = Columns {
                first: packed.shift(at * packed_size),
                column: self.panel_rows() * packed_size,
            };
            let out = match self.register_epilogue {
                Some(_) => Output::Epilogue(&mut accesses, (b.batch * self.m + b.row, b.col)),
                None => Output::Memory(dst.bytes()),
            };
            let all = [0..1, 0..b.rows, 0..b.cols];
            let left = Left::Rows(left.shift(from * across), &[]);
            match self.half_dtype().filter(|_| self.widens_panels()) {
                Some(half) => {
                    let mut widened = WidenedPanels {
                        panels,
                        dtypes: (half, self.level),
                        len: self.panel * self.k,
                        wide: &mut *wide,
                    };
                    sums.compute(all, left, &mut widened, out)?;
                }
                None => sums.compute(all, left, &mut panels, out)?,
            }
        }
        Ok(())
    }

    /// Adds up the parts of sums in order, and applies the epilogue.
    fn add_layers<T: Lane>(&self, launch: &Launch, sums: ViewMut<T>) -> Result<()> {
        let (all, parts) = (self.results(), self.parts());
        let chunk = match parts {
            1 => self.whole_rows(self.block_rows()) * self.n,
            _ => SUMMED,
        };
        launch.run(
            (ceil(all, chunk), chunk * parts.max(READ_ROWS)),
            |i, _: &mut ()| {
                let (first, len) = (i * chunk, chunk.min(all - i * chunk));
                let sums = sums.shift(first);
                add_parts(sums, parts, (all, len));
                if self.epilogue.is_none() {
                    let to = launch.args.view_mut(self.out);
                    to.copy(first, sums.slice(0, len));
                }
                launch.apply_epilogue((sums, len), first, (1, len), len)
            },
        );
        Ok(())
    }
}

/// The results that are added up at a time.
const SUMMED: i64 = 4096;

/// The operands as blocks read them.
#[derive(Copy, Clone)]
enum Operands<'a> {
    /// B in panels, and a copy of A, if it is copied as a whole.
    Packed(PackedRight<'a>, Option<CopiedLeft<'a>>),
    /// Matrices in place; one of them is a vector.
    Vector,
    InPlace,
}

/// The buffers that a thread keeps between blocks.
#[derive(Default)]
struct Scratch {
    raw: Option<Storage>,
    materialised: [Materialised; 2],
    copy: Option<Storage>,
    wide: Wide,
}

/// Returns the schedule that a plan names, if its algorithm is legal.
pub(crate) fn chosen(named: Option<Cpu>, legal: &[Algorithm]) -> Result<Cpu> {
    match named {
        Some(named) if legal.contains(&named.algorithm) => Ok(named),
        Some(named) => Err(damaged!("{named} can't compute this kernel")),
        None => Err(damaged!("a kernel names no algorithm")),
    }
}
