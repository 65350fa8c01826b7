//! Running results: columns and chunks of lanes, whose number depends on the shape alone, spread over the
//! pool.
//!
//! A long lane is cut into chunks. What each chunk combines to is found first; combined in order, these
//! are what the chunks start from.

use super::work::{Call, Work};
use crate::combine::{Combine, LogSumExp, Max, Min, Number, Prod, Sum, with_number};
use crate::error::Result;
use crate::kernels::matmul::{Args, split};
use crate::simd::convert::{self as c, Mem};
use crate::simd::{Isa, Kernel, Level, baseline, compiled};
use crate::tile::Failure;
use crate::tile::affine::{ceil, extent};
use kiln_base::DType;
use kiln_base::prim::ScanKind;
use kiln_plan as plan;
use std::marker::PhantomData;

/// A linked scan.
pub(crate) struct Scan {
    dtype: DType,
    kind: ScanKind,
    reverse: bool,
    outer: i64,
    len: i64,
    inner: i64,
    /// Chunks of a lane, and the elements of one.
    chunks: i64,
    chunk: i64,
    x: usize,
    out: usize,
    level: Level,
}

impl Work for Scan {
    unsafe fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        // SAFETY: linked for arguments of these lengths; its parts are apart where `parallel` says so.
        unsafe { self.run(call.args, call.parallel) };
        Ok(None)
    }
}

/// Lanes side by side that one part works on, where the axis is not the last.
const COLUMNS: i64 = 512;
/// Lanes are cut where there are fewer parts than this...
const PARTS: i64 = 64;
/// ...into chunks of no fewer elements than this.
const CHUNK: i64 = 1 << 15;
/// How many of [`split`]'s multiply-adds an element is worth.
const WORK: i64 = 8;

impl Scan {
    /// Whether there is code for it.
    pub(crate) fn computes(p: &plan::Scan) -> bool {
        let kind = p.dtype.is_float() || p.kind != ScanKind::LogSumExp;
        p.dtype.computes() && p.dtype != DType::Bool && kind
    }

    /// Links a scan.
    pub(crate) fn new(p: &plan::Scan, values: &[i64], level: Level) -> Result<Scan> {
        let (outer, len) = (extent(&p.outer, values)?, extent(&p.len, values)?);
        let inner = extent(&p.inner, values)?;
        let items = outer.saturating_mul(ceil(inner, COLUMNS)).max(1);
        let least = CHUNK / inner.clamp(1, COLUMNS);
        let chunk = ceil(len, (len / least).clamp(1, ceil(PARTS, items))).max(1);
        Ok(Scan {
            dtype: p.dtype,
            kind: p.kind,
            reverse: p.reverse,
            outer,
            len,
            inner,
            chunks: ceil(len, chunk),
            chunk,
            x: p.x as usize,
            out: p.out as usize,
            level,
        })
    }

    /// Runs it.
    ///
    /// # Safety
    /// `args` are the buffers it was linked for; see [`crate::tile::Runner::new`].
    pub(crate) unsafe fn run(&self, args: &[*mut u8], parallel: bool) {
        // SAFETY: `args` are those it was linked for, with elements of this dtype.
        unsafe {
            match (self.kind, self.dtype) {
                (ScanKind::Sum, _) => self.run_kind::<Sum>(args, parallel),
                (ScanKind::Prod, _) => self.run_kind::<Prod>(args, parallel),
                (ScanKind::Max, _) => self.run_kind::<Max>(args, parallel),
                (ScanKind::Min, _) => self.run_kind::<Min>(args, parallel),
                (ScanKind::LogSumExp, DType::F64) => self.run_slow::<c::F64>(args, parallel),
                (ScanKind::LogSumExp, DType::F16) => self.run_slow::<c::F16>(args, parallel),
                (ScanKind::LogSumExp, DType::BF16) => self.run_slow::<c::BF16>(args, parallel),
                (ScanKind::LogSumExp, _) => self.run_slow::<c::F32>(args, parallel),
            }
        }
    }

