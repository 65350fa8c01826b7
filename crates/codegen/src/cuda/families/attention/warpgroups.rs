//! Attention by warpgroups: scores, weights and accumulators stay in registers.

use super::{begin_kernel, declare_scores, declare_sizes, scores_text, single_step};
use crate::cuda::families::call::{Call, elements, lines};
use crate::cuda::families::tma_store::{BOXES_TEXT, FIRST_BOX, TmaResult};
use crate::cuda::families::warpgroup::{
    ALocation, COMMON_TEXT, TmaOperand, declare_raw, each_accumulator, each_tile, narrow,
    persistent_grid, span, wgmma,
};
use crate::cuda::job::Job;
use crate::cuda::source::Source;
use crate::work::{KernelCalls, Slot};
use kiln_base::{Compute, Dim, Scalar, ceil, numel};
use kiln_plan::contraction::Contraction;
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::CudaCpp;
use kiln_plan::schedule::{self, Multiply, WARP_RESULT};
use kiln_plan::{Attention, Decision, MatMul, Matrix};
use std::f64::consts::LOG2_E;

/// The rows of a block's tile of queries, and of a tile of keys.
const ROWS: u16 = 128;
const KEYS: u16 = 128;
/// The stages of the ring, each a tile of keys or of values.
const STAGES: u8 = 4;
/// The maximum number of query rows that are left to the smaller tiles of warps.
const MAX_WARP_ROWS: i64 = 64;
/// The widths of queries and values that a tile holds. Narrower ones would leave most of it unused.
const WIDTHS: std::ops::RangeInclusive<i64> = 33..=128;

/// The operands as TMA sees them, and their widths, rounded up to rows of boxes.
struct Operands {
    query: TmaOperand,
    key: TmaOperand,
    value: TmaOperand,
    width: u16,
    columns: u16,
}

/// Returns the kernel, its schedule and its columns of the result, if the machine and the operands allow it.
pub(super) fn emit(work: Job, a: &Attention) -> Option<(schedule::Gpu, i64, KernelCalls)> {
    let operands = Operands::of(a).filter(|_| work.gpu.arch == (9, 0))?;
    let shared = operands.shared_bytes();
    if shared > work.gpu.most_shared {
        return None;
    }
    let schedule = schedule::Gpu {
        multiply: Multiply::Wgmma,
        tile: [ROWS, KEYS, operands.width],
        warp: [64, KEYS],
        stages: STAGES,
        cluster: 1,
        raster: 1,
        parts: 1,
    };
    let (call, mut source, store) = begin_kernel(work, a);
    let index = source.index;
    source.bound_registers(1);
    source.dynamic_shared("Shared", shared);
    source.scope(&(elements(a.scores.dtype, index) + &operands.text(a)));
    declare_sizes(&mut source, &a.scores, &a.columns);
    source.line("if (length <= 0 || columns <= 0 || batches <= 0) return;");
    source.line(format!(
        "const Index rows = (length + {ROWS} - 1) / {ROWS};"
    ));
    let coordinates = declare_coordinates(a.scores.causal);
    let copy = format!(
        "{coordinates}\n{}copy_tile(shared, query_ring, ring, copy_q, copy_k, copy_v, (int)i0, (int)end);",
        operands.copies(&mut source, &call, a)
    );
    let scores = declare_scores(&mut source, &call, &a.scores);
    let work_of_tile = format!(
        "{coordinates}\n{scores}\nAcc sums[SUMS];\nattend(shared, query_ring, ring, sums, scores, i0, length, keys, end);"
    );
    let barriers = "shared.query_barriers, shared.barriers";
    let rings = "Ring<1> query_ring;\nRing<STAGES> ring;";
    let sizes = [&numel(&a.scores.batch), &a.scores.length, &a.columns];
    let tma_result = TmaResult::new(&store, sizes);
    if tma_result.is_some() {
        source.scope(BOXES_TEXT);
        source.line(FIRST_BOX);
    }
    each_tile(
        &mut source,
        [barriers, rings, "rows * batches"],
        [&copy, "", &work_of_tile],
    );
    match tma_result {
        Some(tma_result) => {
            let sizes = (["length", "columns"], 1);
            tma_result.emit(&mut source, &call, [64, operands.columns], sizes);
            lines(&mut source, "}\nfinish_boxes();");
        }
        None => {
            let store_width = store.width(&a.columns);
            let text = format!(
                "{}\nif (i >= length || j >= columns) continue;\n\
                 const Index at = (batch * length + i) * columns + j;\n{}",
                each_accumulator(64, operands.columns, store_width, ""),
                declare_raw(store_width)
            );
            lines(&mut source, &text);
            store.emit(&mut source, &call, store_width);
            lines(&mut source, "}\n}\n}");
        }
    }
    let grid = persistent_grid(work.gpu, tile_count(a), 1);
    let step = call.step(source.finish(grid, [schedule.threads(), 1, 1]));
    Some((schedule, operands.columns.into(), single_step(work, step)))
}

/// Returns the declaration of a tile's coordinates. Causal tiles with more keys come first.
fn declare_coordinates(causal: bool) -> String {
    let (row, end) = match causal {
        true => (
            "rows - 1 - tile_index % rows",
            "keys < i0 + BM ? keys : i0 + BM",
        ),
        false => ("tile_index % rows", "keys"),
    };
    format!("const Index batch = tile_index / rows, i0 = ({row}) * BM, j0 = 0, end = {end};")
}

