//! What matrix products and convolutions share: a block computes a tile of the result, whose elements
//! then pass through the epilogue. Where the result has few tiles and the sums are long, blocks share a
//! sum, and a second kernel adds their parts in order.

use super::call::{Call, Store, few, line_of_blocks, lines};
use super::gemm_tile::{Arithmetic, Tile, tile_constants, tile_text};
use crate::cuda::job::Job;
use crate::cuda::source::{Index, Source, memory};
use crate::cuda::values::Values;
use crate::cuda::{rows, rows_shape};
use crate::kir;
use crate::schedule::Schedule;
use crate::work::{Printed, Slot, Step, Way};
use kiln_base::{DType, Dim};
use kiln_plan::cuda::Beside;

/// `batches` products of m × k and k × n.
pub(super) struct Gemm<'a> {
    pub work: Job<'a>,
    pub name: &'a str,
    pub dtype: DType,
    pub batches: Dim,
    pub m: Dim,
    pub n: Dim,
    pub k: Dim,
    /// Elements of the result.
    pub total: Dim,
    /// How far the operands' elements reach, for the choice of the index type.
    pub reach: Vec<Dim>,
    /// Declares `at`, the place in the result of row `i` and column `j` of product `batch`, whose sum is
    /// `raw`.
    pub at: String,
    pub store: Store<'a>,
    /// What is multiplied, or what that is made of.
    pub reads: Vec<(Slot, DType)>,
    /// Classes of operands beside `Strided`.
    pub operands: String,
    /// Whether an element takes many instructions to find; threads then load few each.
    pub costly: bool,
}

/// An operand's C++: a class that gives lines, how it is made in the kernel, and how it is best read.
pub(super) struct Operand {
    /// Declarations and, last, the operand's object, named `a` or `b`. They may lower `k`.
    pub text: String,
    /// Whether neighbours along k lie side by side, and not neighbouring lines.
    pub along_k: bool,
    /// Whether eight neighbours lie side by side at an aligned address.
    pub vector: bool,
}

/// Where blocks that share a sum leave their parts.
const PARTS: Slot = Slot::Scratch(0);
/// The fewest products that are worth a block of their own.
const SHARE: i64 = 512;
/// The fewest products that may be a block's.
const LEAST_SHARE: i64 = 128;
/// The fewest rows or columns of a large result.
const MANY: i64 = 32;
/// Products that take as long as passing an element through memory.
pub(super) const PASS: f64 = 32.0;

/// The most rows or columns that tensor cores gain nothing by.
const FEW: i64 = 8;
/// The most products in a sum that is not worth rounding its operands for.
const SHORT: i64 = 31;

/// What multiplies, a tile, into how many parts sums are cut, and the length of one.
#[derive(Copy, Clone, Debug)]
struct Cut {
    arithmetic: Arithmetic,
    tile: Tile,
    splits: i64,
    chunk: i64,
}

/// How a product is cut into blocks.
struct Shape {
    cut: Cut,
    index: Index,
    /// What sums are carried in.
    acc: DType,
}

