//! What matrix products and convolutions share: a block computes a tile of the result, whose elements
//! then pass through the epilogue. Where the result has few tiles and the sums are long, blocks share a
//! sum, and a second kernel adds their parts in order.

use super::{Call, Store, line_of_blocks};
use crate::cuda::source::{Index, SHARED, Source, memory};
use crate::cuda::values::Values;
use crate::cuda::{Printed, Slot, Step, Way};
use crate::program::Launch;
use kiln_base::cuda::CudaKernel;
use kiln_base::{DType, Dim};
use std::fmt::Write;

/// `batches` products of m × k and k × n.
pub(super) struct Gemm<'a> {
    pub launch: &'a Launch,
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
    /// The launch's arguments that are multiplied.
    pub reads: [u16; 2],
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

/// Extents of a block's tile, of the part of a thread (or of a warp of tensor cores), and threads.
#[derive(Copy, Clone, Debug, PartialEq)]
struct Tile {
    m: i64,
    n: i64,
    part: [i64; 2],
    threads: u32,
}

/// The tiles that the default is chosen from, largest first.
const FMA: [Tile; 3] = [
    tile(64, 64, [8, 4], 128),
    tile(64, 64, [4, 4], 256),
    tile(32, 32, [4, 4], 64),
];
const MMA: [Tile; 3] = [
    tile(128, 64, [32, 32], 256),
    tile(64, 64, [32, 32], 128),
    tile(32, 32, [16, 16], 128),
];
/// Further ones: for large results, for few rows, for few columns.
const MORE_FMA: [&[Tile]; 3] = [
    &[tile(128, 64, [8, 4], 256)],
    &[
        tile(8, 64, [2, 4], 64),
        tile(16, 64, [4, 4], 64),
        tile(32, 64, [4, 4], 128),
    ],
    &[
        tile(64, 8, [4, 2], 64),
        tile(64, 16, [4, 4], 64),
        tile(64, 32, [4, 4], 128),
    ],
];
const MORE_MMA: [&[Tile]; 3] = [
    &[tile(64, 128, [32, 32], 256)],
    &[tile(16, 64, [16, 32], 64), tile(32, 128, [32, 32], 128)],
    &[tile(64, 16, [32, 16], 64), tile(128, 32, [32, 32], 128)],
];

const fn tile(m: i64, n: i64, part: [i64; 2], threads: u32) -> Tile {
    Tile {
        m,
        n,
        part,
        threads,
    }
}

/// Where blocks that share a sum leave their parts.
const PARTS: Slot = Slot::Scratch(0);
/// Blocks that keep a GPU busy.
const BUSY: i64 = 128;
/// The fewest products that are worth a block of their own.
const SHARE: i64 = 512;
/// The fewest products that may be a block's.
const LEAST_SHARE: i64 = 128;
/// The fewest rows or columns of a large result.
const MANY: i64 = 32;
/// Products that take as long as passing an element through memory.
const PASS: f64 = 32.0;

/// How a kernel calls [`tile_text`].
const MULTIPLY: &str = "multiply(shared, a, b, i0, j0, first, end);";

/// Whether a kernel is a block's product and not what follows it.
pub(in crate::cuda) fn multiplies(kernel: &CudaKernel) -> bool {
    kernel.source.contains(MULTIPLY)
}

/// Whether tensor cores multiply.
pub(super) fn half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// How many products pass through shared memory at a time.
fn depth(dtype: DType) -> i64 {
    if half(dtype) { 32 } else { 8 }
}

/// The constants in front of [`tile_text`]: a block's tile, the part of a thread (or warp), and how the two
/// operands are best read.
pub(super) fn tile_constants(
    [m, n]: [i64; 2],
    part: [i64; 2],
    dtype: DType,
    [a, b]: [&Operand; 2],
) -> String {
    let letter = if half(dtype) { 'W' } else { 'T' };
    let mut text = format!(
        "constexpr int BM = {m}, BN = {n}, BK = {};\n\
         constexpr int {letter}M = {}, {letter}N = {};\n\
         constexpr bool A_ALONG_K = {}, B_ALONG_K = {};\n",
        depth(dtype),
        part[0],
        part[1],
        a.along_k,
        b.along_k
    );
    if half(dtype) {
        let _ = write!(
            text,
            "constexpr bool A_VECTOR = {}, B_VECTOR = {};\n#define MMA_TYPE \"{dtype}\"\n",
            a.vector, b.vector
        );
    }
    text
}

