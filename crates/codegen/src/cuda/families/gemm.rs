//! Contractions by tiles: a block computes a tile of the result and its epilogue. If tiles are few and sums long, K is
//! split among blocks, and a second kernel adds the partial sums in order.

use super::call::{Call, Store, fits_i32, line_of_blocks, lines};
use super::gemm_tile::{out_column, tile_constants, tile_text};
use super::im2col;
use super::operand::{Operand, contiguous_run, declare_result_offset, load_instructions, operand};
use super::prologue;
use super::warpgroup::TmaOperand;
use crate::Approximation;
use crate::cuda::job::Job;
use crate::cuda::source::{Index, Source, memory};
use crate::cuda::values::Values;
use crate::cuda::{rows, rows_shape};
use crate::kir;
use crate::schedule::Schedule;
use crate::work::{Candidate, KernelCall, KernelCalls, Slot};
use kiln_base::{DType, Dim, ceil};
use kiln_plan::contraction::{BATCH, COLUMNS, Contraction, ROWS, TERMS};
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::{CudaCpp, SharedLaunch};
use kiln_plan::schedule::{Gpu, Multiply};

mod choice;
mod warpgroups;

/// A contraction as block tiles.
pub(super) struct Gemm<'a> {
    pub work: Job<'a>,
    pub name: &'a str,
    /// The dtype of the left operand, which is also that of the right one except for bytes.
    pub dtype: DType,
    pub dtypes: [DType; 2],
    pub contraction: Contraction,
    /// The operands' memory, or the prologues that compute them.
    pub operands: [(Slot, Option<&'a kir::Kernel>); 2],
    pub store: Store<'a>,
    /// The numbers of rows, columns, terms and products.
    m: Dim,
    n: Dim,
    k: Dim,
    batches: Dim,
    /// The number of elements of the result.
    total: Dim,
    /// The number of instructions that load an element of either operand into shared memory.
    load_instructions: [f64; 2],
    /// True if an element takes many instructions, which limits the loads of a thread.
    costly: bool,
    /// The operands or their prologues' arguments as TMA loads them, if it can load both, and the number of terms, with
    /// padding of taps.
    tma_operands: Option<([TmaOperand; 2], Dim)>,
    /// The arguments of prologues that TMA loads.
    sources: [Option<usize>; 2],
    /// The number of instructions of either prologue per element in registers.
    prologue_instructions: [f64; 2],
}

/// The partial sums of split-K.
const PARTIAL_SUMS: Slot = Slot::Scratch(0);
/// The bytes of static shared memory that an epilogue may take in addition to the tile.
const EPILOGUE_SHARED_BYTES: u32 = 4 << 10;
/// A schedule with the values derived from it.
struct Shape {
    schedule: Gpu,
    /// The number of terms of a partial sum.
    chunk: i64,
    index: Index,
    /// The dtype of accumulators.
    acc: DType,
    /// True if the product is transposed.
    is_transposed: bool,
}

impl Gemm<'_> {
    pub fn new<'a>(
        work: Job<'a>,
        name: &'a str,
        dtypes: [DType; 2],
        contraction: Contraction,
        operands: [(Slot, Option<&'a kir::Kernel>); 2],
        store: Store<'a>,
    ) -> Gemm<'a> {
        let sizes = [ROWS, COLUMNS, TERMS, BATCH].map(|kind| contraction.size(kind));
        let [m, n, k, batches] = sizes;
        let mut prologue = operands.iter().filter_map(|(_, prologue)| *prologue);
        let dtype = dtypes[0];
        let tma_operand = |side: usize| match operands[side].1 {
            None => Some((TmaOperand::new(&contraction, side, dtype)?, None)),
            Some(prologue) => {
                let (operand, source) = TmaOperand::of_prologue(&contraction, side, prologue)?;
                Some((operand, Some(source)))
            }
        };
        let loads = [tma_operand(0), tma_operand(1)];
        let sources = loads.each_ref().map(|x| x.as_ref().and_then(|x| x.1));
        let [left, right] = loads.map(|x| x.map(|x| x.0));
        let matrices = left.zip(right).map(|(a, b)| ([a, b], k.clone()));
        let is_plain = prologue.clone().next().is_none();
        let convolution = || {
            let (operands, terms) = im2col::operands(&contraction, dtype)?;
            Some((operands, Dim::Const(terms)))
        };
        let tma_operands = matrices.or_else(|| is_plain.then(convolution).flatten());
        let has_wgmma = dtype.is_half() || dtype.is_byte() || dtype == DType::F32;
        Gemm {
            tma_operands: tma_operands.filter(|_| has_wgmma),
            sources,
            prologue_instructions: [0, 1].map(|side| match (operands[side].1, sources[side]) {
                (Some(prologue), Some(source)) => {
                    prologue::instructions_per_element(prologue, source)
                }
                _ => 0.0,
            }),
            work,
            name,
            dtype,
            dtypes,
            total: contraction.result.len.clone(),
            // Lines with bounds take several registers each.
            costly: prologue.any(prologue::is_costly)
                || contraction.is_bounded() && dtype.size() == 8,
            load_instructions: [0, 1]
                .map(|side| load_instructions(&contraction, side, dtype, operands[side].1)),
            contraction,
            operands,
            store,
            m,
            n,
            k,
            batches,
        }
    }

    /// Returns the default candidate, and with `all` the others.
    pub fn emit(self, all: bool) -> Vec<Candidate> {
        // Integers have one candidate.
        let all = all && self.dtype.is_float();
        let mut chosen = self.candidates(&self.exact());
        if chosen.is_empty() {
            chosen.push(self.smallest());
        }
        match all {
            true => chosen.extend(
                self.rounded()
                    .into_iter()
                    .flat_map(|m| self.candidates(&[m])),
            ),
            false => chosen.truncate(1),
        }
        let requested = self
            .work
            .schedule
            .filter(|s| self.is_legal(s) && !chosen.contains(s));
        chosen.extend(requested);
        let candidate = |schedule: &Gpu| Candidate {
            schedule: Schedule::Gpu(*schedule),
            approximation: Approximation::of(schedule.multiply),
            predicted: self.predicted(schedule),
            calls: self.kernels(schedule),
        };
        chosen.iter().map(candidate).collect()
    }

    /// Emits the kernels of a candidate.
    fn kernels(&self, schedule: &Gpu) -> KernelCalls {
        let (parts, shape) = (i64::from(schedule.parts), self.shape(schedule));
        let mut steps = vec![self.product(&shape)];
        let mut scratch = Vec::new();
        if parts > 1 {
            steps.push(self.add_partial_sums(&shape));
            scratch.push((shape.acc, vec![Dim::Const(parts), self.total.clone()]));
        }
        KernelCalls {
            steps,
            scratch,
            in_place: match self.row_epilogue() {
                Some(kernel) => {
                    let shape = rows_shape::Shape::of_block(kernel, schedule.threads());
                    rows::aliasing_pairs(kernel, &self.work.in_place, &shape)
                }
                None => self.work.in_place.clone(),
            },
        }
    }

    /// Returns the epilogue, if it reduces rows.
    fn row_epilogue(&self) -> Option<&kir::Kernel> {
        match &self.store {
            Store::Epilogue(kir) => Some(*kir).filter(|kir| !kir.inner.is_empty()),
            Store::Plain(..) => None,
        }
    }

    /// Returns the kernel of the best schedule without split K, and its cycles.
    pub fn unsplit_kernel(&self) -> (KernelCall, Option<f64>) {
        let mut candidates = self.candidates(&self.exact()).into_iter();
        let schedule = candidates.find(|s| s.parts == 1).unwrap_or(self.smallest());
        let step = self.product(&self.shape(&schedule));
        (step, self.predicted(&schedule))
    }

    fn shape(&self, schedule: &Gpu) -> Shape {
        let parts = Dim::Const(schedule.parts.into());
        Shape {
            schedule: *schedule,
            chunk: self.chunk(schedule),
            index: self.index(&(&self.total * &parts)),
            acc: match self.dtype {
                DType::F16 | DType::BF16 => DType::F32,
                DType::I8 | DType::U8 => DType::I32,
                dtype => dtype,
            },
            is_transposed: false,
        }
    }

    /// Returns the number of terms of a partial sum: a multiple of a stage's.
    fn chunk(&self, schedule: &Gpu) -> i64 {
        let (parts, depth) = (i64::from(schedule.parts), i64::from(schedule.tile[2]));
        let k = self.terms_of(schedule.multiply).as_const().unwrap_or(0);
        ceil(ceil(k, parts), depth) * depth
    }

    /// Returns the number of terms, with padding of taps for im2col copies.
    fn terms_of(&self, multiply: Multiply) -> &Dim {
        match &self.tma_operands {
            Some((_, terms)) if multiply.is_by_warpgroups() => terms,
            _ => &self.k,
        }
    }

    /// Begins the kernel that multiplies. It stores the result or partial sums.
    fn begin(&self, shape: &Shape) -> (Call<'_>, Source) {
        let mut call = Call::new(self.work);
        let name = match shape.schedule.parts {
            1 => {
                self.store.push(&mut call);
                self.name.to_string()
            }
            _ => {
                call.push(PARTIAL_SUMS, shape.acc, true);
                format!("{}_parts", self.name)
            }
        };
        prologue::push(&mut call, &self.operands, self.dtypes);
        let mut source = call.source(&name, shape.index);
        // Fewer resident blocks leave registers for prologues, epilogues and the addresses of operands.
        let threads = shape.schedule.threads();
        let by_threads = !shape.schedule.multiply.is_by_tensor_cores();
        let blocks = match threads {
            ..=64 => 4,
            _ if by_threads && self.load_instructions.iter().any(|f| *f > 1.0) => {
                (256 / threads).max(1)
            }
            _ => shape.schedule.resident(self.work.gpu, self.dtype),
        };
        source.bound_registers(blocks);
        (call, source)
    }

    /// Emits the kernel that multiplies.
    fn product(&self, shape: &Shape) -> KernelCall {
        let by_warpgroups = shape.schedule.multiply.is_by_warpgroups();
        if let Some(([a, b], _)) = self.tma_operands.as_ref().filter(|_| by_warpgroups) {
            if !shape.schedule.is_transposed() {
                return self.product_by_warpgroups(shape, [a, b]);
            }
            let shape = Shape {
                schedule: shape.schedule.transposed(),
                is_transposed: true,
                ..*shape
            };
            return self.transposed().product_by_warpgroups(&shape, [b, a]);
        }
        let (call, mut source) = self.begin(shape);
        let [a, b] = self.read_operands(&mut source, &call);
        source.scope(&self.scope(shape, &a, &b));
        let Gpu { tile, parts, .. } = shape.schedule;
        let (threads, shared) = (shape.schedule.threads(), shape.schedule.shared(self.dtype));
        match shared + EPILOGUE_SHARED_BYTES <= self.work.gpu.shared {
            true => source.shared("Shared"),
            false => source.dynamic_shared("Shared", shared),
        }
        source.shared_launch = SharedLaunch::Few;
        self.emit_tile(&mut source, shape, [&a, &b]);
        match (parts, self.row_epilogue()) {
            (1, Some(kernel)) => emit_row_epilogues(&mut source, kernel, threads),
            _ => {
                let width = self.stored_width(shape);
                self.open_elements(&mut source, width);
                self.store_elements(&mut source, &call, shape, width);
            }
        }
        source.line("}");
        let round_up = |d: &Dim, tile: i64| match d.as_const() {
            Some(n) => Dim::Const(ceil(n, tile) * tile),
            None => d + &Dim::Const(tile - 1),
        };
        let [m, n, _] = tile.map(i64::from);
        let points = &round_up(&self.m, m) * &round_up(&self.n, n);
        let points = &(&points * &self.batches) * &Dim::Const(parts.into());
        let grid = line_of_blocks(points, (m * n) as u32);
        call.step(source.finish(grid, [threads, 1, 1]))
    }

    /// Returns the operands that threads load.
    fn read_operands(&self, source: &mut Source, call: &Call) -> [Operand; 2] {
        let (c, dtypes) = (&self.contraction, self.dtypes);
        [0, 1].map(|side| operand(source, call, c, side, dtypes, self.operands[side]))
    }

    /// Returns the declarations before the kernel that multiplies.
    fn scope(&self, shape: &Shape, a: &Operand, b: &Operand) -> String {
        let mut text = self.types(shape);
        text += &tile_constants(&shape.schedule, self.dtypes, [a, b]);
        text += include_str!("gemm_operands.cu");
        if self.operands.iter().any(|(_, prologue)| prologue.is_some()) {
            text += prologue::CLASS;
        }
        text += &out_column(shape.schedule.multiply, true);
        text += tile_text(shape.schedule.multiply);
        text += include_str!("gemm_out.cu");
        if self.recomputes_nan() {
            let bounded = self.contraction.operands.each_ref();
            let [a, b] = bounded.map(|x| !x.bounds.is_empty());
            text += &format!("constexpr bool A_BOUNDED = {a}, B_BOUNDED = {b};\n");
            text += &self.term_function();
            text += include_str!("gemm_inside.cu");
        }
        text
    }

    /// Returns the function of a term for the recomputation of NaN elements.
    fn term_function(&self) -> String {
        let loaded = CudaCpp::loaded("x", self.dtype);
        format!(
            "__device__ __forceinline__ Acc load(Elem x) {{ return {loaded}; }}\n{}",
            include_str!("gemm_term.cu")
        )
    }

    fn types(&self, shape: &Shape) -> String {
        format!(
            "typedef {} Elem;\ntypedef {} Acc;\ntypedef {} Index;\ntypedef unsigned {} UIndex;\n",
            memory(self.dtype),
            memory(shape.acc),
            shape.index.name(),
            shape.index.name()
        )
    }

    /// Declares the sizes, and returns from a kernel without elements.
    fn declare_sizes(&self, source: &mut Source, schedule: &Gpu) {
        let sizes = [
            ("m", &self.m),
            ("n", &self.n),
            ("k", self.terms_of(schedule.multiply)),
            ("batches", &self.batches),
        ];
        for (name, dim) in sizes {
            let value = source.dim(dim);
            source.line(format!("const Index {name} = {value};"));
        }
        let high = u32::from(schedule.tile[0]) * u32::from(schedule.cluster);
        let text = format!(
            "\
if (m <= 0 || n <= 0 || batches <= 0) return;
const Index rows = (m + {}) / {high}, columns = (n + BN - 1) / BN;",
            high - 1
        );
        lines(source, &text);
    }

    /// Returns declarations of the first row and column of a tile, its batch and its part of K, given its index. In a
    /// cluster, the tile is that of block `rank`.
    fn place(&self, shape: &Shape, number: &str) -> String {
        let i0 = match shape.schedule.cluster {
            1 => "BM".into(),
            blocks => format!("({blocks} * BM) + rank * BM"),
        };
        let place = match shape.schedule.raster {
            1 => format!("const Index i0 = tile / columns * {i0}, j0 = tile % columns * BN;"),
            raster => format!(
                "\
const Index above = tile / (columns * {raster}) * {raster}, left = tile % (columns * {raster});
const Index high = rows - above < {raster} ? rows - above : {raster};
const Index i0 = (above + left % high) * {i0}, j0 = left / high * BN;"
            ),
        };
        format!(
            "\
const Index tile = {number} % (rows * columns), product = {number} / (rows * columns);
{place}
const Index batch = product % batches, split = product / batches;"
        )
    }

    /// Returns declarations of the range of a tile's terms.
    fn terms(&self, shape: &Shape) -> String {
        let chunk = shape.chunk;
        let end = match shape.schedule.parts {
            1 => "k".into(),
            _ => format!("k < first + {chunk} ? k : first + {chunk}"),
        };
        format!("const Index first = split * {chunk}, end = {end};")
    }

    /// Emits the product of a block's tile, which it leaves in shared memory.
    fn emit_tile(&self, source: &mut Source, shape: &Shape, operands: [&Operand; 2]) {
        self.declare_sizes(source, &shape.schedule);
        let text = format!(
            "\
{}
if (split >= {}) return;
{}{}{}
multiply(shared, a, b, i0, j0, first, end);{}",
            self.place(shape, "blockIdx.x"),
            shape.schedule.parts,
            operands[0].text,
            operands[1].text,
            self.terms(shape),
            match self.recomputes_nan() {
                true => "\nsum_inside(shared, a, b, i0, j0, first, end);",
                false => "",
            }
        );
        lines(source, &text);
    }

    /// Opens a loop over vectors of `width` elements of the result. An iteration has their values `raw` and offset
    /// `at`.
    fn open_elements(&self, source: &mut Source, width: u32) {
        let raw = match width {
            1 => "Acc raw = shared.out[e / BN][out_column(e / BN, e % BN)];".into(),
            _ => format!("const auto raw = tile_vector<{width}>(shared, e / BN, e % BN);"),
        };
        let text = format!(
            "\
#pragma unroll 1 // the text below may be long
for (int e = threadIdx.x * {width}; e < BM * BN; e += THREADS * {width}) {{
const Index i = i0 + e / BN, j = j0 + e % BN;
if (i >= m || j >= n) continue;
{}
{raw}",
            declare_result_offset(source, &self.contraction)
        );
        lines(source, &text);
    }

    /// Stores the elements of an iteration of such a loop, or their partial sums.
    fn store_elements(&self, source: &mut Source, call: &Call, shape: &Shape, width: u32) {
        if shape.schedule.parts > 1 {
            let total = source.dim(&self.total);
            source.line(format!("at += split * {total};"));
        }
        self.destination(shape).emit(source, call, width);
    }

    /// Returns the destination of a kernel that multiplies: the result or partial sums.
    fn destination(&self, shape: &Shape) -> Store<'_> {
        match shape.schedule.parts {
            1 => self.store,
            _ => Store::Plain(PARTIAL_SUMS, shape.acc),
        }
    }

    /// True if NaN elements are recomputed without terms in the padding.
    fn recomputes_nan(&self) -> bool {
        let may_be_nan = self.dtype.is_float();
        may_be_nan && self.contraction.skips && self.contraction.is_bounded()
    }

    /// Returns the number of elements that are stored as one vector.
    fn stored_width(&self, shape: &Shape) -> u32 {
        let store = self.destination(shape);
        let kind = if shape.is_transposed { ROWS } else { COLUMNS };
        contiguous_run(&self.contraction, kind).map_or(1, |run| store.width(&run))
    }

    /// Emits the kernel that adds partial sums and stores the result.
    fn add_partial_sums(&self, shape: &Shape) -> KernelCall {
        let mut call = Call::new(self.work);
        self.store.push(&mut call);
        call.push(PARTIAL_SUMS, shape.acc, false);
        let mut source = call.source(self.name, shape.index);
        source.scope(&self.types(shape));
        let (parts, total) = (call.pointer(PARTIAL_SUMS), source.dim(&self.total));
        let text = format!(
            "\
const Index at = (Index)blockIdx.x * 256 + threadIdx.x;
if (at >= {total}) return;
Acc raw = {parts}[at];
for (int split = 1; split < {}; split++) raw += {parts}[split * {total} + at];",
            shape.schedule.parts
        );
        lines(&mut source, &text);
        self.store.emit(&mut source, &call, 1);
        let grid = line_of_blocks(self.total.clone(), 256);
        call.step(source.finish(grid, [256, 1, 1]))
    }

    /// Returns the type of indices: 32 bits if all sizes are known to be small.
    fn index(&self, total: &Dim) -> Index {
        let epilogue = match self.store {
            Store::Epilogue(kir) => Values::index_type(kir),
            Store::Plain { .. } => Index::Int,
        };
        let lens = self.contraction.operands.iter().map(|x| &x.len);
        let is_small = lens.chain([total, &self.k, &self.m, &self.n]).all(fits_i32);
        let mut prologue = self.work.prologues().into_iter().flatten();
        match is_small && prologue.all(|k| Values::index_type(k) == Index::Int) {
            true => epilogue,
            false => Index::Long,
        }
    }

    /// Returns the length of rows that the epilogue reduces.
    fn row_length(&self) -> Option<i64> {
        self.row_epilogue().and_then(|_| self.n.as_const())
    }
}

/// Emits a loop over the rows of a tile, and the epilogue of a row.
fn emit_row_epilogues(source: &mut Source, kernel: &kir::Kernel, threads: u32) {
    let shape = rows_shape::Shape::of_block(kernel, threads);
    let (lanes, rows) = (shape.lanes, shape.rows);
    let text = format!(
        "\
const int lane = threadIdx.x % {lanes};
#pragma unroll 1 // the text below may be long
for (int line = threadIdx.x / {lanes}; line < BM && i0 + line < m; line += {rows}) {{
const Index row = batch * m + i0 + line;"
    );
    lines(source, &text);
    rows::emit_epilogue(
        kernel,
        &shape,
        "shared.out[line][out_column(line, i)]",
        source,
    );
}
