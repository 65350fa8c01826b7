//! Scans. Threads share columns, and chunks of lanes, whose number depends on the shape alone.
//!
//! Long lanes are split into chunks. A first pass computes the total of each chunk; prefix totals are the initial
//! values of chunks in the second pass.
//!
//! Elements are copied through a tile of register elements. Copy loops thus depend on the dtype alone, and scan loops
//! on the register type and the kind. Contiguous lanes of register elements need no tile.

use crate::combine::{Combine, LogSumExp, Max, Min, Number, Prod, Sum};
use crate::kernels::matmul::split;
use kiln_base::prim::ScanKind;
use kiln_base::{Compute, DType};
use kiln_kernel::affine::{ceil, extent};
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failure;
use kiln_kernel::simd::convert::{Mem, with_dtype};
use kiln_kernel::simd::{Features, Isa, Kernel, compiled};
use kiln_kernel::view::Arguments;
use kiln_kernel::work::{Call, LinkedKernel};
use kiln_plan as plan;
use std::marker::PhantomData;

/// A linked scan.
pub(crate) struct Scan {
    loops: Loops,
    reverse: bool,
    outer: i64,
    len: i64,
    inner: i64,
    /// The number of chunks of a lane.
    chunks: i64,
    /// The number of elements of a chunk.
    chunk: i64,
    x: usize,
    out: usize,
}

impl LinkedKernel for Scan {
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        // SAFETY: linked for arguments of these lengths.
        unsafe { self.run(&call.args, call.parallel) };
        Ok(None)
    }
}

/// The number of neighbouring lanes of a part, if the axis is not the last.
const COLUMNS: i64 = 512;
/// The minimum number of parts, below which lanes are split into chunks.
const MIN_PARTS: i64 = 64;
/// The minimum number of elements of a chunk.
const MIN_CHUNK: i64 = 1 << 15;
/// The cost of an element, in [`split`]'s multiply-adds.
const ELEMENT_COST: i64 = 8;

impl Scan {
    /// True if the CPU has code for the scan.
    pub(crate) fn computes(p: &plan::Scan) -> bool {
        let kind = p.dtype.is_float() || p.kind != ScanKind::LogSumExp;
        p.dtype.computes() && p.dtype != DType::Bool && kind
    }

    /// Links a scan.
    pub(crate) fn new(p: &plan::Scan, values: &[i64], level: Features) -> Result<Scan> {
        let (outer, len) = (extent(&p.outer, values)?, extent(&p.len, values)?);
        let inner = extent(&p.inner, values)?;
        let items = outer.saturating_mul(ceil(inner, COLUMNS)).max(1);
        let min_len = MIN_CHUNK / inner.clamp(1, COLUMNS);
        let chunk = ceil(len, (len / min_len).clamp(1, ceil(MIN_PARTS, items))).max(1);
        Ok(Scan {
            loops: Loops::new(p.dtype, p.kind, level),
            reverse: p.reverse,
            outer,
            len,
            inner,
            chunks: ceil(len, chunk),
            chunk,
            x: p.x as usize,
            out: p.out as usize,
        })
    }

