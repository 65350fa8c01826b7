//! Contractions by tiles: a block computes a tile of the result, whose elements then pass through the epilogue. Where
//! the result has few tiles and sums are long, several blocks share a sum, and a second kernel adds their parts in
//! order.

use super::call::{Call, Store, few, line_of_blocks, lines};
use super::gemm_tile::{WARPGROUPS, schedules, tile_constants, tile_text, warpgroup_constants};
use super::operand::{Boxed, Operand, box_copy, boxed, finding, operand, result, run};
use super::prologue;
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
use kiln_plan::schedule::{ContractionSizes, Gpu, Multiply};

/// A contraction as block tiles.
pub(super) struct Gemm<'a> {
    pub work: Job<'a>,
    pub name: &'a str,
    pub dtype: DType,
    pub contraction: Contraction,
    /// The memory of operands, or the prologues that make them.
    pub operands: [(Slot, Option<&'a kir::Kernel>); 2],
    pub store: Store<'a>,
    /// The numbers of rows, columns, terms and products.
    m: Dim,
    n: Dim,
    k: Dim,
    batches: Dim,
    /// The number of elements of the result.
    total: Dim,
    /// The number of instructions that find an element of either operand.
    finding: [f64; 2],
    /// True if an element takes many instructions, so that each thread loads few.
    costly: bool,
    /// The operands as bulk copies see them, if these can bring both.
    boxed: Option<[Boxed; 2]>,
}

/// The parts of sums that blocks share.
const PARTS: Slot = Slot::Scratch(0);
/// The fewest products that may be a block's part of a sum.
const LEAST_SHARE: i64 = 128;
/// The assumed size of an unknown extent.
const UNKNOWN: i64 = 1024;
/// The most candidates of an instruction.
const CANDIDATES: usize = 6;
/// The most cycles of a candidate, relative to the best.
const HOPELESS: f64 = 2.5;
/// The bytes of static shared memory that an epilogue may take in addition to the tile.
const OTHERS: u32 = 4 << 10;
/// The bytes of operands that are no small part of L2.
const LARGE: i64 = 8 << 20;
/// The registers of a thread in which a costly operand leaves enough room for accumulators.
const FEW_SUMS: u16 = 64;

/// The most rows or columns with which tensor cores gain nothing.
const FEW: i64 = 8;
/// The most products in a sum that is not worth rounding its operands for.
const SHORT: i64 = 31;

/// A schedule with the values derived from it.
struct Shape {
    schedule: Gpu,
    /// The number of terms in a part of a sum.
    chunk: i64,
    index: Index,
    /// The dtype of sums.
    acc: DType,
}

impl Gemm<'_> {
    pub fn new<'a>(
        work: Job<'a>,
        name: &'a str,
        dtype: DType,
        contraction: Contraction,
        operands: [(Slot, Option<&'a kir::Kernel>); 2],
        store: Store<'a>,
    ) -> Gemm<'a> {
        let sizes = [ROWS, COLUMNS, TERMS, BATCH].map(|kind| contraction.size(kind));
        let [m, n, k, batches] = sizes;
        let mut prologue = operands.iter().filter_map(|(_, prologue)| *prologue);
        let boxed = || Some([boxed(&contraction, 0)?, boxed(&contraction, 1)?]);
        let is_boxed = dtype.is_half() && prologue.clone().next().is_none();
        Gemm {
            boxed: is_boxed.then(boxed).flatten(),
            work,
            name,
            dtype,
            total: contraction.result.len.clone(),
            // Each line that a thread reads is several numbers, which take registers.
            costly: prologue.any(prologue::is_costly)
                || contraction.is_bounded() && dtype.size() == 8,
            finding: [0, 1].map(|side| finding(&contraction, side, operands[side].1)),
            contraction,
            operands,
            store,
            m,
            n,
            k,
            batches,
        }
    }

    /// Returns the default, and with `all` every other candidate.
    pub fn print(self, all: bool) -> Vec<Candidate> {
        // Candidates are measured within a bound of rounding, which integers don't have.
        let all = all && self.dtype.is_float();
        let mut chosen = self.candidates(&self.exact());
        match all {
            true => chosen.extend(
                self.rounded()
                    .into_iter()
                    .flat_map(|m| self.candidates(&[m])),
            ),
            false => chosen.truncate(1),
        }
        let given = self
            .work
            .schedule
            .filter(|s| self.is_legal(s) && !chosen.contains(s));
        chosen.extend(given);
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
            steps.push(self.sum(&shape));
            scratch.push((shape.acc, vec![Dim::Const(parts), self.total.clone()]));
        }
        KernelCalls {
            steps,
            scratch,
            in_place: match self.rows() {
                Some(kernel) => {
                    let shape = rows_shape::Shape::of_block(kernel, schedule.threads());
                    rows::may_share(kernel, &self.work.in_place, &shape)
                }
                None => self.work.in_place.clone(),
            },
        }
    }

    /// Returns the epilogue, if it works on whole rows of the result.
    fn rows(&self) -> Option<&kir::Kernel> {
        match &self.store {
            Store::Epilogue(kir) => Some(*kir).filter(|kir| !kir.inner.is_empty()),
            Store::Plain(..) => None,
        }
    }

    /// Returns the kernel of the best schedule with whole sums, and its cycles.
    pub fn whole(&self) -> (KernelCall, Option<f64>) {
        let mut all = self.candidates(&self.exact()).into_iter();
        let schedule = all.find(|s| s.parts == 1).unwrap_or(self.smallest());
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
                dtype => dtype,
            },
        }
    }

    /// Returns the number of terms in a part of a sum: whole stages.
    fn chunk(&self, schedule: &Gpu) -> i64 {
        let (parts, depth) = (i64::from(schedule.parts), i64::from(schedule.tile[2]));
        let k = self.k.as_const().unwrap_or(0);
        ceil(ceil(k, parts), depth) * depth
    }

    /// Emits the kernel that multiplies. It stores the result, or parts of its sums.
    fn product(&self, shape: &Shape) -> KernelCall {
        let Gpu { tile, parts, .. } = shape.schedule;
        let mut call = Call::new(self.work);
        let name = match parts {
            1 => {
                self.store.push(&mut call);
                self.name.to_string()
            }
            _ => {
                call.push(PARTS, shape.acc, true);
                format!("{}_parts", self.name)
            }
        };
        prologue::push(&mut call, &self.operands, self.dtype);
        let mut source = call.source(&name, shape.index);
        let threads = shape.schedule.threads();
        let (machine, shared) = (self.work.gpu, shape.schedule.shared(self.dtype));
        source.hold(shape.schedule.resident(machine, self.dtype));
        match (&self.boxed, shape.schedule.multiply) {
            (Some(boxed), Multiply::Wgmma) => {
                source.scope(
                    &(self.types(shape)
                        + &warpgroup_constants(&shape.schedule, self.dtype, boxed.each_ref())),
                );
                source.scope(WARPGROUPS);
                source.dynamic_shared("Shared", shared);
                source.shared_launch = SharedLaunch::Nothing;
                self.warpgroups(&mut source, &call, shape, boxed);
            }
            _ => {
                let [a, b] = [0, 1].map(|side| {
                    operand(
                        &mut source,
                        &call,
                        &self.contraction,
                        side,
                        self.operands[side],
                    )
                });
                source.scope(&self.scope(shape, &a, &b));
                match shared + OTHERS <= machine.shared {
                    true => source.shared("Shared"),
                    false => source.dynamic_shared("Shared", shared),
                }
                source.shared_launch = SharedLaunch::Few;
                self.block(&mut source, shape, [&a, &b]);
            }
        }
        match (parts, self.rows()) {
            (1, Some(kernel)) => each_row(&mut source, kernel, threads),
            (1, None) => {
                let width = self.width(&self.store);
                self.each_element(&mut source, shape, width);
                self.store.print(&mut source, &call, width);
            }
            _ => {
                let sums = Store::Plain(PARTS, shape.acc);
                let width = self.width(&sums);
                self.each_element(&mut source, shape, width);
                let total = source.dim(&self.total);
                source.line(format!("at += split * {total};"));
                sums.print(&mut source, &call, width);
            }
        }
        source.line("}");
        if shape.schedule.multiply == Multiply::Wgmma {
            source.line("}");
            source.line("}");
            let grid = line_of_blocks(Dim::Const(self.persistent(&shape.schedule)), 1);
            return call.step(source.finish(grid, [threads, 1, 1]));
        }
        let tiles = |d: &Dim, each: i64| match d.as_const() {
            Some(n) => Dim::Const(ceil(n, each) * each),
            None => d + &Dim::Const(each - 1),
        };
        let [m, n, _] = tile.map(i64::from);
        let points = &tiles(&self.m, m) * &tiles(&self.n, n);
        let points = &(&points * &self.batches) * &Dim::Const(parts.into());
        let grid = line_of_blocks(points, (m * n) as u32);
        call.step(source.finish(grid, [threads, 1, 1]))
    }

    /// Returns the text before the kernel that multiplies.
    fn scope(&self, shape: &Shape, a: &Operand, b: &Operand) -> String {
        let mut text = self.types(shape);
        text += &tile_constants(&shape.schedule, self.dtype, [a, b]);
        text += include_str!("gemm_operands.cu");
        if self.operands.iter().any(|(_, prologue)| prologue.is_some()) {
            text += prologue::CLASS;
        }
        if self.sums_inside() {
            let loaded = CudaCpp::loaded("x", self.dtype);
            text +=
                &format!("__device__ __forceinline__ Acc load(Elem x) {{ return {loaded}; }}\n");
            text += include_str!("gemm_inside.cu");
        }
        text + tile_text(shape.schedule.multiply)
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
    fn declare_sizes(&self, source: &mut Source) {
        let sizes = [
            ("m", &self.m),
            ("n", &self.n),
            ("k", &self.k),
            ("batches", &self.batches),
        ];
        for (name, dim) in sizes {
            let value = source.dim(dim);
            source.line(format!("const Index {name} = {value};"));
        }
        let text = "\
if (m <= 0 || n <= 0 || batches <= 0) return;
const Index rows = (m + BM - 1) / BM, columns = (n + BN - 1) / BN;";
        lines(source, text);
    }

    /// Returns declarations of the place of the tile with a number: its first row and column, its batch and its part of
    /// the sums.
    fn place(&self, shape: &Shape, number: &str) -> String {
        let place = match shape.schedule.raster {
            1 => "const Index i0 = tile / columns * BM, j0 = tile % columns * BN;".into(),
            raster => format!(
                "\
const Index above = tile / (columns * {raster}) * {raster}, left = tile % (columns * {raster});
const Index high = rows - above < {raster} ? rows - above : {raster};
const Index i0 = (above + left % high) * BM, j0 = left / high * BN;"
            ),
        };
        format!(
            "\
const Index tile = {number} % (rows * columns), product = {number} / (rows * columns);
{place}
const Index batch = product % batches, split = product / batches;"
        )
    }

    /// Returns declarations of the first term of a tile's part of the sums, and of the end of these.
    fn terms(&self, shape: &Shape) -> String {
        let chunk = shape.chunk;
        let end = match shape.schedule.parts {
            1 => "k".into(),
            _ => format!("k < first + {chunk} ? k : first + {chunk}"),
        };
        format!("const Index first = split * {chunk}, end = {end};")
    }

    /// Emits a block's work, up to where its tile lies in shared memory.
    fn block(&self, source: &mut Source, shape: &Shape, operands: [&Operand; 2]) {
        self.declare_sizes(source);
        let text = format!(
            "\
{}
if (split >= {}) return;
{}{}{}
multiply(shared, a, b, i0, j0, first, end);",
            self.place(shape, "blockIdx.x"),
            shape.schedule.parts,
            operands[0].text,
            operands[1].text,
            self.terms(shape)
        );
        lines(source, &text);
    }

    /// Emits the work of a block of warpgroups, which takes one tile after the other, up to where a tile's sums are in
    /// registers.
    fn warpgroups(&self, source: &mut Source, call: &Call, shape: &Shape, boxed: &[Boxed; 2]) {
        self.declare_sizes(source);
        let [m, n, _] = shape.schedule.tile;
        let copies: Vec<String> = [(0, m), (1, n)]
            .into_iter()
            .map(|(side, lines)| {
                let slot = self.operands[side].0;
                box_copy(
                    source,
                    call,
                    &self.contraction,
                    (side, lines),
                    slot,
                    &boxed[side],
                )
            })
            .collect();
        let (place, terms) = (self.place(shape, "turn"), self.terms(shape));
        let each = "for (Index turn = blockIdx.x; turn < tiles; turn += gridDim.x) {";
        let text = format!(
            "\
const Index tiles = rows * columns * batches * {};
begin(shared);
Ring ring;
if (threadIdx.x < 128) {{
asm volatile(\"setmaxnreg.dec.sync.aligned.u32 24;\");
if (threadIdx.x > 0) return;
#pragma unroll 1
{each}
{place}
{}{terms}
#pragma unroll 1
for (Index k0 = first; k0 < end; k0 += BK) copy_stage(shared, ring, copy_a, copy_b, (int)i0, (int)j0, (int)k0);
}}
return;
}}
asm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\");
const int warp = threadIdx.x / 32 - 4;
#pragma unroll 1
{each}
{place}
{terms}
float sums[SUMS];
multiply(shared, ring, sums, first, end);",
            shape.schedule.parts,
            copies.concat()
        );
        lines(source, &text);
    }

    /// Returns the number of blocks that take all tiles, one after the other.
    fn persistent(&self, schedule: &Gpu) -> i64 {
        let processors = i64::from(self.work.gpu.processors.max(1));
        let known = [&self.m, &self.n, &self.batches].map(Dim::as_const);
        let [Some(m), Some(n), Some(batches)] = known else {
            return processors;
        };
        let [rows, columns, _] = schedule.tile.map(i64::from);
        let tiles = ceil(m, rows).saturating_mul(ceil(n, columns));
        let tiles = tiles
            .saturating_mul(batches)
            .saturating_mul(schedule.parts.into());
        tiles.clamp(0, processors)
    }

    /// Opens a loop in which `width` elements of the result, the first of which is `raw`, go to `at` and the places
    /// after it.
    fn each_element(&self, source: &mut Source, shape: &Shape, width: u32) {
        let by_warpgroups = shape.schedule.multiply == Multiply::Wgmma;
        let raw = match (by_warpgroups, width) {
            (true, 1) => "Acc raw = *passage.place(e / COLUMNS, e % COLUMNS);".into(),
            (true, _) => {
                format!("const auto raw = passage.load<{width}>(e / COLUMNS, e % COLUMNS);")
            }
            (false, 1) => "Acc raw = shared.out[e / BN][e % BN];".into(),
            (false, _) => {
                format!("const auto raw = kiln_load<{width}>(&shared.out[e / BN][e % BN]);")
            }
        };
        let each = match by_warpgroups {
            true => format!(
                "\
Passage& passage = shared.passages[warp];
#pragma unroll 1 // the text below may be long
for (int part = 0; part < SUMS / 32; part++) {{
pass(passage, sums);
const Index i1 = i0 + warp / 4 * WM + part / (BN / COLUMNS) * 64 + warp % 4 * 16, j1 = j0 + part % (BN / COLUMNS) * COLUMNS;
#pragma unroll 1
for (int e = threadIdx.x % 32 * {width}; e < 16 * COLUMNS; e += 32 * {width}) {{
const Index i = i1 + e / COLUMNS, j = j1 + e % COLUMNS;"
            ),
            false => format!(
                "\
#pragma unroll 1 // the text below may be long
for (int e = threadIdx.x * {width}; e < BM * BN; e += THREADS * {width}) {{
const Index i = i0 + e / BN, j = j0 + e % BN;"
            ),
        };
        let text = format!(
            "\
{each}
if (i >= m || j >= n) continue;
{}
{raw}{}",
            result(source, &self.contraction),
            match self.sums_inside() {
                true => "\nif (raw != raw) raw = sum_inside(a, b, i, j, first, end);",
                false => "",
            }
        );
        lines(source, &text);
    }

    /// True if elements that come out NaN are summed again, without the terms that lie outside.
    fn sums_inside(&self) -> bool {
        self.contraction.skips && self.contraction.is_bounded()
    }

    /// Returns the number of elements that are stored as one vector.
    fn width(&self, store: &Store) -> u32 {
        match run(&self.contraction) {
            Some(run) if !self.sums_inside() => store.width(&run),
            _ => 1,
        }
    }

    /// Emits the kernel that adds the parts of sums and stores the result.
    fn sum(&self, shape: &Shape) -> KernelCall {
        let mut call = Call::new(self.work);
        self.store.push(&mut call);
        call.push(PARTS, shape.acc, false);
        let mut source = call.source(self.name, shape.index);
        source.scope(&self.types(shape));
        let (parts, total) = (call.pointer(PARTS), source.dim(&self.total));
        let text = format!(
            "\
const Index at = (Index)blockIdx.x * 256 + threadIdx.x;
if (at >= {total}) return;
Acc raw = {parts}[at];
for (int split = 1; split < {}; split++) raw += {parts}[split * {total} + at];",
            shape.schedule.parts
        );
        lines(&mut source, &text);
        self.store.print(&mut source, &call, 1);
        let grid = line_of_blocks(self.total.clone(), 256);
        call.step(source.finish(grid, [256, 1, 1]))
    }

    /// Returns the type of indices: 32 bits where everything is known to be small.
    fn index(&self, total: &Dim) -> Index {
        let epilogue = match self.store {
            Store::Epilogue(kir) => Values::index_type(kir),
            Store::Plain { .. } => Index::Int,
        };
        let lens = self.contraction.operands.iter().map(|x| &x.len);
        let few = lens.chain([total, &self.k, &self.m, &self.n]).all(few);
        let mut prologue = self.work.prologues().into_iter().flatten();
        match few && prologue.all(|k| Values::index_type(k) == Index::Int) {
            true => epilogue,
            false => Index::Long,
        }
    }

    /// Returns the length of the rows that a block has to hold.
    fn columns(&self) -> Option<i64> {
        self.rows().and_then(|_| self.n.as_const())
    }

    /// Returns the instructions that represent the operands exactly.
    fn exact(&self) -> Vec<Multiply> {
        let plain = Multiply::exact(self.dtype);
        let warpgroups = self.boxed.as_ref().filter(|_| self.rows().is_none());
        [plain]
            .into_iter()
            .chain(warpgroups.map(|_| Multiply::Wgmma))
            .collect()
    }

    /// Returns the instructions that round operands. Where sums are short, or rows or columns few, tensor cores gain
    /// nothing. Only for long sums is the error bound of the split numbers near that of a plain sum.
    fn rounded(&self) -> Vec<Multiply> {
        let above = |d: &Dim, n: i64| d.as_const().is_none_or(|size| size > n);
        let matrices = above(&self.m, FEW) && above(&self.n, FEW);
        let mut all = Vec::new();
        if self.dtype == DType::F32 && matrices && above(&self.k, SHORT) {
            all.push(Multiply::Tf32);
            all.extend(self.k.as_const().map(|_| Multiply::Tf32x3));
        }
        all
    }

    /// Returns the legal schedules of some instructions, fewest cycles first; one at least.
    fn candidates(&self, multiply: &[Multiply]) -> Vec<Gpu> {
        let [m, n, k] = self.sizes();
        let bytes = (m + n)
            .saturating_mul(k)
            .saturating_mul(self.dtype.size() as i64);
        let of = |m: &Multiply| schedules(*m, self.k.as_const(), bytes > LARGE);
        let all = multiply.iter().flat_map(of);
        let all = all.flat_map(|s| self.with_parts(s));
        let mut all: Vec<Gpu> = all.filter(|s| self.allows(s)).collect();
        all.sort_by(|a, b| self.cycles(a).total_cmp(&self.cycles(b)));
        all.truncate(CANDIDATES);
        if let Some(best) = all.first().copied() {
            let most = HOPELESS * self.cycles(&best);
            all.retain(|s| self.cycles(s) <= most);
            // Of the best one: fewer stages, so that more blocks are resident; another order of tiles.
            let fewer = Gpu {
                stages: best.stages.saturating_sub(1).max(1),
                ..best
            };
            let other = Gpu {
                raster: if best.raster == 1 { 4 } else { 1 },
                ..best
            };
            let more = [fewer, other].into_iter();
            all.extend(more.filter(|s| *s != best && self.allows(s)));
        }
        match all.is_empty() {
            true => vec![self.smallest()],
            false => all,
        }
    }

    /// Returns a schedule that is legal on every machine.
    fn smallest(&self) -> Gpu {
        let multiply = Multiply::exact(self.dtype);
        let columns = self.columns().unwrap_or(0);
        let all = schedules(multiply, self.k.as_const(), false).into_iter();
        let fits = all.filter(|s| i64::from(s.tile[1]) >= columns);
        let least = fits.min_by_key(|s| (s.shared(self.dtype), s.registers(self.dtype)));
        least.expect("rows that a block holds fit into a tile")
    }

    /// Returns the schedule, and also variants with sums in parts, where whole sums leave multiprocessors without a
    /// block.
    fn with_parts(&self, schedule: Gpu) -> Vec<Gpu> {
        let mut all = vec![schedule];
        let known = [&self.m, &self.n, &self.k, &self.batches].map(Dim::as_const);
        let [Some(m), Some(n), Some(k), Some(batches)] = known else {
            return all;
        };
        let [rows, columns, _] = schedule.tile.map(i64::from);
        let blocks = ceil(m, rows)
            .saturating_mul(ceil(n, columns))
            .saturating_mul(batches);
        if blocks <= 0 || self.rows().is_some() {
            return all;
        }
        let resident = i64::from(schedule.resident(self.work.gpu, self.dtype));
        let most = (2 * resident.min(4) * self.work.gpu.busy() / blocks).min(k / LEAST_SHARE);
        for parts in (1..=most.max(1).ilog2()).map(|p| 1u16 << p.min(8)) {
            let mut cut = Gpu { parts, ..schedule };
            cut.parts = ceil(k, self.chunk(&cut)) as u16;
            if !all.contains(&cut) {
                all.push(cut);
            }
        }
        all
    }

    /// True if a schedule is legal, and threads have enough registers to find and hold elements.
    fn allows(&self, schedule: &Gpu) -> bool {
        let ([m, n, depth], [rows, columns]) = (schedule.tile, schedule.warp);
        let holds = self.columns().is_none_or(|columns| columns <= n.into());
        let fits = match schedule.multiply {
            Multiply::Fma => {
                let few = self.dtype.size() == 8 || self.costly;
                let loads = u32::from(m.max(n)) * u32::from(depth) / schedule.threads().max(1);
                (!few || rows * columns <= 16) && (!self.costly || loads <= 4)
            }
            Multiply::Wgmma => true,
            _ => !self.costly || rows * columns / 32 <= FEW_SUMS,
        };
        fits && holds && schedule.check(self.work.gpu, self.dtype).is_ok()
    }

    /// Returns the rows, columns and terms; unknown sizes are guessed.
    fn sizes(&self) -> [i64; 3] {
        [&self.m, &self.n, &self.k].map(|d| d.as_const().unwrap_or(UNKNOWN))
    }

    /// True if a schedule from outside is legal.
    fn is_legal(&self, schedule: &Gpu) -> bool {
        let multiplies = self.exact().contains(&schedule.multiply)
            || self.rounded().contains(&schedule.multiply);
        let cuts = schedule.parts == 1 || self.k.as_const().is_some() && self.rows().is_none();
        multiplies && cuts && self.allows(schedule)
    }

    fn cycles(&self, schedule: &Gpu) -> f64 {
        let work = ContractionSizes {
            dtype: self.dtype,
            batches: self.batches.as_const().unwrap_or(1),
            sizes: self.sizes(),
            finding: self.finding,
        };
        schedule.cycles(self.work.gpu, &work)
    }

    /// Returns the cycles of a schedule, if sizes are known.
    fn predicted(&self, schedule: &Gpu) -> Option<f64> {
        let all = [&self.m, &self.n, &self.k, &self.batches];
        let known = all.into_iter().all(|d| d.as_const().is_some());
        known.then(|| self.cycles(schedule))
    }
}

/// Opens a loop in which some threads have row number `row` of the result, and emits its epilogue.
fn each_row(source: &mut Source, kernel: &kir::Kernel, threads: u32) {
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
    rows::emit_epilogue(kernel, &shape, "shared.out[line][i]", source);
}