impl Gemm<'_> {
    /// The default, and with `all` every other way, given what prints the operands into the first kernel.
    pub fn print(
        self,
        all: bool,
        operands: impl Fn(&mut Source, &Call) -> [Operand; 2],
    ) -> Vec<Way> {
        let mut cuts = vec![self.default_cut()];
        // Candidates are measured within a bound of rounding, which whole numbers don't have.
        let all = all && self.dtype.is_float();
        for cut in if all { self.cuts() } else { Vec::new() } {
            let same = |c: &Cut| c.arithmetic == cut.arithmetic && c.schedule() == cut.schedule();
            if !cuts.iter().any(same) {
                cuts.push(cut);
            }
        }
        let way = |cut: &Cut| Way {
            schedule: cut.schedule(),
            approximation: cut.arithmetic.approximation(),
            predicted: self.predicted(cut),
            printed: self.kernels(cut, &operands),
        };
        cuts.iter().map(way).collect()
    }

    /// The kernels of a way.
    fn kernels(
        &self,
        cut: &Cut,
        operands: &impl Fn(&mut Source, &Call) -> [Operand; 2],
    ) -> Printed {
        let (splits, shape) = (cut.splits, self.shape(cut));
        let mut steps = vec![self.product(&shape, operands)];
        let mut scratch = Vec::new();
        if splits > 1 {
            steps.push(self.sum(&shape));
            scratch.push((shape.acc, vec![Dim::Const(splits), self.total.clone()]));
        }
        Printed {
            steps,
            scratch,
            in_place: match self.rows() {
                Some(kernel) => {
                    let shape = rows_shape::Shape::of_block(kernel, shape.cut.tile.threads);
                    rows::may_share(kernel, &self.work.in_place, &shape)
                }
                None => self.work.in_place.clone(),
            },
        }
    }

    /// The epilogue, if it works on whole rows of the result.
    fn rows(&self) -> Option<&kir::Kernel> {
        match &self.store {
            Store::Epilogue(kir) => Some(*kir).filter(|kir| !kir.inner.is_empty()),
            Store::Plain(..) => None,
        }
    }

    /// The kernel of the default tile, with whole sums, and its time by the model.
    pub fn whole(
        &self,
        operands: impl Fn(&mut Source, &Call) -> [Operand; 2],
    ) -> (Step, Option<f64>) {
        let cut = self.cut(Arithmetic::of(self.dtype), self.tile(), 1);
        let step = self.product(&self.shape(&cut), &operands);
        (step, self.predicted(&cut))
    }

    fn shape(&self, cut: &Cut) -> Shape {
        Shape {
            cut: *cut,
            index: self.index(&(&self.total * &Dim::Const(cut.splits))),
            acc: match self.dtype {
                DType::F16 | DType::BF16 => DType::F32,
                dtype => dtype,
            },
        }
    }

    /// The kernel that multiplies. It stores the result, or parts of its sums.
    fn product(
        &self,
        shape: &Shape,
        operands: &impl Fn(&mut Source, &Call) -> [Operand; 2],
    ) -> Step {
        let Cut { tile, splits, .. } = shape.cut;
        let mut call = Call::new(self.work);
        let name = match splits {
            1 => {
                self.store.push(&mut call);
                self.name.to_string()
            }
            _ => {
                call.push(PARTS, shape.acc, true);
                format!("{}_parts", self.name)
            }
        };
        for (slot, dtype) in &self.reads {
            call.push(*slot, *dtype, false);
        }
        let mut source = call.source(&name, shape.index);
        let [a, b] = operands(&mut source, &call);
        source.scope(&self.scope(shape, &a, &b));
        source.shared("Shared");
        source.beside = Beside::Few;
        self.block(&mut source, shape, [&a, &b]);
        match (splits, self.rows()) {
            (1, Some(kernel)) => each_row(&mut source, kernel, tile.threads),
            (1, None) => {
                self.each_element(&mut source);
                self.store.print(&mut source, &call);
            }
            _ => {
                self.each_element(&mut source);
                let (parts, total) = (call.pointer(PARTS), source.dim(&self.total));
                source.line(format!("{parts}[split * {total} + at] = raw;"));
            }
        }
        source.line("}");
        let tiles = |d: &Dim, each: i64| match d.as_const() {
            Some(n) => Dim::Const((n + each - 1) / each * each),
            None => d + &Dim::Const(each - 1),
        };
        let points = &tiles(&self.m, tile.m) * &tiles(&self.n, tile.n);
        let points = &(&points * &self.batches) * &Dim::Const(splits);
        let grid = line_of_blocks(points, (tile.m * tile.n) as u32);
        call.step(source.finish(grid, [tile.threads, 1, 1], 0))
    }

    /// What stands in front of the kernel that multiplies.
    fn scope(&self, shape: &Shape, a: &Operand, b: &Operand) -> String {
        let Cut {
            arithmetic, tile, ..
        } = shape.cut;
        let mut text = self.types(shape);
        text += &tile_constants([tile.m, tile.n], tile.part, self.dtype, arithmetic, [a, b]);
        text += include_str!("gemm_operands.cu");
        text += &self.operands;
        text + tile_text(arithmetic)
    }

    fn types(&self, shape: &Shape) -> String {
        format!(
            "typedef {} Elem;\ntypedef {} Acc;\ntypedef {} Index;\n",
            memory(self.dtype),
            memory(shape.acc),
            shape.index.name()
        )
    }

    /// A block's work, up to where its tile lies in shared memory.
    fn block(&self, source: &mut Source, shape: &Shape, operands: [&Operand; 2]) {
        let sizes = [
            ("m", &self.m),
            ("n", &self.n),
            ("k", &self.k),
            ("batches", &self.batches),
        ];
        for (name, dim) in sizes {
            let value = source.dim(dim);
            let fixed = if name == "k" { "" } else { "const " };
            source.line(format!("{fixed}Index {name} = {value};"));
        }
        let Cut { splits, chunk, .. } = shape.cut;
        let end = match splits {
            1 => "k".into(),
            _ => format!("k < first + {chunk} ? k : first + {chunk}"),
        };
        let text = format!(
            "\
if (m <= 0 || n <= 0 || batches <= 0) return;
const Index rows = (m + BM - 1) / BM, columns = (n + BN - 1) / BN;
Index tile = blockIdx.x;
const Index j0 = tile % columns * BN;
tile /= columns;
const Index i0 = tile % rows * BM;
tile /= rows;
const Index batch = tile % batches, split = tile / batches;
if (split >= {splits}) return;
{}{}const Index first = split * {chunk}, end = {end};
multiply(shared, a, b, i0, j0, first, end);",
            operands[0].text, operands[1].text
        );
        lines(source, &text);
    }

    /// Opens a loop in which element `raw` of the result goes to `at`.
    fn each_element(&self, source: &mut Source) {
        let text = format!(
            "\
#pragma unroll 1 // the text below may be long
for (int e = threadIdx.x; e < BM * BN; e += THREADS) {{
const Index i = i0 + e / BN, j = j0 + e % BN;
if (i >= m || j >= n) continue;
Acc raw = shared.out[e / BN][e % BN];
{}",
            self.at
        );
        lines(source, &text);
    }

    /// The kernel that adds the parts of sums and stores the result.
    fn sum(&self, shape: &Shape) -> Step {
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
            shape.cut.splits
        );
        lines(&mut source, &text);
        self.store.print(&mut source, &call);
        let grid = line_of_blocks(self.total.clone(), 256);
        call.step(source.finish(grid, [256, 1, 1], 0))
    }

    /// The type of indices: 32 bits where everything is known to be small.
    fn index(&self, total: &Dim) -> Index {
        let epilogue = match self.store {
            Store::Epilogue(kir) => Values::index_type(kir),
            Store::Plain { .. } => Index::Int,
        };
        let few = self.reach.iter().chain([total, &self.k]).all(few);
        let mut made = self.work.made().into_iter().flatten();
        match few && made.all(|k| Values::index_type(k) == Index::Int) {
            true => epilogue,
            false => Index::Long,
        }
    }

    /// The largest tile of which the result has enough to keep a GPU busy, without much beside it.
    fn tile(&self) -> Tile {
        let arithmetic = Arithmetic::of(self.dtype);
        let tiles = match self.columns() {
            Some(columns) => arithmetic.tiles_of_rows(columns),
            None => arithmetic.tiles().0.to_vec(),
        };
        let tiles = match self.dtype.size() == 8 || self.costly {
            true => &tiles[1..],
            false => &tiles[..],
        };
        let busy = self.busy();
        let (m, n) = (
            self.m.as_const().unwrap_or(busy),
            self.n.as_const().unwrap_or(busy),
        );
        let batches = self.batches.as_const().unwrap_or(1);
        let fits = |t: &&Tile| {
            let blocks = |extent: i64, each: i64| (extent + each - 1) / each;
            let blocks = blocks(m, t.m)
                .saturating_mul(blocks(n, t.n))
                .saturating_mul(batches);
            let computed = blocks.saturating_mul(t.m * t.n);
            blocks >= busy && computed / 2 <= m.saturating_mul(n).saturating_mul(batches)
        };
        *tiles.iter().find(fits).unwrap_or(&tiles[tiles.len() - 1])
    }

    /// Blocks that keep the GPU busy.
    fn busy(&self) -> i64 {
        self.work.gpu.busy()
    }

    /// The length of the rows that a block has to hold.
    fn columns(&self) -> Option<i64> {
        self.rows().and_then(|_| self.n.as_const())
    }

    /// Blocks without a cut along sums, where all sizes are known, and the length of sums.
    fn blocks(&self, tile: &Tile) -> Option<(i64, i64)> {
        let sizes = [&self.m, &self.n, &self.batches, &self.k].map(Dim::as_const);
        let [Some(m), Some(n), Some(batches), Some(k)] = sizes else {
            return None;
        };
        let of = |extent: i64, each: i64| (extent + each - 1) / each;
        let blocks = of(m, tile.m).saturating_mul(of(n, tile.n));
        Some((blocks.saturating_mul(batches), k))
    }

    fn default_cut(&self) -> Cut {
        let (arithmetic, tile, busy) = (Arithmetic::of(self.dtype), self.tile(), self.busy());
        match self.blocks(&tile) {
            _ if self.rows().is_some() => self.cut(arithmetic, tile, 1),
            Some((blocks, k)) if (1..busy / 2).contains(&blocks) && k >= 2 * SHARE => {
                self.cut(arithmetic, tile, (busy / blocks).min(k / SHARE))
            }
            _ => self.cut(arithmetic, tile, 1),
        }
    }

    /// Cuts sums into about `splits` parts.
    fn cut(&self, arithmetic: Arithmetic, tile: Tile, splits: i64) -> Cut {
        let (depth, k) = (arithmetic.depth(), self.k.as_const());
        let (splits, chunk) = k.filter(|_| splits > 1).map_or((1, 0), |k| {
            let chunk = ((k + splits - 1) / splits + depth - 1) / depth * depth;
            ((k + chunk - 1) / chunk, chunk)
        });
        Cut {
            arithmetic,
            tile,
            splits,
            chunk,
        }
    }

    /// What may multiply: where sums are short, or rows or columns few, tensor cores gain nothing, and only of long
    /// sums is the bound of the split numbers' error near that of a plain sum.
    fn arithmetics(&self) -> Vec<Arithmetic> {
        let mut all = vec![Arithmetic::of(self.dtype)];
        let above = |d: &Dim, n: i64| d.as_const().is_none_or(|size| size > n);
        let matrices = above(&self.m, FEW) && above(&self.n, FEW);
        if self.dtype == DType::F32 && matrices && above(&self.k, SHORT) {
            all.push(Arithmetic::Tf32);
            all.extend(self.k.as_const().map(|_| Arithmetic::Tf32x3));
        }
        all
    }

    /// All ways to cut: tiles that do not compute much beside the result, each without a cut along the sums and
    /// with some that give a GPU enough to do.
    fn cuts(&self) -> Vec<Cut> {
        let arithmetics = self.arithmetics().into_iter();
        arithmetics.flat_map(|a| self.cuts_by(a)).collect()
    }

    fn cuts_by(&self, arithmetic: Arithmetic) -> Vec<Cut> {
        let mut cuts = Vec::new();
        for tile in self.tiles(arithmetic) {
            cuts.push(self.cut(arithmetic, tile, 1));
            if self.rows().is_some() {
                continue;
            }
            let known = self.blocks(&tile).filter(|(blocks, _)| *blocks > 0);
            let Some((blocks, k)) = known else { continue };
            let most = 2 * self.busy() * 256 / i64::from(tile.threads);
            let most = (most / blocks).min(k / LEAST_SHARE);
            let powers = (1..=most.max(1).ilog2()).map(|p| 1i64 << p);
            let enough = powers.filter(|p| p * blocks >= self.busy() / 2 || 2 * p > most);
            cuts.extend(enough.map(|p| self.cut(arithmetic, tile, p)));
        }
        cuts
    }

    /// The tiles that fit the result and what is multiplied.
    fn tiles(&self, arithmetic: Arithmetic) -> Vec<Tile> {
        let (tiles, more) = arithmetic.tiles();
        let few = |d: &Dim| d.as_const().is_some_and(|n| n <= MANY);
        let more = match (few(&self.m), few(&self.n)) {
            (false, false) => more[0],
            (true, _) => more[1],
            (false, true) => more[2],
        };
        let near = |extent: &Dim, each: i64| {
            each <= MANY || extent.as_const().is_none_or(|n| each < 2 * n)
        };
        let mut all: Vec<Tile> = tiles.iter().chain(more).copied().collect();
        if let Some(columns) = self.columns() {
            all = arithmetic.tiles_of_rows(columns);
        }
        let fits =
            |t: &Tile| near(&self.m, t.m) && near(&self.n, t.n) && self.allows(arithmetic, t);
        all.into_iter().filter(fits).collect()
    }

    /// Whether threads have the registers for their parts of a tile and what they load for it.
    fn allows(&self, arithmetic: Arithmetic, tile: &Tile) -> bool {
        let longer = tile.m.max(tile.n);
        if arithmetic != Arithmetic::Fma {
            return !self.costly || longer <= 64;
        }
        let (sums, loads) = (
            tile.part[0] * tile.part[1],
            longer * arithmetic.depth() / i64::from(tile.threads),
        );
        let few_sums = self.dtype.size() == 8 || self.costly;
        (!few_sums || sums <= 16) && (!self.costly || loads <= 4)
    }

    /// The time of a way in products of one multiprocessor, where sizes are known: how often the device is filled
    /// with blocks, and the parts that pass through memory.
    fn predicted(&self, cut: &Cut) -> Option<f64> {
        let (blocks, k) = self.blocks(&cut.tile)?;
        let (chunk, passed) = match cut.splits {
            1 => (k, 1),
            splits => (cut.chunk, splits + 1),
        };
        let busy = self.busy() as f64;
        let rounds = (blocks as f64 * cut.splits as f64 / busy).ceil();
        let products = rounds * (chunk * cut.tile.m * cut.tile.n) as f64;
        let elements = self.total.as_const()? as f64 * passed as f64;
        Some(products + PASS * elements / busy)
    }
}

/// Opens a loop in which some threads have row number `row` of the result, and prints what they do with it.
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
    rows::behind(kernel, &shape, "shared.out[line][i]", source);
}

impl Cut {
    fn schedule(&self) -> Schedule {
        let Tile { m, n, threads, .. } = self.tile;
        Schedule::Tiles {
            tile: [m, n],
            threads,
            parts: self.splits,
        }
    }
}