    /// # Safety
    /// As [`Scan::run`].
    unsafe fn run_kind<K: Combine>(&self, args: &[*mut u8], parallel: bool) {
        with_number!(
            self.dtype,
            M => {
                let run = compiled::<ScanPart<M, K>, _>(self.level);
                // SAFETY: the elements are `M`, and the machine has the level that this was linked for.
                unsafe { self.run_typed::<M, K>(run, args, parallel) }
            },
            {
                let run = baseline::<ScanPart<M, K>, _>();
                // SAFETY: the elements are `M`, and every machine has the baseline.
                unsafe { self.run_typed::<M, K>(run, args, parallel) }
            }
        )
    }

    /// # Safety
    /// As [`Scan::run`]; the elements are `M`.
    unsafe fn run_slow<M: Mem>(&self, args: &[*mut u8], parallel: bool)
    where
        M::C: Number,
    {
        let run = baseline::<ScanPart<M, LogSumExp>, _>();
        // SAFETY: the elements are `M`, and every machine has the baseline.
        unsafe { self.run_typed::<M, LogSumExp>(run, args, parallel) }
    }

    /// # Safety
    /// As [`Scan::run`]; the elements are `M`, and the machine has the level of `run`.
    unsafe fn run_typed<M: Mem, K: Combine>(
        &self,
        run: unsafe fn(Part<M>),
        args: &[*mut u8],
        parallel: bool,
    ) where
        M::C: Number,
    {
        let columns = ceil(self.inner, COLUMNS);
        let (items, width) = (self.outer * columns, self.inner.min(COLUMNS));
        if items * self.chunks == 0 {
            return;
        }
        let args = Args(args);
        let part = |item: i64, lanes: i64, chunk: i64, carry, store: bool| {
            let args = &args;
            let (o, column, first) = (item / columns, item % columns * COLUMNS, chunk * self.chunk);
            let row = match self.reverse {
                true => self.len - 1 - first,
                false => first,
            };
            let at = ((o * self.len + row) * self.inner + column) as usize;
            let out = args.0[self.out].cast::<M::Raw>().wrapping_add(at);
            // SAFETY: linking checked the buffers' lengths; parts write different places.
            unsafe {
                run(Part {
                    x: args.0[self.x].cast::<M::Raw>().wrapping_add(at),
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
                })
            }
        };
        let work = self.chunk.saturating_mul(width).saturating_mul(WORK);
        if self.chunks == 1 {
            return split(items, work, parallel, |from, to| match columns {
                1 => part(from, to - from, 0, None, true),
                _ => (from..to).for_each(|i| part(i, 1, 0, None, true)),
            });
        }
        // What the columns of each chunk combine to, and then what they start from.
        let parts = items * self.chunks;
        let mut carries = vec![K::identity::<M::C>(); (parts * width) as usize];
        let shared = Carries(carries.as_mut_ptr());
        let all = |store: bool| {
            split(parts, work, parallel, |from, to| {
                for i in from..to {
                    let shared = &shared;
                    let carry = shared.0.wrapping_add((i * width) as usize);
                    part(i / self.chunks, 1, i % self.chunks, Some(carry), store);
                }
            })
        };
        all(false);
        for lanes in carries.chunks_exact_mut((self.chunks * width) as usize) {
            for column in 0..width as usize {
                let mut total = K::identity::<M::C>();
                for chunk in lanes.chunks_exact_mut(width as usize) {
                    let own = std::mem::replace(&mut chunk[column], total);
                    total = K::combine(total, own);
                }
            }
        }
        all(true);
    }
}

/// The carries of all parts.
struct Carries<C>(*mut C);
// SAFETY: each part uses its own only.
unsafe impl<C> Sync for Carries<C> {}

/// Rows of neighbouring columns, in the order of the scan.
struct Part<M: Mem> {
    x: *const M::Raw,
    /// `None` if only the end is wanted.
    out: Option<*mut M::Raw>,
    /// Where the columns start, and then where they end; the identity where there is none.
    carry: Option<*mut M::C>,
    /// How many such there are, and elements from one to the next.
    lanes: usize,
    pitch: usize,
    rows: usize,
    width: usize,
    /// Elements from row to row.
    step: isize,
}