    /// Runs the scan.
    ///
    /// # Safety
    /// `args` are the buffers it was linked for; see [`crate::tile::Runner::new`].
    pub(crate) unsafe fn run(&self, args: &Arguments, parallel: bool) {
        let columns = ceil(self.inner, COLUMNS);
        let (items, width) = (self.outer * columns, self.inner.min(COLUMNS));
        if items * self.chunks == 0 {
            return;
        }
        let part = |item: i64, lanes: i64, chunk: i64, carry, store: bool| {
            let (o, column, first) = (item / columns, item % columns * COLUMNS, chunk * self.chunk);
            let row = match self.reverse {
                true => self.len - 1 - first,
                false => first,
            };
            let offset = ((o * self.len + row) * self.inner + column) as usize * self.loops.size;
            let out = args.addresses()[self.out].wrapping_add(offset);
            let part = ColumnGroup {
                x: args.addresses()[self.x].wrapping_add(offset),
                out: store.then_some(out),
                carry,
                lanes: lanes as usize,
                pitch: (self.len * self.inner) as usize,
                rows: self.chunk.min(self.len - first) as usize,
                width: width.min(self.inner - column) as usize,
                step: if self.reverse {
                    -self.inner
                } else {
                    self.inner
                } as isize,
            };
            // SAFETY: linking checked the buffers' lengths; parts write different elements.
            unsafe { part.run(&self.loops) }
        };
        let work = self
            .chunk
            .saturating_mul(width)
            .saturating_mul(ELEMENT_COST);
        if self.chunks == 1 {
            return split(items, work, parallel, |from, to| match columns {
                1 => part(from, to - from, 0, None, true),
                _ => (from..to).for_each(|i| part(i, 1, 0, None, true)),
            });
        }
        // Carries hold the totals of each chunk's columns after the first pass, then their initial values.
        let parts = items * self.chunks;
        let mut carries = vec![0u64; (parts * width) as usize];
        let shared = Carries(carries.as_mut_ptr().cast());
        let carry = |i: i64| {
            let shared = &shared;
            shared
                .0
                .wrapping_add((i * width) as usize * self.loops.register)
        };
        // SAFETY: an element takes 8 bytes at most, so the list has room for all.
        unsafe { (self.loops.initialize)(carry(0), (parts * width) as usize) };
        let run_parts = |store: bool| {
            split(parts, work, parallel, |from, to| {
                for i in from..to {
                    part(i / self.chunks, 1, i % self.chunks, Some(carry(i)), store);
                }
            })
        };
        run_parts(false);
        for item in 0..items {
            let first = carry(item * self.chunks);
            // SAFETY: the item has a carry for each chunk and column.
            unsafe { (self.loops.scan_totals)(first, self.chunks as usize, width as usize) };
        }
        run_parts(true);
    }
}

/// The carries of all parts.
struct Carries(*mut u8);
// SAFETY: each part uses its own carries only.
unsafe impl Sync for Carries {}

/// Rows of neighbouring columns, in the order of the scan.
struct ColumnGroup {
    x: *mut u8,
    /// The result; `None` if only the totals are computed.
    out: Option<*mut u8>,
    /// The initial values of the columns, replaced by their final values; the identity if there is none.
    carry: Option<*mut u8>,
    lanes: usize,
    /// The number of elements from one lane to the next.
    pitch: usize,
    rows: usize,
    width: usize,
    /// The number of elements from row to row.
    step: isize,
}

impl ColumnGroup {
    /// Scans all lanes, a tile at a time.
    ///
    /// # Safety
    /// All elements and carries exist, and those that are written are this part's own.
    unsafe fn run(&self, loops: &Loops) {
        let (mut tile, mut local_carry) = ([0u64; TILE], [0u64; COLUMNS as usize]);
        let tile = tile.as_mut_ptr().cast::<u8>();
        let size = loops.size as isize;
        let is_line = self.step.abs() == 1;
        let max_rows = (TILE / self.width).max(1);
        // Short lanes are contiguous, and share a tile.
        let lanes_per_tile = (TILE / (self.rows * self.width)).max(1);
        for lane in (0..self.lanes).step_by(lanes_per_tile) {
            let lanes = lanes_per_tile.min(self.lanes - lane);
            let carry = self.carry.unwrap_or(local_carry.as_mut_ptr().cast());
            if self.carry.is_none() {
                // SAFETY: there is room for the most columns of a part.
                unsafe { (loops.initialize)(carry, self.width) };
            }
            // Descending rows start in the last lane.
            let lane = if self.step < 0 {
                lane + lanes - 1
            } else {
                lane
            };
            for first in (0..self.rows).step_by(max_rows) {
                let offset = (lane * self.pitch) as isize + first as isize * self.step;
                let rows = max_rows.min(self.rows - first);
                let row_count = lanes * rows;
                let address = |x: *mut u8| x.wrapping_offset(offset * size);
                let memory = |x: *mut u8| TileCopy {
                    memory: address(x),
                    tile,
                    // An ascending line is one row.
                    rows: if self.step == 1 { 1 } else { row_count },
                    width: if self.step == 1 {
                        row_count
                    } else {
                        self.width
                    },
                    step: self.step,
                };
                let block = LaneBlock {
                    from: tile,
                    to: tile,
                    carry,
                    lanes,
                    rows,
                    width: self.width,
                    is_line,
                    end_only: self.out.is_none(),
                };
                // SAFETY: the caller's; a tile has room for these rows.
                unsafe {
                    if loops.direct && self.step == 1 {
                        (loops.scan)(LaneBlock {
                            from: address(self.x),
                            to: self.out.map_or(tile, address),
                            ..block
                        });
                        continue;
                    }
                    (loops.load)(memory(self.x));
                    (loops.scan)(block);
                    if let Some(out) = self.out {
                        (loops.store)(memory(out));
                    }
                }
            }
        }
    }
}

