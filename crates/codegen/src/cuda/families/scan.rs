//! Scans: running results along an axis. Where there are few long lanes, blocks share a lane. One kernel reduces each
//! chunk of the lane, and a second scans each chunk, beginning with the reduction of the chunks before it.

use super::call::{Call, elements, fits_i32, line_of_blocks, lines};
use crate::cuda::job::Job;
use crate::cuda::source::Index;
use crate::cuda::walk::combiner;
use crate::work::{KernelCall, KernelCalls, Slot};
use kiln_base::prim::{Reduction, ScanKind};
use kiln_base::{DType, Dim};
use kiln_plan::Scan;
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::{CudaCpp, SharedLaunch};
use std::fmt::Write;

/// The shape of a block: `columns` lanes, and for each `runs` threads that take `run` elements.
struct BlockShape {
    columns: i64,
    runs: i64,
    run: i64,
}

pub(super) fn emit(work: Job, s: &Scan) -> KernelCalls {
    let block = match s.inner.is(1) {
        true => BlockShape {
            columns: 1,
            runs: 128,
            run: 4,
        },
        false => BlockShape {
            columns: 32,
            runs: 8,
            run: 4,
        },
    };
    let (chunks, chunk) = split_lanes(s, &block, work.gpu.busy());
    let acc = accumulator(s.dtype);
    if chunks == 1 {
        return KernelCalls {
            steps: vec![emit_kernel(work, s, &block, 1, chunk, true)],
            scratch: Vec::new(),
            in_place: work.in_place.clone(),
        };
    }
    let totals = vec![s.outer.clone(), s.inner.clone(), Dim::Const(chunks)];
    KernelCalls {
        steps: vec![
            emit_kernel(work, s, &block, chunks, chunk, false),
            emit_kernel(work, s, &block, chunks, chunk, true),
        ],
        scratch: vec![(acc, totals)],
        in_place: work.in_place.clone(),
    }
}

/// Returns the number of chunks that give `busy` blocks work, and the length of a chunk.
fn split_lanes(s: &Scan, block: &BlockShape, busy: i64) -> (i64, i64) {
    let [Some(outer), Some(len), Some(inner)] = [&s.outer, &s.len, &s.inner].map(Dim::as_const)
    else {
        return (1, 0);
    };
    let (step, blocks) = (
        block.runs * block.run,
        outer * ((inner + block.columns - 1) / block.columns),
    );
    if blocks == 0 || blocks >= busy / 2 || len < 8 * step {
        return (1, 0);
    }
    let chunks = (busy / blocks).min(len / (4 * step)).max(1);
    let chunk = ((len + chunks - 1) / chunks + step - 1) / step * step;
    ((len + chunk - 1) / chunk, chunk)
}

/// Returns the dtype that a lane is accumulated in.
fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::F32 | DType::F64 => dtype,
        dtype if dtype.size() < 4 => DType::I32,
        dtype => dtype,
    }
}

/// Emits the kernel that stores results, or the one that reduces chunks.
fn emit_kernel(
    work: Job,
    s: &Scan,
    block: &BlockShape,
    chunks: i64,
    chunk: i64,
    stores: bool,
) -> KernelCall {
    let mut call = Call::new(work);
    call.push(Slot::Arg(s.x as usize), s.dtype, false);
    if stores {
        call.push(Slot::Arg(s.out as usize), s.dtype, true);
    }
    if chunks > 1 {
        call.push(Slot::Scratch(0), accumulator(s.dtype), !stores);
    }
    let total = &(&s.outer * &s.len) * &s.inner;
    let index = if fits_i32(&total) {
        Index::Int
    } else {
        Index::Long
    };
    let name = format!(
        "scan_{}_{}{}",
        s.kind.name(),
        s.dtype,
        if stores { "" } else { "_totals" }
    );
    let mut source = call.source(&name, index);
    let mut text = elements(s.dtype, index);
    let compute = s.dtype.compute();
    let (combined, identity) = match s.kind.reduction() {
        Some(op) => (
            format!("{}::of(a, b)", combiner(op)),
            CudaCpp::identity(op, compute),
        ),
        None => (
            "high + log1p(exp(low - high))".into(),
            CudaCpp::identity(Reduction::Max, compute),
        ),
    };
    let prepare = match s.kind {
        ScanKind::LogSumExp => {
            "const Acc high = kiln_max(a, b), low = kiln_min(a, b);\n    if (!(fabs(high) < (Acc)kiln_inf)) return high;\n    "
        }
        _ => "",
    };
    let _ = write!(
        text,
        "__device__ __forceinline__ Acc combine(Acc a, Acc b) {{\n    {prepare}return {combined};\n}}
__device__ __forceinline__ Acc identity() {{ return {identity}; }}
constexpr bool REVERSE = {};
constexpr int COLUMNS = {}, RUNS = {}, RUN = {};
",
        s.reverse, block.columns, block.runs, block.run
    );
    text += include_str!("scan.cu");
    source.scope(&text);
    source.shared("Shared");
    source.shared_launch = SharedLaunch::Nothing;
    let [outer, len, inner] = [&s.outer, &s.len, &s.inner].map(|d| source.dim(d));
    let x = call.pointer(Slot::Arg(s.x as usize));
    lines(
        &mut source,
        &format!(
            "\
const Index len = {len}, inner = {inner}, groups = (inner + COLUMNS - 1) / COLUMNS;
if (inner <= 0) return;
const Index group = blockIdx.x / {chunks}, chunk = blockIdx.x % {chunks};
if (group / groups >= {outer}) return;
const Index column = group % groups * COLUMNS + threadIdx.x % COLUMNS;
const Index lane = group / groups * len * inner + column;
const bool in_bounds = column < inner;"
        ),
    );
    if chunks > 1 {
        let totals = call.pointer(Slot::Scratch(0));
        lines(
            &mut source,
            &format!(
                "\
const Index begin = chunk * {chunk}, end = len < begin + {chunk} ? len : begin + {chunk};
{}Acc* totals = {totals} + (group / groups * inner + (in_bounds ? column : 0)) * {chunks};",
                if stores { "const " } else { "" }
            ),
        );
    } else {
        source.line("const Index begin = 0, end = len;");
    }
    if stores {
        let out = call.pointer(Slot::Arg(s.out as usize));
        source.line("Acc carry = identity();");
        if chunks > 1 {
            source.line("for (int c = 0; c < chunk; c++) carry = combine(carry, totals[c]);");
        }
        source.line(format!(
            "scan<true>(shared, {x}, {out}, lane, in_bounds, len, inner, begin, end, carry);"
        ));
    } else {
        source.line(format!("const Acc total = scan<false>(shared, {x}, (Elem*)0, lane, in_bounds, len, inner, begin, end, identity());"));
        source.line("if (in_bounds && threadIdx.x < COLUMNS) totals[chunk] = total;");
    }
    let groups = match s.inner.as_const() {
        Some(inner) => Dim::Const((inner + block.columns - 1) / block.columns * block.columns),
        None => &s.inner + &Dim::Const(block.columns - 1),
    };
    let points = &(&s.outer * &groups) * &Dim::Const(chunks);
    let threads = (block.columns * block.runs) as u32;
    call.step(source.finish(
        line_of_blocks(points, block.columns as u32),
        [threads, 1, 1],
    ))
}
