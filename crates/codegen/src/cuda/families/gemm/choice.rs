//! The choice of schedules for a contraction: the legal ones with the fewest cycles by a model.

use super::Gemm;
use crate::cuda::families::gemm_tile::schedules;
use crate::cuda::families::warpgroup::span;
use kiln_base::{DType, Dim, ceil};
use kiln_plan::schedule::{ContractionSizes, Gpu, Multiply};

/// The minimum number of terms of a split-K part.
const MIN_SPLIT_TERMS: i64 = 128;
/// The assumed size of an unknown extent.
const UNKNOWN_SIZE: i64 = 1024;
/// The maximum number of candidates of an instruction.
const MAX_CANDIDATES: usize = 6;
/// The maximum cycles of a candidate, relative to the best.
const MAX_RELATIVE_CYCLES: f64 = 2.5;
/// The bytes above which operands take a large part of L2.
const LARGE_OPERANDS: i64 = 8 << 20;
/// The maximum number of accumulators of a thread that computes a costly operand.
const MAX_COSTLY_ACCUMULATORS: u16 = 64;

/// The maximum rows of a tile of a transposed product without prologue.
const MAX_FEW_ROWS: i64 = 64;
/// The maximum number of rows or columns with which tensor cores gain nothing.
const MAX_NARROW: i64 = 8;
/// The maximum number of terms with which tensor cores gain nothing.
const MAX_SHORT_TERMS: i64 = 31;