/// Returns the number of tiles, if it is known.
fn tile_count(a: &Attention) -> Option<i64> {
    let batches = numel(&a.scores.batch).as_const()?;
    Some(ceil(a.scores.length.as_const()?, ROWS.into()).saturating_mul(batches))
}

impl Operands {
    fn of(a: &Attention) -> Option<Operands> {
        let s = &a.scores;
        let is_short = s.length.as_const().is_some_and(|n| n <= MAX_WARP_ROWS);
        if !s.dtype.is_half() || is_short {
            return None;
        }
        let box_width = |d: &Dim| {
            let n = d.as_const().filter(|n| WIDTHS.contains(n))?;
            Some((n as u16).next_multiple_of(span(s.dtype)))
        };
        let transposed = |x: &Matrix| Matrix {
            row: x.col.clone(),
            col: x.row.clone(),
            ..x.clone()
        };
        let scores = product(
            a,
            [&s.query, &transposed(&s.key)],
            [&s.length, &s.keys, &s.width],
        );
        // The weights are in registers; the query only stands in for them.
        let result = product(a, [&s.query, &a.value], [&s.length, &a.columns, &s.keys]);
        Some(Operands {
            query: TmaOperand::new(&scores, 0, s.dtype)?,
            key: TmaOperand::new(&scores, 1, s.dtype)?,
            value: TmaOperand::new(&result, 1, s.dtype)?,
            width: box_width(&s.width)?,
            columns: box_width(&a.columns)?,
        })
    }

    /// Returns the declarations of the functions that copy boxes.
    fn copies(&self, source: &mut Source, call: &Call, a: &Attention) -> String {
        let (s, [width, columns]) = (&a.scores, [self.width, self.columns]);
        let operands = [
            (&self.query, &s.query, "q", [ROWS, width]),
            (&self.key, &s.key, "k", [KEYS, width]),
            (&self.value, &a.value, "v", [columns, KEYS]),
        ];
        let copy = |(operand, x, name, extents): (&TmaOperand, &Matrix, &str, [u16; 2])| {
            operand.declare_copy(source, call, Slot::Arg(x.arg.into()), name, (extents, 1))
        };
        operands.map(copy).concat()
    }

    /// Returns a block's shared memory in bytes.
    fn shared_bytes(&self) -> u32 {
        let [rows, keys, stages] = [ROWS, KEYS, STAGES.into()].map(u32::from);
        let widest = u32::from(self.width.max(self.columns));
        let elements = rows * u32::from(self.width) + stages * keys * widest;
        let staging = rows / 16 * WARP_RESULT;
        (2 * elements + staging + 16 * (stages + 1)).next_multiple_of(1024)
    }

    /// Returns the constants and device code of the kernel. They follow the types of its elements.
    fn text(&self, a: &Attention) -> String {
        let Operands { width, columns, .. } = *self;
        let (s, scale) = (&a.scores, a.scores.scale);
        // Without a mask, a positive scale is left to the exponentials.
        let scaled = s.mask.is_some() || scale <= 0.0;
        let has_full_tiles = s.keys.as_const().is_some_and(|n| n % i64::from(KEYS) == 0);
        let factor = if scaled { LOG2_E } else { scale * LOG2_E };
        let a_location = ALocation::Shared {
            along_k: self.query.along_k,
        };
        let instructions = wgmma(
            "multiply_keys",
            KEYS,
            [s.dtype; 2],
            a_location,
            self.key.along_k,
        ) + &wgmma(
            "multiply_values",
            columns,
            [s.dtype; 2],
            ALocation::Registers,
            self.value.along_k,
        );
        format!(
            "constexpr int BM = {ROWS}, BN = {KEYS}, BK = {width}, BV = {columns};\n\
             constexpr int STAGES = {STAGES}, WARPS = BM / 16, CLUSTER = 1;\n\
             constexpr bool Q_ALONG_K = {}, K_ALONG_K = {}, V_ALONG_K = {};\n\
             constexpr bool SCALED = {scaled}, TAILS = {};\nconstexpr Acc FACTOR = {};\n\
             {instructions}{}{COMMON_TEXT}{}{}",
            self.query.along_k,
            self.key.along_k,
            self.value.along_k,
            !has_full_tiles,
            CudaCpp::literal(Scalar::Float(factor), Compute::F32),
            narrow(s.dtype),
            scores_text(s),
            include_str!("../attention_warpgroup.cu")
        )
    }
}

/// Returns a product of attention's operands.
fn product(a: &Attention, [lhs, rhs]: [&Matrix; 2], [m, n, k]: [&Dim; 3]) -> Contraction {
    let product = MatMul {
        dtypes: [a.scores.dtype; 2],
        reduce_range: false,
        batch: a.scores.batch.clone(),
        m: m.clone(),
        k: k.clone(),
        n: n.clone(),
        lhs: lhs.clone(),
        rhs: rhs.clone(),
        out: a.out,
        prologues: [None, None],
        epilogue: None,
        algorithm: Decision::default(),
    };
    Contraction::from(&product)
}