/// The product of a block's tile.
pub(super) fn tile_text(dtype: DType) -> &'static str {
    match half(dtype) {
        true => concat!(include_str!("gemm_mma.cu"), "#undef MMA_TYPE\n"),
        false => include_str!("gemm_fma.cu"),
    }
}

/// A tile, into how many parts sums are cut, and the length of one.
#[derive(Copy, Clone, Debug)]
struct Cut {
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
        for cut in if all { self.cuts() } else { Vec::new() } {
            if cuts.iter().all(|c| c.name() != cut.name()) {
                cuts.push(cut);
            }
        }
        let way = |cut: &Cut| Way {
            name: cut.name(),
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
        let splits = cut.splits;
        let shape = Shape {
            cut: *cut,
            index: self.index(&(&self.total * &Dim::Const(splits))),
            acc: if half(self.dtype) {
                DType::F32
            } else {
                self.dtype
            },
        };
        let mut steps = vec![self.product(&shape, operands)];
        let mut scratch = Vec::new();
        if splits > 1 {
            steps.push(self.sum(&shape));
            scratch.push((shape.acc, vec![Dim::Const(splits), self.total.clone()]));
        }
        Printed {
            steps,
            scratch,
            in_place: self.launch.in_place.clone(),
        }
    }

    /// The kernel that multiplies. It stores the result, or parts of its sums.
    fn product(
        &self,
        shape: &Shape,
        operands: &impl Fn(&mut Source, &Call) -> [Operand; 2],
    ) -> Step {
        let Cut { tile, splits, .. } = shape.cut;
        let mut call = Call::new(self.launch);
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
        for arg in self.reads {
            call.push(Slot::Arg(arg as usize), self.dtype, false);
        }
        let mut source = call.source(&name, shape.index);
        let [a, b] = operands(&mut source, &call);
        source.scope(&self.scope(shape, &a, &b));
        self.block(&mut source, shape, [&a, &b]);
        match splits {
            1 => self.store.print(&mut source, &call),
            _ => {
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
        let Tile { m, n, part, .. } = shape.cut.tile;
        let mut text = self.types(shape);
        text += &tile_constants([m, n], part, self.dtype, [a, b]);
        text += include_str!("gemm_operands.cu");
        text += &self.operands;
        text + tile_text(self.dtype)
    }

    fn types(&self, shape: &Shape) -> String {
        format!(
            "typedef {} Elem;\ntypedef {} Acc;\ntypedef {} Index;\n",
            memory(self.dtype),
            memory(shape.acc),
            shape.index.name()
        )
    }

    /// A block's work, up to where element `raw` of the result goes to `at`.
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
{SHARED}
{MULTIPLY}
#pragma unroll 1 // the text below may be long
for (int e = threadIdx.x; e < BM * BN; e += THREADS) {{
const Index i = i0 + e / BN, j = j0 + e % BN;
if (i >= m || j >= n) continue;
Acc raw = shared.out[e / BN][e % BN];
{}",
            operands[0].text, operands[1].text, self.at
        );
        super::lines(source, &text);
    }

    /// The kernel that adds the parts of sums and stores the result.
    fn sum(&self, shape: &Shape) -> Step {
        let mut call = Call::new(self.launch);
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
        super::lines(&mut source, &text);
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
        match self.reach.iter().chain([total, &self.k]).all(super::few) {
            true => epilogue,
            false => Index::Long,
        }
    }

    /// The largest tile of which the result has enough to keep a GPU busy, without much beside it.
    fn tile(&self) -> Tile {
        let tiles = if half(self.dtype) { MMA } else { FMA };
        let tiles = match self.dtype == DType::F64 || self.costly {
            true => &tiles[1..],
            false => &tiles[..],
        };
        let (m, n) = (
            self.m.as_const().unwrap_or(BUSY),
            self.n.as_const().unwrap_or(BUSY),
        );
        let batches = self.batches.as_const().unwrap_or(1);
        let fits = |t: &&Tile| {
            let blocks = |extent: i64, each: i64| (extent + each - 1) / each;
            let blocks = blocks(m, t.m)
                .saturating_mul(blocks(n, t.n))
                .saturating_mul(batches);
            let computed = blocks.saturating_mul(t.m * t.n);
            blocks >= BUSY && computed / 2 <= m.saturating_mul(n).saturating_mul(batches)
        };
        *tiles.iter().find(fits).unwrap_or(&tiles[tiles.len() - 1])
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
        let tile = self.tile();
        match self.blocks(&tile) {
            Some((blocks, k)) if (1..BUSY / 2).contains(&blocks) && k >= 2 * SHARE => {
                self.cut(tile, (BUSY / blocks).min(k / SHARE))
            }
            _ => self.cut(tile, 1),
        }
    }

    /// Cuts sums into about `splits` parts.
    fn cut(&self, tile: Tile, splits: i64) -> Cut {
        let (depth, k) = (depth(self.dtype), self.k.as_const());
        let (splits, chunk) = k.filter(|_| splits > 1).map_or((1, 0), |k| {
            let chunk = ((k + splits - 1) / splits + depth - 1) / depth * depth;
            ((k + chunk - 1) / chunk, chunk)
        });
        Cut {
            tile,
            splits,
            chunk,
        }
    }

    /// All ways to cut: tiles that do not compute much beside the result, each without a cut along the sums and
    /// with some that give a GPU enough to do.
    fn cuts(&self) -> Vec<Cut> {
        let mut cuts = Vec::new();
        for tile in self.tiles() {
            cuts.push(self.cut(tile, 1));
            let known = self.blocks(&tile).filter(|(blocks, _)| *blocks > 0);
            let Some((blocks, k)) = known else { continue };
            let busy = 2 * BUSY * 256 / i64::from(tile.threads);
            let most = (busy / blocks).min(k / LEAST_SHARE);
            let powers = (1..=most.max(1).ilog2()).map(|p| 1i64 << p);
            let enough = powers.filter(|p| p * blocks >= BUSY / 2 || 2 * p > most);
            cuts.extend(enough.map(|p| self.cut(tile, p)));
        }
        cuts
    }

    /// The tiles that fit the result and what is multiplied.
    fn tiles(&self) -> Vec<Tile> {
        let (tiles, more) = match half(self.dtype) {
            true => (MMA, MORE_MMA),
            false => (FMA, MORE_FMA),
        };
        let few = |d: &Dim| d.as_const().is_some_and(|n| n <= MANY);
        let more = match (few(&self.m), few(&self.n)) {
            (false, false) => more[0],
            (true, _) => more[1],
            (false, true) => more[2],
        };
        let near = |extent: &Dim, each: i64| {
            each <= MANY || extent.as_const().is_none_or(|n| each < 2 * n)
        };
        let all = tiles.iter().chain(more);
        let fits = all.filter(|t| near(&self.m, t.m) && near(&self.n, t.n) && self.allows(t));
        fits.copied().collect()
    }

    /// Whether threads have the registers for their parts of a tile and what they load for it.
    fn allows(&self, tile: &Tile) -> bool {
        let longer = tile.m.max(tile.n);
        if half(self.dtype) {
            return !self.costly || longer <= 64;
        }
        let (sums, loads) = (
            tile.part[0] * tile.part[1],
            longer * depth(self.dtype) / i64::from(tile.threads),
        );
        let few_sums = self.dtype == DType::F64 || self.costly;
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
        let rounds = (blocks as f64 * cut.splits as f64 / BUSY as f64).ceil();
        let products = rounds * (chunk * cut.tile.m * cut.tile.n) as f64;
        let elements = self.total.as_const()? as f64 * passed as f64;
        Some(products + PASS * elements / BUSY as f64)
    }
}

impl Cut {
    fn name(&self) -> String {
        let Tile { m, n, threads, .. } = self.tile;
        let parts = match self.splits {
            1 => String::new(),
            parts => format!(" in {parts} parts"),
        };
        format!("tile {m}x{n} by {threads} threads{parts}")
    }
}
