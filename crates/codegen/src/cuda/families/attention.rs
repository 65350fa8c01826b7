//! Attention: softmax(query · keyᵀ · scale + mask) · value. A block keeps some rows of the result and walks the keys,
//! so that scores never reach memory. Values wider than a block's columns are cut into strips, each of which computes
//! the scores again.

use super::call::{Call, Store, elements, fits_i32, line_of_blocks, lines};
use super::gemm_tile::{depth, out_column, tile_constants, tile_text};
use super::operand::{Operand, is_multiple_of_8};
use crate::cuda::job::Job;
use crate::cuda::source::{Index, Source, memory};
use crate::cuda::values::Values;
use crate::schedule::Schedule;
use crate::work::{Candidate, KernelCall, KernelCalls, Slot};
use kiln_base::{Compute, DType, Dim, Scalar, numel};
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::{Blocks, CudaCpp, SharedLaunch};
use kiln_plan::schedule::{self, Multiply};
use kiln_plan::{Attention, Dropout, Matrix, Scores};
use std::fmt::Write;

mod warpgroups;

/// The assumed size of an unknown extent.
const UNKNOWN_SIZE: i64 = 1024;

/// Returns the candidate with the fewest cycles by the model; with `all` every candidate, fastest first.
pub(super) fn emit(work: Job, a: &Attention, all: bool) -> Vec<Candidate> {
    let Some((schedule, columns, calls)) = warpgroups::emit(work, a) else {
        return Candidate::only(emit_by_warps(work, a));
    };
    let (sizes, are_known) = model_sizes(a);
    let candidate = |schedule: schedule::Gpu, columns, calls| {
        let cycles = schedule.attention_cycles(work.gpu, &sizes, columns);
        let candidate = Candidate {
            schedule: Schedule::Gpu(schedule),
            approximation: None,
            predicted: are_known.then_some(cycles),
            calls,
        };
        (cycles, candidate)
    };
    let tile = Tile::of(a.scores.dtype, &a.scores.length, &a.columns);
    let warps = tile.schedule(a.scores.dtype);
    let mut candidates = vec![
        candidate(schedule, columns, calls),
        candidate(warps, tile.columns, emit_by_warps(work, a)),
    ];
    candidates.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    candidates.truncate(if all { 2 } else { 1 });
    candidates.into_iter().map(|(_, c)| c).collect()
}

/// Returns the sizes by which the model chooses, and true if all of them are known.
fn model_sizes(a: &Attention) -> (schedule::AttentionSizes, bool) {
    let s = &a.scores;
    let dims = [&numel(&s.batch), &s.length, &s.keys, &s.width, &a.columns];
    let known = dims.map(Dim::as_const);
    let [batches, length, keys, width, columns] = known.map(|n| n.unwrap_or(UNKNOWN_SIZE));
    let sizes = schedule::AttentionSizes {
        batches,
        length,
        keys,
        width,
        columns,
        causal: s.causal,
    };
    (sizes, known.iter().all(Option::is_some))
}

/// Returns the call of a kernel, its text so far and the destination of its result.
fn begin_kernel<'a>(work: Job<'a>, a: &Attention) -> (Call<'a>, Source, Store<'a>) {
    let name = match &work.epilogue {
        Some(kir) => kir.name.clone(),
        None => format!("attention_{}", a.scores.dtype),
    };
    let store = Store::of(work, a.out, a.scores.dtype);
    let mut call = Call::new(work);
    store.push(&mut call);
    push_operands(&mut call, &a.scores, &[&a.value]);
    let mut source = call.source(&name, index_type(a, &store));
    source.shared_launch = SharedLaunch::Nothing;
    (call, source, store)
}

/// Returns the calls of the kernel whose warps multiply operands in shared memory.
fn emit_by_warps(work: Job, a: &Attention) -> KernelCalls {
    let (call, mut source, store) = begin_kernel(work, a);
    let tile = Tile::of(a.scores.dtype, &a.scores.length, &a.columns);
    let operands = Operands::emit(&mut source, &call, a);
    let index = source.index;
    source.scope(&tile.scores_text(&a.scores, index, [&operands.query, &operands.key]));
    source.scope(&tile.weighting_text(a.scores.dtype, &operands.value));
    source.scope(include_str!("attention.cu"));
    source.shared("Block");
    emit_block(&mut source, &call, a, &operands);
    store.emit(&mut source, &call, 1);
    source.line("}");
    let grid = tile.grid(&a.scores, &a.scores.length, &a.columns);
    single_step(work, call.step(source.finish(grid, [tile.threads, 1, 1])))
}