/// The number of runs of a tile, which are scanned independently.
const RUNS: usize = 8;
/// The number of elements of a run.
const RUN: usize = 128;
/// The number of elements of a tile.
const TILE: usize = RUNS * RUN;

/// The loops of a dtype and a kind.
#[derive(Copy, Clone)]
struct Loops {
    /// The bytes of an element in memory.
    size: usize,
    /// The bytes of a register element.
    register: usize,
    /// True if elements in memory are register elements.
    direct: bool,
    load: unsafe fn(TileCopy),
    store: unsafe fn(TileCopy),
    scan: unsafe fn(LaneBlock),
    /// Fills this number of carries with the identity element.
    initialize: unsafe fn(*mut u8, usize),
    /// Replaces the totals of chunks with their initial values, for these numbers of chunks and columns.
    scan_totals: unsafe fn(*mut u8, usize, usize),
}

impl Loops {
    /// Returns the loops of a scan for which [`Scan::computes`] is true.
    fn new(dtype: DType, kind: ScanKind, level: Features) -> Loops {
        let copies = with_dtype!(dtype, M => Loops {
            size: size_of::<<M as Mem>::Raw>(),
            register: size_of::<<M as Mem>::C>(),
            direct: <M as Mem>::DIRECT,
            load: move_rows::<M, false>,
            store: move_rows::<M, true>,
            scan: |_| {},
            initialize: initialize::<i32, Sum>,
            scan_totals: scan_totals::<i32, Sum>,
        });
        match (dtype.compute(), kind) {
            (Compute::F32, ScanKind::LogSumExp) => {
                copies.with::<f32, LogSumExp>(Features::BASELINE)
            }
            (Compute::F64, ScanKind::LogSumExp) => {
                copies.with::<f64, LogSumExp>(Features::BASELINE)
            }
            (Compute::F32, kind) => copies.with_kind::<f32>(kind, level),
            (Compute::F64, kind) => copies.with_kind::<f64>(kind, level),
            (Compute::I64, kind) => copies.with_kind::<i64>(kind, level),
            (_, kind) => copies.with_kind::<i32>(kind, level),
        }
    }

    fn with_kind<C: Number>(self, kind: ScanKind, level: Features) -> Loops {
        match kind {
            ScanKind::Sum | ScanKind::LogSumExp => self.with::<C, Sum>(level),
            ScanKind::Prod => self.with::<C, Prod>(level),
            ScanKind::Max => self.with::<C, Max>(level),
            ScanKind::Min => self.with::<C, Min>(level),
        }
    }

    fn with<C: Number, K: Combine>(self, level: Features) -> Loops {
        Loops {
            scan: compiled::<ScanLanes<C, K>, _>(level),
            initialize: initialize::<C, K>,
            scan_totals: scan_totals::<C, K>,
            ..self
        }
    }
}

/// Rows of neighbouring elements in memory, and the tile that holds them contiguously.
struct TileCopy {
    memory: *mut u8,
    tile: *mut u8,
    rows: usize,
    width: usize,
    /// The number of elements from row to row in memory.
    step: isize,
}

/// Loads rows into the tile, or stores them from there.
///
/// # Safety
/// The rows exist, in memory and in the tile.
unsafe fn move_rows<M: Mem, const STORES: bool>(m: TileCopy) {
    let mut tile = m.tile.cast::<M::C>();
    for row in 0..m.rows as isize {
        let memory = m.memory.cast::<M::Raw>().wrapping_offset(row * m.step);
        for j in 0..m.width {
            // SAFETY: the caller's.
            unsafe {
                match STORES {
                    true => *memory.add(j) = M::store(*tile.add(j)),
                    false => *tile.add(j) = M::load(*memory.add(j)),
                }
            }
        }
        tile = tile.wrapping_add(m.width);
    }
}

