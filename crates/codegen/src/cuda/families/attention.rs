//! Attention: softmax(query · keyᵀ · scale + mask) · value. A block keeps some rows of the result and walks the
//! keys, so that scores never reach memory. Values wider than a block's columns are cut into strips, each of
//! which computes the scores again.

use super::call::{Call, Store, elements, few, line_of_blocks, lines};
use super::gemm::Operand;
use super::gemm_tile::{Arithmetic, tile_constants, tile_text};
use super::matmul::{place, reach, strided};
use crate::cuda::job::Job;
use crate::cuda::scalar;
use crate::cuda::source::{Index, Source, memory};
use crate::cuda::values::Values;
use crate::work::{Printed, Slot};
use kiln_base::{DType, Dim, numel};
use kiln_plan::cuda::Beside;
use kiln_plan::{Attention, Matrix};

pub(super) fn print(work: Job, a: &Attention) -> Printed {
    let name = match &work.behind {
        Some(kir) => kir.name.clone(),
        None => format!("attention_{}", a.scores.dtype),
    };
    let store = Store::of(work, a.out, a.scores.dtype);
    let index = index(a, &store);
    let mut call = Call::new(work);
    store.push(&mut call);
    for x in [&a.scores.query, &a.scores.key, &a.value] {
        call.push(Slot::Arg(x.arg as usize), a.scores.dtype, false);
    }
    if let Some((mask, dtype)) = &a.scores.mask {
        call.push(Slot::Arg(mask.arg as usize), *dtype, false);
    }
    let mut source = call.source(&name, index);
    let tile = Tile::of(a);
    let operands = Operands::print(&mut source, &call, a);
    source.scope(&tile.scope(a, index, &operands));
    source.shared("Block");
    source.beside = Beside::Nothing;
    block(&mut source, a, &operands);
    store.print(&mut source, &call);
    source.line("}");
    let up = |d: &Dim, each: i64| match d.as_const() {
        Some(n) => Dim::Const((n + each - 1) / each * each),
        None => d + &Dim::Const(each - 1),
    };
    let points = &up(&a.scores.length, tile.m) * &up(&a.columns, tile.columns);
    let grid = line_of_blocks(
        &points * &numel(&a.scores.batch),
        (tile.m * tile.columns) as u32,
    );
    Printed {
        steps: vec![call.step(source.finish(grid, [tile.threads, 1, 1], 0))],
        scratch: Vec::new(),
        in_place: work.in_place.clone(),
    }
}

/// Extents of a block's tile of scores, of the part of a thread (or of a warp of tensor cores), its columns
/// of the result, and its threads.
struct Tile {
    m: i64,
    n: i64,
    part: [i64; 2],
    columns: i64,
    threads: u32,
}

impl Tile {
    fn of(a: &Attention) -> Tile {
        let short = a.scores.length.as_const().is_some_and(|l| l <= 32);
        let (m, n, part, threads) = match a.scores.dtype {
            DType::F64 => (32, 32, [4, 2], 128),
            DType::F32 if short => (32, 32, [4, 2], 128),
            DType::F32 => (64, 64, [4, 4], 256),
            _ if short => (32, 64, [16, 32], 128),
            _ => (64, 64, [16, 32], 256),
        };
        let most = if n == 64 { 128 } else { 64 };
        let wide = a.columns.as_const().is_none_or(|c| c > most / 2);
        Tile {
            m,
            n,
            part,
            columns: if wide { most } else { most / 2 },
            threads,
        }
    }

    /// What stands in front of the kernel.
    fn scope(&self, a: &Attention, index: Index, operands: &Operands) -> String {
        let mask = match &a.scores.mask {
            None => ("NONE", DType::F32),
            Some((_, DType::Bool)) => ("KEEPS", DType::Bool),
            Some((_, dtype)) => ("ADDS", *dtype),
        };
        let load_mask = match mask.1 {
            DType::Bool => "x".into(),
            dtype => scalar::loaded("x", dtype),
        };
        let arithmetic = Arithmetic::of(a.scores.dtype);
        let mut text = elements(a.scores.dtype, index);
        text += &tile_constants(
            [self.m, self.n],
            self.part,
            a.scores.dtype,
            arithmetic,
            [&operands.query, &operands.key],
        );
        text += include_str!("gemm_operands.cu");
        text += tile_text(arithmetic);
        text += &format!(
            "constexpr int BV = {};\nconstexpr bool V_ALONG_K = {}, V_VECTOR = {}, CAUSAL = {};\n\
             enum {{ NONE, KEEPS, ADDS }};\nconstexpr int MASK = {};\ntypedef {} MaskElem;\n\
             __device__ __forceinline__ Acc load_mask(MaskElem x) {{ return {load_mask}; }}\n",
            self.columns,
            operands.value.along_k,
            operands.value.vector,
            a.scores.causal,
            mask.0,
            memory(mask.1),
        );
        text += match arithmetic {
            Arithmetic::Fma => include_str!("attention_fma.cu"),
            _ => include_str!("attention_mma.cu"),
        };
        text + include_str!("attention.cu")
    }
}

