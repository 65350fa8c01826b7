//! The tile of a contraction that a block computes: possible schedules, and the text of one.

use super::operand::Operand;
use super::warpgroup::{ALocation, COMMON_TEXT, Instruction, TmaOperand, narrow, span, wgmma};
use crate::cuda::source::memory;
use kiln_base::{DType, ceil};
use kiln_plan::schedule::{Gpu, Multiply, ROW_PADDING};
use std::fmt::Write;

/// Rows and columns of a block's tile, and of a thread's part.
const BY_THREADS: &[[u16; 4]] = &[
    [128, 128, 8, 8],
    [128, 64, 8, 4],
    [64, 64, 8, 4],
    [64, 64, 4, 4],
    [32, 32, 4, 4],
    // Few rows, few columns.
    [8, 64, 2, 4],
    [16, 64, 4, 4],
    [32, 64, 4, 4],
    [64, 8, 4, 2],
    [64, 16, 4, 4],
    [64, 32, 4, 4],
    // Whole rows.
    [64, 128, 8, 4],
    [32, 128, 4, 4],
    [16, 128, 4, 4],
];

/// Rows and columns of a block's tile, and of a warp's part.
const BY_WARPS: &[[u16; 4]] = &[
    [256, 128, 64, 64],
    [128, 256, 64, 64],
    [128, 128, 64, 64],
    [128, 128, 64, 32],
    [128, 64, 64, 32],
    [64, 128, 32, 64],
    [64, 64, 32, 32],
    [32, 32, 16, 16],
    // Few rows, few columns.
    [16, 64, 16, 32],
    [32, 128, 32, 32],
    [64, 16, 32, 16],
    [128, 32, 32, 32],
];

/// The blocks of clusters that share an operand: that of wide tiles, or of a few rows by tiles side by side.
const CLUSTER: u8 = 2;
/// Rows and columns of a block's tile, and of a warpgroup's part.
const BY_WARPGROUPS: &[[u16; 4]] = &[
    [128, 256, 64, 256],
    [256, 128, 128, 128],
    [128, 128, 64, 128],
    [128, 64, 64, 64],
];

/// The same, of transposed products: of few rows, or with a prologue of the right operand.
const TRANSPOSED: &[[u16; 4]] = &[
    [8, 128, 8, 64],
    [16, 128, 16, 64],
    [32, 128, 32, 64],
    [64, 128, 64, 64],
    [128, 128, 128, 64],
    [256, 128, 256, 64],
];

/// The maximum number of stages.
const STAGES: u8 = 4;
/// The maximum number of stages of transposed products, whose stages are small.
const TRANSPOSED_STAGES: u8 = 6;
/// The number of tiles in a column of the raster if operands take a large part of L2.
const RASTER: u8 = 8;

/// Returns the number of terms of a stage.
pub(super) fn depth(multiply: Multiply, dtype: DType) -> u16 {
    match multiply {
        Multiply::Fma | Multiply::Mma => 64 / dtype.size() as u16,
        Multiply::Wgmma | Multiply::WgmmaTf32 => span(dtype),
        Multiply::Tf32 | Multiply::Tf32x3 => 16,
    }
}

/// Returns the schedules of a product without split K. `terms` is the number of terms, if known.
pub(super) fn schedules(
    multiply: Multiply,
    dtype: DType,
    terms: Option<i64>,
    large: bool,
) -> Vec<Gpu> {
    let depth = depth(multiply, dtype);
    let shapes = match multiply {
        Multiply::Fma => BY_THREADS,
        multiply if multiply.is_by_warpgroups() => BY_WARPGROUPS,
        _ => BY_WARPS,
    };
    let useful_stages = terms.map_or(i64::MAX, |n| ceil(n, depth.into()) + 1);
    let schedule = |[m, n, rows, columns]: &[u16; 4], stages: u8| Gpu {
        multiply,
        tile: [*m, *n, depth],
        warp: [*rows, *columns],
        stages: useful_stages.clamp(2, stages.into()) as u8,
        cluster: 1,
        raster: if large { RASTER } else { 1 },
        parts: 1,
    };
    let alone = shapes.iter().map(|shape| schedule(shape, STAGES));
    let alone: Vec<Gpu> = alone.collect();
    if !multiply.is_by_warpgroups() {
        return alone;
    }
    let transposed = TRANSPOSED.iter().map(|s| schedule(s, TRANSPOSED_STAGES));
    let transposed: Vec<Gpu> = transposed.collect();
    let together = |all: &[Gpu]| -> Vec<Gpu> {
        let cluster = CLUSTER;
        all.iter().map(|s| Gpu { cluster, ..*s }).collect()
    };
    let [first, second] = [&alone, &transposed].map(|all| together(all));
    [alone, first, transposed, second].concat()
}