struct ScanPart<M, K>(PhantomData<(M, K)>);
impl<M: Mem, K: Combine> Kernel<Part<M>> for ScanPart<M, K>
where
    M::C: Number,
{
    #[inline(always)]
    unsafe fn run<I: Isa>(p: Part<M>) {
        let mut own = [K::identity::<M::C>(); COLUMNS as usize];
        for lane in 0..p.lanes {
            let carry = match p.carry {
                Some(carry) => carry,
                None => {
                    own[..p.width].fill(K::identity());
                    own.as_mut_ptr()
                }
            };
            let x = p.x.wrapping_add(lane * p.pitch);
            let out = p.out.map(|out| out.wrapping_add(lane * p.pitch));
            // SAFETY: all rows exist, and the result's are this part's own.
            unsafe {
                match p.step {
                    1 => line::<M, K, 1>(x, out, carry, p.rows),
                    -1 => line::<M, K, -1>(x, out, carry, p.rows),
                    _ => columns::<M, K>(x, out, carry, &p),
                }
            }
        }
    }
}

/// Neighbouring columns, row by row.
///
/// # Safety
/// There are `p.rows` rows of `p.width` elements from `x` on, and as many results, if any, and carried values.
#[inline(always)]
unsafe fn columns<M: Mem, K: Combine>(
    mut x: *const M::Raw,
    mut out: Option<*mut M::Raw>,
    carry: *mut M::C,
    p: &Part<M>,
) where
    M::C: Number,
{
    // SAFETY: rows and columns are those that there are.
    unsafe {
        for _ in 0..p.rows {
            match out {
                Some(out) => {
                    for j in 0..p.width {
                        let y = K::combine(*carry.add(j), M::load(*x.add(j)));
                        *carry.add(j) = y;
                        *out.add(j) = M::store(y);
                    }
                }
                None => {
                    for j in 0..p.width {
                        *carry.add(j) = K::combine(*carry.add(j), M::load(*x.add(j)));
                    }
                }
            }
            x = x.wrapping_offset(p.step);
            out = out.map(|out| out.wrapping_offset(p.step));
        }
    }
}

/// Runs of a tile that are scanned side by side, so that one does not wait for another.
const RUNS: usize = 8;
/// Elements of such a run.
const RUN: usize = 128;

/// One column of neighbouring rows.
///
/// # Safety
/// There are `rows` elements from `x` on, as many results, if any, and a carried value.
#[inline(always)]
unsafe fn line<M: Mem, K: Combine, const STEP: isize>(
    x: *const M::Raw,
    out: Option<*mut M::Raw>,
    carry: *mut M::C,
    rows: usize,
) where
    M::C: Number,
{
    // SAFETY: every index is below `rows`.
    unsafe {
        let load = |i: usize| M::load(*x.offset(i as isize * STEP));
        let mut total = *carry;
        let tiles = if K::REGROUPS { rows / (RUNS * RUN) } else { 0 };
        for tile in 0..tiles {
            let first = tile * RUNS * RUN;
            let mut ends = [K::identity::<M::C>(); RUNS];
            let Some(out) = out else {
                for i in 0..RUN {
                    for (r, end) in ends.iter_mut().enumerate() {
                        *end = K::combine(*end, load(first + i * RUNS + r));
                    }
                }
                total = ends.into_iter().fold(total, K::combine);
                continue;
            };
            let mut scanned = [[K::identity::<M::C>(); RUN]; RUNS];
            for i in 0..RUN {
                for (r, (end, run)) in ends.iter_mut().zip(&mut scanned).enumerate() {
                    *end = K::combine(*end, load(first + r * RUN + i));
                    run[i] = *end;
                }
            }
            for (r, run) in scanned.iter().enumerate() {
                let out = out.offset((first + r * RUN) as isize * STEP);
                for (i, y) in run.iter().enumerate() {
                    *out.offset(i as isize * STEP) = M::store(K::combine(total, *y));
                }
                total = K::combine(total, ends[r]);
            }
        }
        for i in tiles * RUNS * RUN..rows {
            total = K::combine(total, load(i));
            if let Some(out) = out {
                *out.offset(i as isize * STEP) = M::store(total);
            }
        }
        *carry = total;
    }
}