fn single_step(work: Job, step: KernelCall) -> KernelCalls {
    KernelCalls {
        steps: vec![step],
        scratch: Vec::new(),
        in_place: work.in_place.clone(),
    }
}

/// A block's tile: its rows and columns of scores, those of a thread (or of a warp of tensor cores), its columns of the
/// result, and its number of threads.
pub(super) struct Tile {
    pub m: i64,
    n: i64,
    warp: [i64; 2],
    columns: i64,
    pub threads: u32,
}

impl Tile {
    /// Returns the tile of a result with `rows` rows and `columns` columns.
    pub fn of(dtype: DType, rows: &Dim, columns: &Dim) -> Tile {
        let is_short = rows.as_const().is_some_and(|l| l <= 32);
        let (m, n, warp, threads) = match dtype {
            DType::F64 => (32, 32, [4, 2], 128),
            DType::F32 if is_short => (32, 32, [4, 2], 128),
            DType::F32 => (64, 64, [4, 4], 256),
            _ if is_short => (32, 64, [16, 32], 128),
            _ => (64, 64, [16, 32], 256),
        };
        let max_columns = if n == 64 { 128 } else { 64 };
        let is_wide = columns.as_const().is_none_or(|c| c > max_columns / 2);
        Tile {
            m,
            n,
            warp,
            columns: max_columns / if is_wide { 1 } else { 2 },
            threads,
        }
    }

    /// Returns the grid for a result with `rows` rows and `columns` columns in each matrix.
    pub fn grid(&self, scores: &Scores, rows: &Dim, columns: &Dim) -> [Blocks; 3] {
        let points = &round_up(rows, self.m) * &round_up(columns, self.columns);
        let points_per_block = (self.m * self.columns) as u32;
        line_of_blocks(&points * &numel(&scores.batch), points_per_block)
    }

    /// Returns the grid for `rows` rows in each matrix.
    pub fn grid_of_rows(&self, scores: &Scores, rows: &Dim) -> [Blocks; 3] {
        line_of_blocks(
            &round_up(rows, self.m) * &numel(&scores.batch),
            self.m as u32,
        )
    }

    /// Returns the device code that computes scores as products of operands.
    pub fn scores_text(&self, scores: &Scores, index: Index, operands: [&Operand; 2]) -> String {
        let schedule = self.schedule(scores.dtype);
        let mut text = elements(scores.dtype, index);
        text += &tile_constants(&schedule, [scores.dtype; 2], operands);
        text += include_str!("gemm_operands.cu");
        text += &out_column(schedule.multiply, false);
        text += tile_text(schedule.multiply);
        text + &scores_text(scores)
    }

    /// Returns the schedule of the products of queries and keys.
    fn schedule(&self, dtype: DType) -> schedule::Gpu {
        let multiply = Multiply::exact(dtype);
        schedule::Gpu {
            multiply,
            tile: [self.m as u16, self.n as u16, depth(multiply, dtype)],
            warp: self.warp.map(|n| n as u16),
            stages: 2,
            cluster: 1,
            raster: 1,
            parts: 1,
        }
    }

    /// Returns the device code that multiplies the softmax by `value`. It follows that of the scores.
    pub fn weighting_text(&self, dtype: DType, value: &Operand) -> String {
        let text = format!(
            "constexpr int BV = {};\nconstexpr bool V_ALONG_K = {}, V_VECTOR = {}, V_WHOLE = {};\n",
            self.columns, value.along_k, value.vector, value.whole,
        );
        text + match Multiply::exact(dtype) {
            Multiply::Fma => include_str!("attention_fma.cu"),
            _ => include_str!("attention_mma.cu"),
        }
    }
}