impl Gemm<'_> {
    /// Returns the instructions that represent the operands exactly.
    pub(super) fn exact(&self) -> Vec<Multiply> {
        let plain = Multiply::exact(self.dtype);
        let is_narrow = self.dtype.is_half() || self.dtype.is_byte();
        let by_warpgroups = is_narrow && self.may_use_warpgroups();
        [plain]
            .into_iter()
            .chain(by_warpgroups.then_some(Multiply::Wgmma))
            .collect()
    }

    /// True if TMA can load the operands, at most one has a prologue, and no epilogue reduces rows.
    fn may_use_warpgroups(&self) -> bool {
        let is_one_plain = self.sources.iter().any(Option::is_none);
        self.tma_operands.is_some() && is_one_plain && self.row_epilogue().is_none()
    }

    /// Returns the instructions that round operands, unless the product is too small for tensor cores. The error bound
    /// of TF32x3 needs the number of terms.
    pub(super) fn rounded(&self) -> Vec<Multiply> {
        let exceeds = |d: &Dim, n: i64| d.as_const().is_none_or(|size| size > n);
        let is_wide = exceeds(&self.m, MAX_NARROW) && exceeds(&self.n, MAX_NARROW);
        let mut instructions = Vec::new();
        if self.dtype == DType::F32 && is_wide && exceeds(&self.k, MAX_SHORT_TERMS) {
            instructions.push(Multiply::Tf32);
            instructions.extend(self.may_use_warpgroups().then_some(Multiply::WgmmaTf32));
            instructions.extend(self.k.as_const().map(|_| Multiply::Tf32x3));
        }
        instructions
    }

    /// Returns the legal schedules of some instructions, fewest cycles first.
    pub(super) fn candidates(&self, multiply: &[Multiply]) -> Vec<Gpu> {
        let [m, n, k] = self.sizes(Multiply::Fma);
        let bytes = (m + n)
            .saturating_mul(k)
            .saturating_mul(self.dtype.size() as i64);
        let schedules_of = |m: &Multiply| {
            let terms = self.terms_of(*m).as_const();
            schedules(*m, self.dtype, terms, bytes > LARGE_OPERANDS)
        };
        let schedules = multiply.iter().flat_map(schedules_of);
        let schedules = schedules.map(|s| self.reduce_stages(s));
        let schedules = schedules.filter(|s| self.is_useful(s));
        let schedules = schedules.flat_map(|s| self.with_parts(s));
        let mut candidates: Vec<Gpu> = schedules.filter(|s| self.allows(s)).collect();
        candidates.sort_by(|a, b| self.cycles(a).total_cmp(&self.cycles(b)));
        candidates.truncate(MAX_CANDIDATES);
        if let Some(best) = candidates.first().copied() {
            let max_cycles = MAX_RELATIVE_CYCLES * self.cycles(&best);
            candidates.retain(|s| self.cycles(s) <= max_cycles);
            // With fewer stages, more blocks are resident.
            let fewer_stages = Gpu {
                stages: best.stages - 1,
                ..best
            };
            let other_raster = Gpu {
                raster: if best.raster == 1 { 4 } else { 1 },
                ..best
            };
            let variants = [fewer_stages, other_raster].into_iter();
            candidates.extend(variants.filter(|s| *s != best && self.allows(s)));
        }
        candidates
    }

    /// Returns a schedule that is legal on every machine.
    pub(super) fn smallest(&self) -> Gpu {
        let multiply = Multiply::exact(self.dtype);
        let columns = self.row_length().unwrap_or(0);
        let schedules = schedules(multiply, self.dtype, self.k.as_const(), false).into_iter();
        let schedules = schedules.filter(|s| i64::from(s.tile[1]) >= columns);
        let smallest = schedules.min_by_key(|s| (s.shared(self.dtype), s.registers(self.dtype)));
        smallest.expect("a tile has the columns of a row epilogue")
    }

    /// Returns a schedule and, if it has too few blocks for the GPU, variants with split K.
    fn with_parts(&self, schedule: Gpu) -> Vec<Gpu> {
        let mut schedules = vec![schedule];
        let k = self.terms_of(schedule.multiply);
        let sizes = [&self.m, &self.n, k, &self.batches].map(Dim::as_const);
        let [Some(m), Some(n), Some(k), Some(batches)] = sizes else {
            return schedules;
        };
        // Blocks of clusters are one below the other in the product that is computed.
        let ([m, n], [rows, columns, _]) = match schedule.is_transposed() {
            true => ([n, m], schedule.transposed().tile.map(i64::from)),
            false => ([m, n], schedule.tile.map(i64::from)),
        };
        let cluster = i64::from(schedule.cluster);
        let blocks = (cluster * ceil(m, rows * cluster))
            .saturating_mul(ceil(n, columns))
            .saturating_mul(batches);
        if blocks <= 0 || self.row_epilogue().is_some() {
            return schedules;
        }
        let resident = i64::from(schedule.resident(self.work.gpu, self.dtype));
        let max = (2 * resident.min(4) * self.work.gpu.busy() / blocks).min(k / MIN_SPLIT_TERMS);
        for parts in (1..=max.max(1).ilog2()).map(|p| 1u16 << p.min(8)) {
            let mut split = Gpu { parts, ..schedule };
            split.parts = ceil(k, self.chunk(&split)) as u16;
            if !schedules.contains(&split) {
                schedules.push(split);
            }
        }
        schedules
    }

    /// True if a schedule is legal, and registers suffice.
    fn allows(&self, schedule: &Gpu) -> bool {
        let ([m, n, depth], [rows, columns]) = (schedule.tile, schedule.warp);
        let has_rows = self.row_length().is_none_or(|columns| columns <= n.into());
        let fits = match schedule.multiply {
            Multiply::Fma => {
                let few_registers = self.dtype.size() == 8 || self.costly;
                let loads = u32::from(m.max(n)) * u32::from(depth) / schedule.threads().max(1);
                (!few_registers || rows * columns <= 16) && (!self.costly || loads <= 8)
            }
            multiply if multiply.is_by_warpgroups() => self.suits_warpgroups(schedule),
            _ => !self.costly || rows * columns / 32 <= MAX_COSTLY_ACCUMULATORS,
        };
        fits && has_rows && schedule.check(self.work.gpu, self.dtype).is_ok()
    }

    /// True if the right operand of instructions is neither pixels nor made by a prologue, and a block brings as many of
    /// its rows as a box has where these are contiguous.
    fn suits_warpgroups(&self, schedule: &Gpu) -> bool {
        let right = usize::from(!schedule.is_transposed());
        let holds_boxes = self.tma_operands.as_ref().is_some_and(|(operands, _)| {
            let is_matrix = right == 1 || operands[right].convolution.is_none();
            let brought = schedule.tile[right] / u16::from(schedule.cluster);
            is_matrix && (operands[right].along_k || brought >= span(self.dtype))
        });
        let fits = self.shared(schedule) <= self.work.gpu.most_shared;
        holds_boxes && fits && self.sources[right].is_none()
    }

    /// Reduces the stages of a schedule of warpgroups until they fit into shared memory.
    fn reduce_stages(&self, mut schedule: Gpu) -> Gpu {
        let max_bytes = self.work.gpu.most_shared;
        let by_warpgroups = schedule.multiply.is_by_warpgroups();
        while by_warpgroups && schedule.stages > 2 && self.shared(&schedule) > max_bytes {
            schedule.stages -= 1;
        }
        schedule
    }

    /// True unless the schedule is that of a transposed product of many rows without prologue.
    fn is_useful(&self, schedule: &Gpu) -> bool {
        let has_many_rows = schedule.is_transposed() && i64::from(schedule.tile[0]) > MAX_FEW_ROWS;
        !has_many_rows || self.sources[1].is_some()
    }

    /// Returns the rows, columns and terms, with an assumption for unknown sizes.
    fn sizes(&self, multiply: Multiply) -> [i64; 3] {
        let k = self.terms_of(multiply);
        [&self.m, &self.n, k].map(|d| d.as_const().unwrap_or(UNKNOWN_SIZE))
    }

    /// True if a requested schedule is legal.
    pub(super) fn is_legal(&self, schedule: &Gpu) -> bool {
        let has_instruction = self.exact().contains(&schedule.multiply)
            || self.rounded().contains(&schedule.multiply);
        let may_split = self.k.as_const().is_some() && self.row_epilogue().is_none();
        has_instruction && (schedule.parts == 1 || may_split) && self.allows(schedule)
    }

    fn cycles(&self, schedule: &Gpu) -> f64 {
        let (batches, sizes) = (
            self.batches.as_const().unwrap_or(1),
            self.sizes(schedule.multiply),
        );
        let elements = |side: usize| {
            let lines = batches.saturating_mul(sizes[side]).saturating_mul(sizes[2]);
            let len = self.contraction.operands[side].len.as_const();
            len.map_or(lines, |len| len.min(lines))
        };
        let work = ContractionSizes {
            dtype: self.dtype,
            batches,
            sizes,
            elements: [0, 1].map(elements),
            instructions: match schedule.multiply.is_by_warpgroups() {
                true => self.prologue_instructions,
                false => self.load_instructions,
            },
            element_bytes: [0, 1].map(|side| match self.source(side) {
                Some(source) if schedule.multiply.is_by_warpgroups() => source.size(),
                _ => self.dtype.size(),
            }),
        };
        schedule.cycles(self.work.gpu, &work)
    }

    /// Returns the default schedule and its cycles, if sizes are known.
    pub(in crate::cuda::families) fn preferred(&self) -> Option<(Gpu, f64)> {
        let schedule = self.candidates(&self.exact()).first().copied()?;
        Some((schedule, self.predicted(&schedule)?))
    }

    /// Returns the cycles of a schedule, if sizes are known.
    pub(super) fn predicted(&self, schedule: &Gpu) -> Option<f64> {
        let sizes = [&self.m, &self.n, &self.k, &self.batches];
        let is_known = sizes.into_iter().all(|d| d.as_const().is_some());
        is_known.then(|| self.cycles(schedule))
    }
}