/// # Safety
/// There are `count` carries.
unsafe fn initialize<C: Number, K: Combine>(carries: *mut u8, count: usize) {
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts_mut(carries.cast::<C>(), count) }.fill(K::identity());
}

/// # Safety
/// There is a carry for each chunk and column.
unsafe fn scan_totals<C: Number, K: Combine>(carries: *mut u8, chunks: usize, width: usize) {
    // SAFETY: the caller's.
    let carries = unsafe { std::slice::from_raw_parts_mut(carries.cast::<C>(), chunks * width) };
    for column in 0..width {
        let mut total = K::identity::<C>();
        for chunk in carries.chunks_exact_mut(width) {
            let chunk_total = std::mem::replace(&mut chunk[column], total);
            total = K::combine(total, chunk_total);
        }
    }
}

/// Contiguous lanes of register elements, and the carries of their columns.
struct LaneBlock {
    from: *const u8,
    /// The destination: the source itself, or for rows of one element possibly other memory.
    to: *mut u8,
    /// The carry of the first lane; other lanes start with the identity.
    carry: *mut u8,
    lanes: usize,
    /// The rows of a lane.
    rows: usize,
    width: usize,
    /// True for rows of one element that are adjacent in memory, whose combinations may be regrouped.
    is_line: bool,
    /// True if only the carries are used.
    end_only: bool,
}

/// The kernel that scans lanes.
struct ScanLanes<C, K>(PhantomData<(C, K)>);
impl<C: Number, K: Combine> Kernel<LaneBlock> for ScanLanes<C, K> {
    #[inline(always)]
    unsafe fn run<I: Isa>(b: LaneBlock) {
        let len = b.rows * b.width;
        // SAFETY: there is a carry for each column.
        let carry = unsafe { std::slice::from_raw_parts_mut(b.carry.cast::<C>(), b.width) };
        for lane in 0..b.lanes {
            // SAFETY: the lanes have these elements.
            unsafe {
                let from = b.from.cast::<C>().add(lane * len);
                Self::lane(&b, from, b.to.cast::<C>().add(lane * len), carry);
            }
            if b.lanes > 1 {
                carry.fill(K::identity());
            }
        }
    }
}

impl<C: Number, K: Combine> ScanLanes<C, K> {
    /// # Safety
    /// There are as many elements as the block has in a lane.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "zipped runs are not unrolled")]
    unsafe fn lane(b: &LaneBlock, from: *const C, to: *mut C, carry: &mut [C]) {
        let len = b.rows * b.width;
        // SAFETY: every index is below `len`.
        unsafe {
            if b.width > 1 {
                let tile = std::slice::from_raw_parts_mut(to, len);
                for row in tile.chunks_exact_mut(b.width) {
                    for (x, carry) in row.iter_mut().zip(&mut *carry) {
                        *carry = K::combine(*carry, *x);
                        *x = *carry;
                    }
                }
                return;
            }
            let mut total = carry[0];
            if !(K::REGROUPS && b.is_line && len == TILE) {
                for i in 0..len {
                    total = K::combine(total, *from.add(i));
                    *to.add(i) = total;
                }
                carry[0] = total;
                return;
            }
            let mut ends = [K::identity::<C>(); RUNS];
            if b.end_only {
                for row in (0..TILE).step_by(RUNS) {
                    for (r, end) in ends.iter_mut().enumerate() {
                        *end = K::combine(*end, *from.add(row + r));
                    }
                }
                carry[0] = ends.into_iter().fold(total, K::combine);
                return;
            }
            let mut scanned = [[K::identity::<C>(); RUN]; RUNS];
            for i in 0..RUN {
                for r in 0..RUNS {
                    ends[r] = K::combine(ends[r], *from.add(r * RUN + i));
                    scanned[r][i] = ends[r];
                }
            }
            for r in 0..RUNS {
                for i in 0..RUN {
                    *to.add(r * RUN + i) = K::combine(total, scanned[r][i]);
                }
                total = K::combine(total, ends[r]);
            }
            carry[0] = total;
        }
    }
}