/// Returns the device code that scales and masks products. It follows the sizes of their tile.
fn scores_text(scores: &Scores) -> String {
    let mask = match &scores.mask {
        None => ("NONE", DType::F32),
        Some((_, DType::Bool)) => ("KEEPS", DType::Bool),
        Some((_, dtype)) => ("ADDS", *dtype),
    };
    let load_mask = match mask.1 {
        DType::Bool => "x".into(),
        dtype => CudaCpp::loaded("x", dtype),
    };
    let (p, kept_scale) = match &scores.dropout {
        Some(dropout) => (dropout.p, dropout.scale()),
        None => (0.0, 1.0),
    };
    format!(
        "constexpr bool CAUSAL = {};\nenum {{ NONE, KEEPS, ADDS }};\nconstexpr int MASK = {};\n\
         typedef {} MaskElem;\n\
         __device__ __forceinline__ Acc load_mask(MaskElem x) {{ return {load_mask}; }}\n\
         constexpr bool DROPOUT = {};\nconstexpr float DROPOUT_P = {};\nconstexpr Acc DROPOUT_SCALE = {};\n{}",
        scores.causal,
        mask.0,
        memory(mask.1),
        scores.dropout.is_some(),
        CudaCpp::literal(Scalar::Float(p), Compute::F32),
        CudaCpp::literal(Scalar::Float(kept_scale), scores.dtype.compute()),
        include_str!("attention_scores.cu")
    )
}

/// Returns a size rounded up to a multiple, or an upper bound of that if the size is unknown.
fn round_up(d: &Dim, multiple: i64) -> Dim {
    match d.as_const() {
        Some(n) => Dim::Const((n + multiple - 1) / multiple * multiple),
        None => d + &Dim::Const(multiple - 1),
    }
}

/// The C++ of the operands.
struct Operands {
    query: Operand,
    key: Operand,
    value: Operand,
}

