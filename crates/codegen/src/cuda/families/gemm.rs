//! What matrix products and convolutions share: a block computes a tile of the result, whose elements
//! then pass through the epilogue. Where the result has few tiles and the sums are long, blocks share a
//! sum, and a second kernel adds their parts in order.

use super::{Call, Store, line_of_blocks};
use crate::cuda::source::{Index, Source, memory};
use crate::cuda::values::Values;
use crate::cuda::{Printed, Slot};
use crate::program::Launch;
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
    /// How far the operands' elements reach, for the choice of the index type.
    pub reach: Vec<Dim>,
    /// The place in the result of row `i` and column `j` of product `batch`.
    pub at: String,
    pub store: Store<'a>,
    /// The launch's arguments that are multiplied.
    pub reads: [u16; 2],
    /// Classes of operands beside `Strided`.
    pub operands: String,
}

/// An operand's C++: a class that gives lines, how it is made in the kernel, and how it is best read.
pub(super) struct Operand {
    /// Declarations and, last, the operand's object, named `a` or `b`.
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

const FMA: [Tile; 3] = [
    tile(128, 64, [8, 4], 256),
    tile(64, 64, [4, 4], 256),
    tile(32, 32, [4, 4], 64),
];
const MMA: [Tile; 3] = [
    tile(128, 64, [32, 32], 256),
    tile(64, 64, [32, 32], 128),
    tile(32, 32, [16, 16], 128),
];

const fn tile(m: i64, n: i64, part: [i64; 2], threads: u32) -> Tile {
    Tile {
        m,
        n,
        part,
        threads,
    }
}

/// Blocks that keep a GPU busy.
const BUSY: i64 = 128;
/// The fewest products that are worth a block of their own.
const SHARE: i64 = 512;

impl Gemm<'_> {
    /// The kernels, given what prints the operands into the first.
    pub fn print(self, operands: impl FnOnce(&mut Source, &Call) -> [Operand; 2]) -> Printed {
        let half = matches!(self.dtype, DType::F16 | DType::BF16);
        let acc = if half { DType::F32 } else { self.dtype };
        let tile = self.tile(half);
        let depth = if half { 32 } else { 8 };
        let (splits, chunk) = self.splits(tile, depth);
        let total = &(&self.batches * &self.m) * &self.n;
        let index = self.index(&(&total * &Dim::Const(splits)));
        let types = format!(
            "typedef {} Elem;\ntypedef {} Acc;\ntypedef {} Index;\n",
            memory(self.dtype),
            memory(acc),
            index.name()
        );

        let mut call = Call::new(self.launch);
        match splits {
            1 => self.store.push(&mut call),
            _ => call.push(Slot::Scratch(0), acc, true),
        }
        for arg in self.reads {
            call.push(Slot::Arg(arg as usize), self.dtype, false);
        }
        let name = match splits {
            1 => self.name.to_string(),
            _ => format!("{}_parts", self.name),
        };
        let mut source = call.source(&name, index);
        let [a, b] = operands(&mut source, &call);
        let [pm, pn] = tile.part;
        let mut scope = types.clone();
        let _ = writeln!(
            scope,
            "constexpr int BM = {}, BN = {}, BK = {depth};",
            tile.m, tile.n
        );
        let part = if half { 'W' } else { 'T' };
        let _ = writeln!(scope, "constexpr int {part}M = {pm}, {part}N = {pn};");
        let _ = writeln!(
            scope,
            "constexpr bool A_ALONG_K = {}, B_ALONG_K = {};",
            a.along_k, b.along_k
        );
        if half {
            let _ = writeln!(
                scope,
                "constexpr bool A_VECTOR = {}, B_VECTOR = {};",
                a.vector, b.vector
            );
            let _ = writeln!(scope, "#define MMA_TYPE \"{}\"", self.dtype);
        }
        scope += include_str!("gemm_operands.cu");
        scope += &self.operands;
        scope += match half {
            true => include_str!("gemm_mma.cu"),
            false => include_str!("gemm_fma.cu"),
        };
        if half {
            scope += "#undef MMA_TYPE\n";
        }
        super::scope(&mut source, &scope);
        for (name, dim) in [
            ("m", &self.m),
            ("n", &self.n),
            ("k", &self.k),
            ("batches", &self.batches),
        ] {
            let value = source.dim(dim);
            source.line(format!("const Index {name} = {value};"));
        }
        let end = match splits {
            1 => "k".into(),
            _ => format!("k < first + {chunk} ? k : first + {chunk}"),
        };
        super::lines(
            &mut source,
            &format!(
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
const Index first = split * {chunk}, end = {end};
{}{}__shared__ Shared shared;
multiply(shared, a, b, i0, j0, first, end);
#pragma unroll 1 // the text below may be long
for (int e = threadIdx.x; e < BM * BN; e += THREADS) {{
const Index i = i0 + e / BN, j = j0 + e % BN;
if (i >= m || j >= n) continue;
const Acc raw = shared.out[e / BN][e % BN];
const Index at = {};",
                a.text, b.text, self.at
            ),
        );
        let tiles = |d: &Dim, each: i64| match d.as_const() {
            Some(n) => Dim::Const((n + each - 1) / each * each),
            None => d + &Dim::Const(each - 1),
        };
        let points = &tiles(&self.m, tile.m) * &tiles(&self.n, tile.n);
        let points = &(&points * &self.batches) * &Dim::Const(splits);
        let grid = line_of_blocks(points, (tile.m * tile.n) as u32);
        if splits == 1 {
            self.store.print(&mut source, &call);
            source.line("}");
            return Printed {
                steps: vec![call.step(source.finish(grid, [tile.threads, 1, 1], 0))],
                scratch: Vec::new(),
                in_place: self.launch.in_place.clone(),
            };
        }
        let count = source.dim(&total);
        source.line(format!(
            "{}[split * {count} + at] = raw;",
            call.pointer(Slot::Scratch(0))
        ));
        source.line("}");
        let product = call.step(source.finish(grid, [tile.threads, 1, 1], 0));

        let mut call = Call::new(self.launch);
        self.store.push(&mut call);
        call.push(Slot::Scratch(0), acc, false);
        let mut source = call.source(self.name, index);
        super::scope(&mut source, &types);
        let (parts, count) = (call.pointer(Slot::Scratch(0)), source.dim(&total));
        super::lines(
            &mut source,
            &format!(
                "\
const Index at = (Index)blockIdx.x * 256 + threadIdx.x;
if (at >= {count}) return;
Acc raw = {parts}[at];
for (int split = 1; split < {splits}; split++) raw += {parts}[split * {count} + at];"
            ),
        );
        self.store.print(&mut source, &call);
        let grid = line_of_blocks(total.clone(), 256);
        Printed {
            steps: vec![product, call.step(source.finish(grid, [256, 1, 1], 0))],
            scratch: vec![(acc, vec![Dim::Const(splits), total])],
            in_place: self.launch.in_place.clone(),
        }
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
    fn tile(&self, half: bool) -> Tile {
        let tiles = if half { MMA } else { FMA };
        let tiles = if self.dtype == DType::F64 {
            &tiles[1..]
        } else {
            &tiles[..]
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

    /// Into how many parts sums are cut, and the length of one.
    fn splits(&self, tile: Tile, depth: i64) -> (i64, i64) {
        let sizes = [&self.m, &self.n, &self.batches, &self.k].map(Dim::as_const);
        let [Some(m), Some(n), Some(batches), Some(k)] = sizes else {
            return (1, 0);
        };
        let blocks = ((m + tile.m - 1) / tile.m).saturating_mul((n + tile.n - 1) / tile.n);
        let blocks = blocks.saturating_mul(batches);
        if blocks == 0 || blocks >= BUSY / 2 || k < 2 * SHARE {
            return (1, 0);
        }
        let splits = (BUSY / blocks).min(k / SHARE);
        let chunk = ((k + splits - 1) / splits + depth - 1) / depth * depth;
        ((k + chunk - 1) / chunk, chunk)
    }
}