/// The operands' C++.
struct Operands {
    query: Operand,
    key: Operand,
    value: Operand,
    /// Declarations, and what the mask's part of the scores' object is made of.
    mask: [String; 2],
}

impl Operands {
    fn print(source: &mut Source, call: &Call, a: &Attention) -> Operands {
        let mut operand = |x: &Matrix, name: &str, lines: &str, strides: [&Dim; 2]| {
            strided(source, call, &a.scores.batch, x, [name, lines], strides)
        };
        let query = operand(
            &a.scores.query,
            "q",
            "length",
            [&a.scores.query.row, &a.scores.query.col],
        );
        let key = operand(
            &a.scores.key,
            "k",
            "keys",
            [&a.scores.key.row, &a.scores.key.col],
        );
        let value = operand(&a.value, "v", "columns", [&a.value.col, &a.value.row]);
        let mask = match &a.scores.mask {
            None => [String::new(), "nullptr, 0, 0".into()],
            Some((m, _)) => {
                let pointer = call.pointer(Slot::Arg(m.arg as usize));
                let (row, column) = (source.dim(&m.row), source.dim(&m.col));
                [
                    place(source, &a.scores.batch, m, "mask"),
                    format!("{pointer} + mask_at, {row}, {column}"),
                ]
            }
        };
        Operands {
            query,
            key,
            value,
            mask,
        }
    }
}

/// A block's work, up to where element `raw` of the result goes to `at`.
fn block(source: &mut Source, a: &Attention, operands: &Operands) {
    let sizes = [
        ("length", &a.scores.length),
        ("keys", &a.scores.keys),
        ("width", &a.scores.width),
        ("columns", &a.columns),
        ("batches", &numel(&a.scores.batch)),
    ];
    for (name, dim) in sizes {
        let value = source.dim(dim);
        source.line(format!("const Index {name} = {value};"));
    }
    let scale = scalar::literal(
        kiln_base::Scalar::Float(a.scores.scale),
        a.scores.dtype.compute(),
    );
    let text = format!(
        "\
if (length <= 0 || columns <= 0 || batches <= 0) return;
const Index rows = (length + BM - 1) / BM, strips = (columns + BV - 1) / BV;
Index tile = blockIdx.x;
const Index c0 = tile % strips * BV;
tile /= strips;
const Index i0 = tile % rows * BM, batch = tile / rows;
if (batch >= batches) return;
{}{}{}{}const Scores scores = {{{scale}, {}}};
attend(shared, q, k, v, scores, i0, c0, length, keys, width);
#pragma unroll 1 // the text below may be long
for (int e = threadIdx.x; e < BM * BV; e += THREADS) {{
const Index i = i0 + e / BV, c = c0 + e % BV;
if (i >= length || c >= columns) continue;
const Acc raw = shared.out[e / BV][e % BV] * shared.total[e / BV];
const Index at = (batch * length + i) * columns + c;",
        operands.query.text,
        operands.key.text,
        operands.value.text,
        operands.mask[0],
        operands.mask[1],
    );
    lines(source, &text);
}

/// The type of indices: 32 bits where everything is known to be small.
fn index(a: &Attention, store: &Store) -> Index {
    let epilogue = match store {
        Store::Epilogue(kir) => Values::index_type(kir),
        Store::Plain { .. } => Index::Int,
    };
    let reach = |x: &Matrix, rows, columns| reach(&a.scores.batch, x, rows, columns);
    let mut all = vec![
        reach(&a.scores.query, &a.scores.length, &a.scores.width),
        reach(&a.scores.key, &a.scores.keys, &a.scores.width),
        reach(&a.value, &a.scores.keys, &a.columns),
        &(&numel(&a.scores.batch) * &a.scores.length) * &a.columns,
        a.scores.keys.clone(),
        a.scores.width.clone(),
    ];
    if let Some((mask, _)) = &a.scores.mask {
        all.push(reach(mask, &a.scores.length, &a.scores.keys));
    }
    match all.iter().all(few) {
        true => epilogue,
        false => Index::Long,
    }
}