impl Operands {
    fn emit(source: &mut Source, call: &Call, a: &Attention) -> Operands {
        let mut operand = |x: &Matrix, name: &str, lines: &str, strides: [&Dim; 2]| {
            strided_operand(source, call, &a.scores.batch, x, [name, lines], strides)
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
        Operands { query, key, value }
    }
}

/// Adds the arguments of a kernel that computes scores, and further operands of their dtype.
pub(super) fn push_operands(call: &mut Call, scores: &Scores, further: &[&Matrix]) {
    let pair = [&scores.query, &scores.key];
    for x in pair.iter().chain(further) {
        call.push(Slot::Arg(x.arg as usize), scores.dtype, false);
    }
    if let Some((mask, dtype)) = &scores.mask {
        call.push(Slot::Arg(mask.arg as usize), *dtype, false);
    }
    if let Some(dropout) = &scores.dropout {
        call.push(Slot::Arg(dropout.key.arg as usize), DType::I64, false);
    }
}

/// Returns the declaration of `scores`: their scale, mask and random numbers.
pub(super) fn declare_scores(source: &mut Source, call: &Call, scores: &Scores) -> String {
    let factor = CudaCpp::literal(Scalar::Float(scores.scale), scores.dtype.compute());
    let (mut text, mut mask) = (String::new(), "nullptr, 0, 0".to_string());
    if let Some((m, _)) = &scores.mask {
        let pointer = call.pointer(Slot::Arg(m.arg as usize));
        let (row, column) = (source.dim(&m.row), source.dim(&m.col));
        text = declare_offset(source, &scores.batch, m, "mask");
        mask = format!("{pointer} + mask_at, {row}, {column}");
    }
    let mut numbers = "0, 0, 0".to_string();
    if let Some(Dropout { key, .. }) = &scores.dropout {
        let pointer = call.pointer(Slot::Arg(key.arg as usize));
        let (start, step) = (source.dim(&key.offset), source.dim(&key.col));
        let first = "(long long)batch * length * keys";
        numbers = format!("{pointer}[{start}], {pointer}[{start} + {step}] + {first}, keys");
    }
    text + &format!("const Scores scores = {{{factor}, {mask}, {numbers}}};")
}

/// Declares the sizes of attention by their names.
pub(super) fn declare_sizes(source: &mut Source, scores: &Scores, columns: &Dim) {
    let sizes = [
        ("length", &scores.length),
        ("keys", &scores.keys),
        ("width", &scores.width),
        ("columns", columns),
        ("batches", &numel(&scores.batch)),
    ];
    for (name, dim) in sizes {
        let value = source.dim(dim);
        source.line(format!("const Index {name} = {value};"));
    }
}

/// Emits a block's work, up to the declaration of `raw`, an element of the result, and `at`, its offset.
fn emit_block(source: &mut Source, call: &Call, a: &Attention, operands: &Operands) {
    declare_sizes(source, &a.scores, &a.columns);
    let scores = declare_scores(source, call, &a.scores);
    let text = format!(
        "\
if (length <= 0 || columns <= 0 || batches <= 0) return;
const Index rows = (length + BM - 1) / BM, strips = (columns + BV - 1) / BV;
Index tile = blockIdx.x;
const Index c0 = tile % strips * BV;
tile /= strips;
const Index i0 = tile % rows * BM, batch = tile / rows;
if (batch >= batches) return;
{}{}{}{scores}
attend(shared, q, k, v, scores, i0, c0, length, keys, width);
#pragma unroll 1 // the text below may be long
for (int e = threadIdx.x; e < BM * BV; e += THREADS) {{
const Index i = i0 + e / BV, c = c0 + e % BV;
if (i >= length || c >= columns) continue;
const Acc raw = shared.out[e / BV][e % BV] * shared.denominator[e / BV];
const Index at = (batch * length + i) * columns + c;",
        operands.query.text, operands.key.text, operands.value.text,
    );
    lines(source, &text);
}

/// Returns the type of indices: 32 bits where everything is known to be small.
fn index_type(a: &Attention, store: &Store) -> Index {
    let epilogue = match store {
        Store::Epilogue(kir) => Values::index_type(kir),
        Store::Plain { .. } => Index::Int,
    };
    let mut bounds = footprint_ends(&a.scores);
    bounds.push(footprint_end(
        &a.scores.batch,
        &a.value,
        &a.scores.keys,
        &a.columns,
    ));
    bounds.push(&(&numel(&a.scores.batch) * &a.scores.length) * &a.columns);
    match bounds.iter().all(fits_i32) {
        true => epilogue,
        false => Index::Long,
    }
}

/// Returns the upper bounds of the offsets and indices of scores' operands.
pub(super) fn footprint_ends(scores: &Scores) -> Vec<Dim> {
    let Scores {
        batch,
        length,
        keys,
        width,
        ..
    } = scores;
    let mut bounds = vec![
        footprint_end(batch, &scores.query, length, width),
        footprint_end(batch, &scores.key, keys, width),
        keys.clone(),
        width.clone(),
    ];
    bounds.extend((scores.mask.iter()).map(|(mask, _)| footprint_end(batch, mask, length, keys)));
    bounds
}

/// Returns an upper bound of the offsets into a batch of matrices.
pub(super) fn footprint_end(batch: &[Dim], x: &Matrix, rows: &Dim, columns: &Dim) -> Dim {
    let ends = batch.iter().chain([rows, columns]);
    let strides = x.batch_strides.iter().chain([&x.row, &x.col]);
    ends.zip(strides)
        .fold(x.offset.clone(), |sum, (end, stride)| {
            &sum + &(end * stride)
        })
}

/// Returns the declaration of `{name}_at`, the offset of matrix number `batch`.
fn declare_offset(source: &mut Source, batch: &[Dim], x: &Matrix, name: &str) -> String {
    let mut text = format!("Index {name}_at = {};\n", source.dim(&x.offset));
    if !batch.is_empty() {
        text += "{\nIndex remaining = batch;\n";
        for (extent, stride) in batch.iter().zip(&x.batch_strides).rev() {
            let (extent, stride) = (source.dim(extent), source.dim(stride));
            let _ = write!(
                text,
                "{name}_at += remaining % {extent} * {stride};\nremaining /= {extent};\n"
            );
        }
        text += "}\n";
    }
    text
}

/// Returns an operand by its name, the name of its number of lines, and the strides of lines and along k.
pub(super) fn strided_operand(
    source: &mut Source,
    call: &Call,
    batch: &[Dim],
    x: &Matrix,
    [name, lines]: [&str; 2],
    [line, along]: [&Dim; 2],
) -> Operand {
    let pointer = call.pointer(Slot::Arg(x.arg as usize));
    let mut text = declare_offset(source, batch, x, name);
    let (l, k) = (source.dim(line), source.dim(along));
    let _ = writeln!(
        text,
        "const Strided {name} = {{{pointer} + {name}_at, {lines}, {l}, {k}}};"
    );
    let along_k = along.is(1);
    let other = if along_k { line } else { along };
    Operand {
        text,
        along_k,
        vector: (along_k || line.is(1))
            && is_multiple_of_8(other)
            && is_multiple_of_8(&x.offset)
            && x.batch_strides.iter().all(is_multiple_of_8),
        whole: false,
    }
}
