//! The schedules of a contraction: which are legal, and which of them a model of their cycles prefers.

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
/// The maximum cycles of a candidate, as a multiple of those of the best.
const MAX_RELATIVE_CYCLES: f64 = 2.5;
/// The bytes above which operands take a large part of L2.
const LARGE_OPERANDS: i64 = 8 << 20;
/// The maximum number of accumulators of a thread that computes a costly operand.
const MAX_COSTLY_SUMS: u16 = 64;

/// The maximum rows of a tile of a transposed product without prologue.
const MAX_FEW_ROWS: i64 = 64;
/// The maximum number of rows or columns with which tensor cores gain nothing.
const MAX_NARROW: i64 = 8;
/// The maximum number of terms of a sum that is not worth rounding operands for.
const MAX_SHORT_TERMS: i64 = 31;

impl Gemm<'_> {
    /// Returns the instructions that represent the operands exactly.
    pub(super) fn exact(&self) -> Vec<Multiply> {
        let plain = Multiply::exact(self.dtype);
        let narrow = self.dtype.is_half() || self.dtype.is_byte();
        let by_warpgroups = narrow && self.may_be_by_warpgroups();
        [plain]
            .into_iter()
            .chain(by_warpgroups.then_some(Multiply::Wgmma))
            .collect()
    }

    /// True if TMA can load the operands, one at most for a prologue, and no epilogue needs whole rows.
    fn may_be_by_warpgroups(&self) -> bool {
        let is_one_plain = self.sources.iter().any(Option::is_none);
        self.tma_operands.is_some() && is_one_plain && self.rows().is_none()
    }

    /// Returns the instructions that round operands. Where sums are short, or rows or columns few, tensor cores gain
    /// nothing. Only for long sums is the error bound of the split numbers near that of a plain sum.
    pub(super) fn rounded(&self) -> Vec<Multiply> {
        let above = |d: &Dim, n: i64| d.as_const().is_none_or(|size| size > n);
        let matrices = above(&self.m, MAX_NARROW) && above(&self.n, MAX_NARROW);
        let mut all = Vec::new();
        if self.dtype == DType::F32 && matrices && above(&self.k, MAX_SHORT_TERMS) {
            all.push(Multiply::Tf32);
            all.extend(self.may_be_by_warpgroups().then_some(Multiply::WgmmaTf32));
            all.extend(self.k.as_const().map(|_| Multiply::Tf32x3));
        }
        all
    }

    /// Returns the legal schedules of some instructions, fewest cycles first; one at least.
    pub(super) fn candidates(&self, multiply: &[Multiply]) -> Vec<Gpu> {
        let [m, n, k] = self.sizes(Multiply::Fma);
        let bytes = (m + n)
            .saturating_mul(k)
            .saturating_mul(self.dtype.size() as i64);
        let of = |m: &Multiply| {
            let terms = self.terms_of(*m).as_const();
            schedules(*m, self.dtype, terms, bytes > LARGE_OPERANDS)
        };
        let all = multiply.iter().flat_map(of);
        let all = all.map(|s| self.fitting(s)).filter(|s| self.gains(s));
        let all = all.flat_map(|s| self.with_parts(s));
        let mut all: Vec<Gpu> = all.filter(|s| self.allows(s)).collect();
        all.sort_by(|a, b| self.cycles(a).total_cmp(&self.cycles(b)));
        all.truncate(MAX_CANDIDATES);
        if let Some(best) = all.first().copied() {
            let most = MAX_RELATIVE_CYCLES * self.cycles(&best);
            all.retain(|s| self.cycles(s) <= most);
            // Of the best one: fewer stages, so that more blocks are resident; another order of tiles.
            let fewer = Gpu {
                stages: best.stages - 1,
                ..best
            };
            let other = Gpu {
                raster: if best.raster == 1 { 4 } else { 1 },
                ..best
            };
            let more = [fewer, other].into_iter();
            all.extend(more.filter(|s| *s != best && self.allows(s)));
        }
        all
    }

    /// Returns a schedule that is legal on every machine.
    pub(super) fn smallest(&self) -> Gpu {
        let multiply = Multiply::exact(self.dtype);
        let columns = self.columns().unwrap_or(0);
        let all = schedules(multiply, self.dtype, self.k.as_const(), false).into_iter();
        let fits = all.filter(|s| i64::from(s.tile[1]) >= columns);
        let least = fits.min_by_key(|s| (s.shared(self.dtype), s.registers(self.dtype)));
        least.expect("rows that a block holds fit into a tile")
    }

    /// Returns the schedule, and also variants with sums in parts, where whole sums leave multiprocessors without a
    /// block.
    fn with_parts(&self, schedule: Gpu) -> Vec<Gpu> {
        let mut all = vec![schedule];
        let k = self.terms_of(schedule.multiply);
        let known = [&self.m, &self.n, k, &self.batches].map(Dim::as_const);
        let [Some(m), Some(n), Some(k), Some(batches)] = known else {
            return all;
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
        if blocks <= 0 || self.rows().is_some() {
            return all;
        }
        let resident = i64::from(schedule.resident(self.work.gpu, self.dtype));
        let most = (2 * resident.min(4) * self.work.gpu.busy() / blocks).min(k / MIN_SPLIT_TERMS);
        for parts in (1..=most.max(1).ilog2()).map(|p| 1u16 << p.min(8)) {
            let mut cut = Gpu { parts, ..schedule };
            cut.parts = ceil(k, self.chunk(&cut)) as u16;
            if !all.contains(&cut) {
                all.push(cut);
            }
        }
        all
    }

    /// True if a schedule is legal, and threads have enough registers to find and hold elements.
    fn allows(&self, schedule: &Gpu) -> bool {
        let ([m, n, depth], [rows, columns]) = (schedule.tile, schedule.warp);
        let holds = self.columns().is_none_or(|columns| columns <= n.into());
        let fits = match schedule.multiply {
            Multiply::Fma => {
                let few = self.dtype.size() == 8 || self.costly;
                let loads = u32::from(m.max(n)) * u32::from(depth) / schedule.threads().max(1);
                (!few || rows * columns <= 16) && (!self.costly || loads <= 8)
            }
            multiply if multiply.is_by_warpgroups() => self.suits_warpgroups(schedule),
            _ => !self.costly || rows * columns / 32 <= MAX_COSTLY_SUMS,
        };
        fits && holds && schedule.check(self.work.gpu, self.dtype).is_ok()
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

    /// Returns a schedule, of warpgroups with as many stages as fit into shared memory.
    fn fitting(&self, mut schedule: Gpu) -> Gpu {
        let most = self.work.gpu.most_shared;
        let by_warpgroups = schedule.multiply.is_by_warpgroups();
        while by_warpgroups && schedule.stages > 2 && self.shared(&schedule) > most {
            schedule.stages -= 1;
        }
        schedule
    }

    /// True unless a transposed product of many rows has no prologue to make its left operand.
    fn gains(&self, schedule: &Gpu) -> bool {
        let many = schedule.is_transposed() && i64::from(schedule.tile[0]) > MAX_FEW_ROWS;
        !many || self.sources[1].is_some()
    }

    /// Returns the rows, columns and terms; unknown sizes are guessed.
    fn sizes(&self, multiply: Multiply) -> [i64; 3] {
        let k = self.terms_of(multiply);
        [&self.m, &self.n, k].map(|d| d.as_const().unwrap_or(UNKNOWN_SIZE))
    }

    /// True if a schedule from outside is legal.
    pub(super) fn is_legal(&self, schedule: &Gpu) -> bool {
        let multiplies = self.exact().contains(&schedule.multiply)
            || self.rounded().contains(&schedule.multiply);
        let cuts = schedule.parts == 1 || self.k.as_const().is_some() && self.rows().is_none();
        multiplies && cuts && self.allows(schedule)
    }

    fn cycles(&self, schedule: &Gpu) -> f64 {
        let work = ContractionSizes {
            dtype: self.dtype,
            batches: self.batches.as_const().unwrap_or(1),
            sizes: self.sizes(schedule.multiply),
            finding: match schedule.multiply.is_by_warpgroups() {
                true => self.making,
                false => self.finding,
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
        let all = [&self.m, &self.n, &self.k, &self.batches];
        let known = all.into_iter().all(|d| d.as_const().is_some());
        known.then(|| self.cycles(schedule))
    }
}
