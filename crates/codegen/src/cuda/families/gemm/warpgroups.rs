//! Products by warpgroups: persistent blocks with accumulators in registers.

use super::{Gemm, Shape};
use crate::cuda::families::call::{Call, lines};
use crate::cuda::families::gemm_tile::warpgroup_text;
use crate::cuda::families::operand::declare_result_offset;
use crate::cuda::families::prologue;
use crate::cuda::families::tma_store::{BOXES_TEXT, FIRST_BOX, TmaResult, is_row_major};
use crate::cuda::families::warpgroup::{
    TmaOperand, declare_raw, each_accumulator, each_tile, persistent_grid,
};
use crate::cuda::source::Source;
use crate::work::{KernelCall, Slot};
use kiln_base::{DType, ceil};
use kiln_plan::cuda::SharedLaunch;
use kiln_plan::schedule::Gpu;

/// The text of stores of transposed products.
const TRANSPOSED_TEXT: &str = include_str!("../gemm_transposed.cu");

/// Returns text that opens the loops of [`each_accumulator`] for contiguous rows, and the declaration of `raw`.
fn each_transposed(width: u32) -> (String, String) {
    let loops = format!(
        "\
StagingBuffer& staging = shared.staging[warp];
#pragma unroll 1 // the text below may be long
for (int part = 0; part < SUMS / STAGED; part++) {{
stage_transposed(staging, sums);
const Index i1 = i0 + warp / 4 * WM + part / COLUMN_STEPS * 64 + warp % 4 * 16, j1 = j0 + part % COLUMN_STEPS * COLUMNS;
#pragma unroll 1
for (int e = threadIdx.x % 32 * {width}; e < 32 * STAGED; e += 32 * {width}) {{
const Index i = i1 + e % 16, j = j1 + e / 16;"
    );
    let raw = match width {
        1 => "Acc raw = *transposed_address(staging, e % 16, e / 16);".into(),
        _ => format!("const auto raw = load_transposed<{width}>(staging, e % 16, e / 16);"),
    };
    (loops, raw)
}

impl Gemm<'_> {
    /// Emits the kernel that multiplies by warpgroups. It stores the result, or parts of its sums.
    pub(super) fn product_by_warpgroups(
        &self,
        shape: &Shape,
        operands: [&TmaOperand; 2],
    ) -> KernelCall {
        let schedule = &shape.schedule;
        let (call, mut source) = self.begin(shape);
        let mut scope = self.types(shape);
        if let (Some(from), Some(prologue)) = (self.sources[0], self.operands[0].1) {
            let depth = i64::from(schedule.tile[2]);
            let is_whole = self.k.as_const().is_some_and(|k| k % depth == 0);
            scope += &prologue::scope(prologue, from, is_whole);
        }
        scope += &warpgroup_text(schedule, self.dtypes, operands, self.source(0));
        if shape.is_transposed {
            scope += TRANSPOSED_TEXT;
        }
        source.scope(&scope);
        let recomputation = match self.recomputes_nan() {
            true => self.recompute_nan(&mut source, &call, operands[0]),
            false => Default::default(),
        };
        let store = self.destination(shape);
        let sizes = [&self.batches, &self.m, &self.n];
        let is_stored_by_tma =
            !shape.is_transposed && !self.recomputes_nan() && is_row_major(&self.contraction);
        let tma_result = TmaResult::new(&store, sizes).filter(|_| is_stored_by_tma);
        source.dynamic_shared("Shared", self.shared(schedule));
        source.shared_launch = SharedLaunch::Nothing;
        source.cluster = schedule.cluster.into();
        self.declare_sizes(&mut source, schedule);
        let [rows, columns] = [schedule.warp[0], schedule.tile[1]];
        if let Some(tma_result) = tma_result {
            source.scope(BOXES_TEXT);
            source.line(FIRST_BOX);
            self.open(&mut source, &call, shape, operands);
            let sizes = (["m", "n"], schedule.parts);
            tma_result.emit(&mut source, &call, [rows, columns], sizes);
            lines(&mut source, "}\nfinish_boxes();");
        } else {
            self.open(&mut source, &call, shape, operands);
            lines(&mut source, &recomputation[0]);
            let width = self.stored_width(shape);
            let (loops, raw) = match shape.is_transposed {
                true => each_transposed(width),
                false => (
                    each_accumulator(rows, columns, width, &recomputation[1]),
                    declare_raw(width),
                ),
            };
            let text = format!(
                "{loops}\nif (i >= m || j >= n) continue;\n{}\n{raw}",
                declare_result_offset(&mut source, &self.contraction),
            );
            lines(&mut source, &text);
            self.store_elements(&mut source, &call, shape, width);
            lines(&mut source, "}\n}\n}");
        }
        let grid = persistent_grid(self.work.gpu, self.tile_count(schedule), schedule.cluster);
        call.step(source.finish(grid, [schedule.threads(), 1, 1]))
    }

    /// Adds the function that recomputes NaN elements. Returns the declarations that it needs in each tile, and its
    /// call for a warp's part of a tile.
    fn recompute_nan(&self, source: &mut Source, call: &Call, left: &TmaOperand) -> [String; 2] {
        let [a, b] = self.read_operands(source, call);
        let taps = left.convolution.as_ref().map(|c| c.constants());
        let has_images = left.convolution.as_ref().is_some_and(|c| c.has_images());
        source.scope(&format!(
            "constexpr bool IMAGES_LEFT = {has_images};\n{}{}{}{}",
            taps.unwrap_or_default(),
            include_str!("../gemm_operands.cu"),
            self.term_function(),
            include_str!("../gemm_inside_warp.cu")
        ));
        let call = "sum_inside(staging, a, b, i1, j1, first, end);\n";
        [a.text + &b.text, call.into()]
    }

    /// Opens the loop over tiles, and emits the product of a tile.
    fn open(&self, source: &mut Source, call: &Call, shape: &Shape, operands: [&TmaOperand; 2]) {
        let ([m, n, k], cluster) = (shape.schedule.tile, shape.schedule.cluster);
        let mut copy = |side: usize, name, boxes| {
            let slot = self.sources[side].map_or(self.operands[side].0, Slot::Arg);
            operands[side].declare_copy(source, call, slot, name, boxes)
        };
        let shared = ([n / u16::from(cluster), k], cluster);
        let copies = copy(0, "a", ([m, k], 1)) + &copy(1, "b", shared);
        let (position, terms) = (self.place(shape, "tile_index"), self.terms(shape));
        let tiles = format!("rows * columns * batches * {}", shape.schedule.parts);
        let copy = format!(
            "\
{position}
{copies}{terms}
#pragma unroll 1
for (Index k0 = first; k0 < end; k0 += BK) copy_stage(shared, ring, copy_a, copy_b, rank, (int)i0, (int)j0, (int)k0);"
        );
        let (make, arguments) = match (self.sources[0], self.operands[0].1) {
            (Some(from), Some(prologue)) => (
                prologue::declare_in_registers(source, call, (&self.contraction, prologue), from),
                ", i0, make_a",
            ),
            _ => Default::default(),
        };
        let work = format!(
            "{position}\n{terms}\n{make}Acc sums[SUMS];\nmultiply(shared, ring, sums, first, end{arguments});"
        );
        let ring = "Ring<STAGES> ring;\nconst int rank = cluster_rank();";
        let ring = ["shared.barriers", ring, &tiles];
        let copies_end = match cluster {
            1 => "",
            _ => "drain(shared.barriers, ring);",
        };
        each_tile(source, ring, [&copy, copies_end, &work]);
    }

    /// Returns the transposed product, which has the same result, for emission by warpgroups only.
    pub(super) fn transposed(&self) -> Gemm<'_> {
        let [left, right] = self.operands;
        let [left_dtype, right_dtype] = self.dtypes;
        Gemm {
            contraction: self.contraction.clone().transposed(),
            operands: [right, left],
            dtype: right_dtype,
            dtypes: [right_dtype, left_dtype],
            m: self.n.clone(),
            n: self.m.clone(),
            k: self.k.clone(),
            batches: self.batches.clone(),
            total: self.total.clone(),
            tma_operands: None,
            sources: [self.sources[1], self.sources[0]],
            ..*self
        }
    }

    /// Returns the dtype of the argument that an operand is made of in registers.
    pub(super) fn source(&self, side: usize) -> Option<DType> {
        let (from, prologue) = self.sources[side].zip(self.operands[side].1)?;
        Some(prologue.args[from].dtype)
    }

    /// Returns the bytes of a block's shared memory. Arguments of prologues may be wider than operands.
    pub(super) fn shared(&self, schedule: &Gpu) -> u32 {
        let [rows, columns, terms] = schedule.tile.map(u32::from);
        let extra_bytes = |side: usize, lines: u32| {
            let source = self.source(side).map_or(0, DType::size);
            source.saturating_sub(self.dtype.size()) as u32 * lines * terms
        };
        let stage_bytes = extra_bytes(0, rows) + extra_bytes(1, columns);
        schedule.shared(self.dtype) + stage_bytes * u32::from(schedule.stages)
    }

    /// Returns the number of tiles of a cluster, if it is known.
    fn tile_count(&self, schedule: &Gpu) -> Option<i64> {
        let [rows, columns, _] = schedule.tile.map(i64::from);
        let rows = rows * i64::from(schedule.cluster);
        let batch_tiles =
            ceil(self.m.as_const()?, rows).saturating_mul(ceil(self.n.as_const()?, columns));
        let tiles = batch_tiles.saturating_mul(self.batches.as_const()?);
        Some(tiles.saturating_mul(schedule.parts.into()))
    }
}