/// Returns the constants before [`tile_text`]: the sizes of a schedule, and the access modes of the operands.
pub(super) fn tile_constants(schedule: &Gpu, dtypes: [DType; 2], [a, b]: [&Operand; 2]) -> String {
    let ([m, n, k], [rows, columns]) = (schedule.tile, schedule.warp);
    let multiply = schedule.multiply;
    let by_warps = multiply.is_by_tensor_cores();
    let letter = if by_warps { 'W' } else { 'T' };
    let mut text = format!(
        "constexpr int BM = {m}, BN = {n}, BK = {k};\n\
         constexpr int {letter}M = {rows}, {letter}N = {columns}, STAGES = {}, THREADS = {}, BESIDE = {ROW_PADDING};\n\
         constexpr bool BY_WARPS = {by_warps};\n\
         constexpr bool A_ALONG_K = {}, B_ALONG_K = {};\n\
         constexpr bool A_VECTOR = {}, B_VECTOR = {};\n\
         constexpr bool A_WHOLE = {}, B_WHOLE = {};\n",
        schedule.stages,
        schedule.threads(),
        a.along_k,
        b.along_k,
        a.vector,
        b.vector,
        a.whole,
        b.whole
    );
    let _ = match multiply {
        Multiply::Fma | Multiply::Wgmma | Multiply::WgmmaTf32 => Ok(()),
        Multiply::Mma => {
            let Instruction {
                terms,
                accumulator,
                operands: [a, b],
                constraint,
            } = Instruction::of(dtypes);
            writeln!(
                text,
                "#define MMA \"m16n8k{terms}.row.col.{accumulator}.{a}.{b}.{accumulator}\"\n#define MMA_SUM \"+{constraint}\""
            )
        }
        Multiply::Tf32 | Multiply::Tf32x3 => {
            let split = multiply == Multiply::Tf32x3;
            writeln!(text, "constexpr bool SPLIT = {split};")
        }
    };
    text
}

/// Returns the text of the products of a block's tiles by warpgroups.
pub(super) fn warpgroup_text(
    schedule: &Gpu,
    dtypes: [DType; 2],
    [a, b]: [&TmaOperand; 2],
    source: Option<DType>,
) -> String {
    let ([m, n, k], rows) = (schedule.tile, schedule.warp[0]);
    let (a_location, raw, multiply) = match source {
        None => (
            ALocation::Shared { along_k: a.along_k },
            "Elem",
            include_str!("gemm_boxes.cu").to_string(),
        ),
        Some(source) => (
            ALocation::Registers,
            memory(source),
            narrow(dtypes[0]) + include_str!("gemm_registers.cu"),
        ),
    };
    format!(
        "typedef {raw} Raw;\nconstexpr int BM = {m}, BN = {n}, BK = {k};\n\
         constexpr int WM = {rows}, STAGES = {}, WARPS = {}, CLUSTER = {};\n\
         constexpr bool A_ALONG_K = {}, B_ALONG_K = {};\n{}{COMMON_TEXT}{}{multiply}",
        schedule.stages,
        schedule.threads() / 32 - 4,
        schedule.cluster,
        a.along_k,
        b.along_k,
        wgmma("wgmma", n, dtypes, a_location, b.along_k),
        tile_text(schedule.multiply)
    )
}

/// Returns the function before [`tile_text`] that maps row i and column j of the result to a column in shared memory.
/// Tensor cores may leave chunks of four columns permuted, so that threads that read two or four chunks each have no bank
/// conflicts. Threads that own runs of rows and single columns store eight columns of every fourth row at a time, which
/// begin in the same bank, unless these columns are permuted.
pub(super) fn out_column(multiply: Multiply, may_permute: bool) -> String {
    let column = match (may_permute, multiply) {
        (true, Multiply::Fma) => {
            "!A_ALONG_K && B_ALONG_K && BN % 32 == 0 ? j ^ (i * (int)sizeof(Elem) / 16 % 4) * 8 : j"
        }
        (true, _) => "j ^ (j / 32 % 4) * 4",
        (false, _) => "j",
    };
    format!("__device__ __forceinline__ int out_column(int i, int j) {{ return {column}; }}\n")
}

/// Returns the text of the product of a block's tile.
pub(super) fn tile_text(multiply: Multiply) -> &'static str {
    match multiply {
        Multiply::Fma => concat!(
            include_str!("gemm_stage.cu"),
            include_str!("multiply_add.cu"),
            include_str!("gemm_fma.cu")
        ),
        Multiply::Wgmma | Multiply::WgmmaTf32 => include_str!("gemm_warpgroup.cu"),
        Multiply::Mma => concat!(
            include_str!("gemm_stage.cu"),
            include_str!("gemm_narrow.cu"),
            include_str!("gemm_mma.cu"),
            "#undef MMA\n#undef MMA_SUM\n"
        ),
        Multiply::Tf32 | Multiply::Tf32x3 => concat!(
            include_str!("gemm_stage.cu"),
            include_str!("gemm_tf32.cu"),
            include_str!("gemm_mma.cu")
        ),
    }
}
