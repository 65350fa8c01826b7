//! Stable argsort.
//!
//! Elements are mapped to unsigned keys of the same order (inverted for a descending sort). Each key is packed with its
//! index into a record. Records are unique, so any sorting algorithm is stable, on any number of threads. Short lanes
//! use the standard library's sort, long lanes a radix sort. If only a few elements are kept, one pass collects
//! candidates.

use crate::kernels::matmul::split;
use kiln_base::DType;
use kiln_kernel::affine::extent;
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::failures::Failure;
use kiln_kernel::memory::Storage;
use kiln_kernel::pool::Pool;
use kiln_kernel::simd::convert as c;
use kiln_kernel::simd::convert::{Mem, with_dtype};
use kiln_kernel::simd::{Features, Isa, Vectorized, vectorized};
use kiln_kernel::view::{Plain, View, ViewMut};
use kiln_kernel::work::{Call, LinkedKernel};
use kiln_plan as plan;
use std::marker::PhantomData;

/// A linked sort.
pub(crate) struct ArgSort {
    dtype: DType,
    lanes: i64,
    len: usize,
    kept: usize,
    x: usize,
    out: usize,
    compute_keys: ComputeKeys,
    level: Features,
    /// The bits that are XORed into each key: all bits of it for a descending sort.
    flip: u64,
}

impl LinkedKernel for ArgSort {
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        match key_bits(self.dtype) <= 32 && self.len <= 1 << 32 {
            _ if self.lanes == 0 || self.kept == 0 => {}
            true => self.run_packed::<u64>(call),
            false => self.run_packed::<u128>(call),
        }
        Ok(None)
    }
}

/// The minimum number of elements of a lane that is sorted by radix.
const MIN_RADIX_LEN: usize = 512;
/// The maximum number of kept elements that are selected without sorting the lane.
const MAX_SELECTED: usize = 1024;
/// The minimum number of elements of a lane that several threads sort.
const MIN_SHARED_LEN: usize = 1 << 17;
/// The number of keys that are computed at once.
const BLOCK: usize = 256;
/// The maximum number of bits of a radix digit.
const MAX_DIGIT_BITS: u32 = 11;

impl ArgSort {
    /// True if the CPU has code for the sort.
    pub(crate) fn computes(p: &plan::ArgSort) -> bool {
        p.dtype.computes()
    }

    /// Checks and links a sort.
    pub(crate) fn new(p: &plan::ArgSort, values: &[i64], level: Features) -> Result<ArgSort> {
        let (lanes, len) = (extent(&p.lanes, values)?, extent(&p.len, values)?);
        let kept = extent(&p.kept, values)?;
        if kept > len {
            return Err(damaged!("the first {kept} of {len} elements"));
        }
        let bits = key_bits(p.dtype);
        Ok(ArgSort {
            dtype: p.dtype,
            lanes,
            len: len as usize,
            kept: kept as usize,
            x: p.x as usize,
            out: p.out as usize,
            compute_keys: with_dtype!(p.dtype, M => compute_keys::<M>),
            level,
            flip: if p.descending {
                u64::MAX >> (64 - bits)
            } else {
                0
            },
        })
    }

    fn run_packed<R: Record>(&self, call: &Call) {
        let (args, parallel, size) = (&call.args, call.parallel, self.dtype.size());
        let lane = |i: i64, scratch: &mut Scratch<R>, threads: usize| {
            let x = (args.view(self.x)).shift(i * (self.len * size) as i64);
            let out = (args.view_mut(self.out)).shift(i * self.kept as i64);
            if let Err(e) = self.sort_lane(x, out, scratch, threads) {
                call.failures.report_error(e);
            }
        };
        let threads = Pool::global().threads();
        if parallel && self.len >= MIN_SHARED_LEN && self.lanes < threads as i64 {
            let mut scratch = Scratch::new();
            return (0..self.lanes).for_each(|i| lane(i, &mut scratch, threads));
        }
        let work = (self.len as i64).saturating_mul(64);
        split(self.lanes, work, parallel, |from, to| {
            let mut scratch = Scratch::new();
            (from..to).for_each(|i| lane(i, &mut scratch, 1));
        });
    }

    /// Sorts one lane, and writes the indices of the kept elements.
    fn sort_lane<R: Record>(
        &self,
        x: View<u8>,
        mut out: ViewMut<i64>,
        scratch: &mut Scratch<R>,
        threads: usize,
    ) -> Result<()> {
        let lane = Lane { x, sort: self };
        let parts = if threads > 1 { 4 * threads } else { 1 };
        let sorted: &[R] = if self.kept <= MAX_SELECTED && self.kept * 8 <= self.len {
            scratch.select(&lane, self.len, self.kept, parts)
        } else {
            scratch.sort(&lane, self.len, key_bits(self.dtype), parts)?
        };
        let out = out.slice_mut(0, self.kept as i64).iter_mut();
        out.zip(sorted).for_each(|(to, r)| *to = r.index() as i64);
        Ok(())
    }
}

/// Returns the number of bits of a dtype's keys.
fn key_bits(dtype: DType) -> u32 {
    8 * dtype.size() as u32
}

// ---- keys ----

/// The kernel that computes the keys of the elements from `x` on.
struct Keys<'a, M> {
    x: View<'a, u8>,
    to: &'a mut [u64],
    /// The bits that are XORed into each key.
    flip: u64,
    dtype: PhantomData<M>,
}

/// An element that has an unsigned key of the same order.
trait Key: Mem {
    fn key(x: Self::Raw) -> u64;
}

macro_rules! keys {
    (float $($name:ident: $bits:ty, $raw:ident => $to_bits:expr, $exponent:literal;)*) => {$(
        impl Key for c::$name {
            #[inline(always)]
            fn key($raw: Self::Raw) -> u64 {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits: $bits = $to_bits;
                let magnitude = bits & !SIGN;
                let ordered = if bits & SIGN != 0 { SIGN - magnitude } else { SIGN + magnitude };
                (if magnitude > $exponent { <$bits>::MAX } else { ordered }) as u64
            }
        }
    )*};
    (fnuz $($name:ident)*) => {$(
        impl Key for c::$name {
            #[inline(always)]
            fn key(x: Self::Raw) -> u64 {
                (match x {
                    0x80 => 0xff,
                    0x81.. => 0xff - x,
                    _ => 0x7f + x,
                }) as u64
            }
        }
    )*};
    (signed $($name:ident: $bits:ty;)*) => {$(
        impl Key for c::$name {
            #[inline(always)]
            fn key(x: Self::Raw) -> u64 {
                (x as $bits ^ (1 << (<$bits>::BITS - 1))) as u64
            }
        }
    )*};
    (unsigned $($name:ident)*) => {$(
        impl Key for c::$name {
            #[inline(always)]
            fn key(x: Self::Raw) -> u64 {
                x as u64
            }
        }
    )*};
}
// The literal is the magnitude of infinity; larger magnitudes are NaN.
keys!(float
    F16: u16, x => x, 0x7c00;
    BF16: u16, x => x, 0x7f80;
    F8E4M3: u8, x => x, 0x7e;
    F8E5M2: u8, x => x, 0x7c;
    F32: u32, x => x.to_bits(), 0x7f80_0000;
    F64: u64, x => x.to_bits(), 0x7ff0_0000_0000_0000;
);
keys!(fnuz F8E4M3FNUZ F8E5M2FNUZ);
keys!(signed I8: u8; I16: u16; I32: u32; I64: u64;);
keys!(unsigned Bool U8 U16 U32 U64);

impl<M: Key> Vectorized for Keys<'_, M> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let x = self.x.cast::<M::Raw>().slice(0, self.to.len() as i64);
        let to = self.to.iter_mut().zip(x);
        to.for_each(|(to, x)| *to = M::key(*x) ^ self.flip);
    }
}

/// A function that computes the keys of the elements from the start of a view on.
type ComputeKeys = fn(Features, View<u8>, &mut [u64], u64);

fn compute_keys<M: Key>(level: Features, x: View<u8>, to: &mut [u64], flip: u64) {
    let dtype = PhantomData::<M>;
    vectorized(level, Keys { x, to, flip, dtype });
}

/// A lane of elements.
struct Lane<'a> {
    x: View<'a, u8>,
    sort: &'a ArgSort,
}

impl Lane<'_> {
    /// Calls `f` with blocks of keys of the elements `from..to`, and the index of the first key of each block.
    fn for_each_block(&self, from: usize, to: usize, mut f: impl FnMut(usize, &[u64])) {
        let mut keys = [0u64; BLOCK];
        for first in (from..to).step_by(BLOCK) {
            let count = BLOCK.min(to - first);
            let (sort, keys) = (self.sort, &mut keys[..count]);
            let x = self.x.shift((first * sort.dtype.size()) as i64);
            (sort.compute_keys)(sort.level, x, keys, sort.flip);
            f(first, keys);
        }
    }
}

/// A key and an index as one number, ordered by key and then index.
trait Record: Plain + Ord {
    const MAX: Self;
    fn new(key: u64, index: usize) -> Self;
    fn key(self) -> u64;
    fn index(self) -> usize;
}
macro_rules! packed {
    ($($t:ty: $index_bits:literal;)*) => {$(
        impl Record for $t {
            const MAX: $t = <$t>::MAX;
            #[inline(always)]
            fn new(key: u64, index: usize) -> $t {
                <$t>::from(key) << $index_bits | index as $t
            }
            #[inline(always)]
            fn key(self) -> u64 {
                (self >> $index_bits) as u64
            }
            #[inline(always)]
            fn index(self) -> usize {
                (self & ((1 << $index_bits) - 1)) as usize
            }
        }
    )*};
}
packed!(u64: 32; u128: 64;);

// ---- sorting ----

/// Memory for the lanes of one thread.
struct Scratch<R> {
    /// Two buffers, each of the size of a lane.
    records: Option<Storage>,
    selected: Vec<R>,
    counts: Vec<usize>,
}

/// Returns the bounds of part `p` of `len` elements.
fn part_bounds(len: usize, parts: usize, p: usize) -> (usize, usize) {
    let edge = |p: usize| (len as u128 * p as u128 / parts as u128) as usize;
    (edge(p), edge(p + 1))
}

impl<R: Record> Scratch<R> {
    fn new() -> Scratch<R> {
        Scratch {
            records: None,
            selected: Vec::new(),
            counts: Vec::new(),
        }
    }

    /// Returns the first `kept` records of a lane, in order.
    fn select(&mut self, lane: &Lane, len: usize, kept: usize, parts: usize) -> &[R] {
        self.selected.clear();
        let selected = std::sync::Mutex::new(&mut self.selected);
        Pool::global().run(parts, |p| {
            let (from, to) = part_bounds(len, parts, p);
            let mut candidates = Vec::with_capacity(4 * kept + BLOCK);
            let mut limit = R::MAX;
            lane.for_each_block(from, to, |first, keys| {
                // If keys are equal, an earlier one is already present.
                let min_key = keys.iter().fold(u64::MAX, |a, k| a.min(*k));
                if candidates.len() >= kept && min_key > limit.key() {
                    return;
                }
                for (i, key) in keys.iter().enumerate() {
                    let record = R::new(*key, first + i);
                    if record <= limit {
                        candidates.push(record);
                    }
                }
                if candidates.len() >= 4 * kept {
                    candidates.select_nth_unstable(kept - 1);
                    candidates.truncate(kept);
                    limit = candidates[kept - 1];
                }
            });
            if candidates.len() > kept {
                candidates.select_nth_unstable(kept - 1);
                candidates.truncate(kept);
            }
            let mut selected = selected.lock().unwrap_or_else(|e| e.into_inner());
            selected.extend_from_slice(&candidates);
        });
        self.selected.sort_unstable();
        &self.selected
    }

    /// Returns all records of a lane, in order.
    fn sort(&mut self, lane: &Lane, len: usize, bits: u32, parts: usize) -> Result<&[R]> {
        let Scratch {
            records, counts, ..
        } = self;
        let records = ViewMut::<R>::room(records, 2 * len as i64)?;
        let (mut from, mut to) = (records, records.shift(len as i64));
        Pool::global().run(parts, |p| {
            let (first, last) = part_bounds(len, parts, p);
            lane.for_each_block(first, last, |index, keys| {
                let mut from = from;
                let to = from.slice_mut(index as i64, keys.len() as i64).iter_mut();
                (index..)
                    .zip(to.zip(keys))
                    .for_each(|(i, (to, key))| *to = R::new(*key, i));
            });
        });
        if len < MIN_RADIX_LEN {
            from.slice_mut(0, len as i64).sort_unstable();
            return Ok(from.slice(0, len as i64));
        }
        let digits = bits.div_ceil(MAX_DIGIT_BITS);
        let width = bits.div_ceil(digits);
        for digit in 0..digits {
            let records = from.slice(0, len as i64);
            if sort_by_digit((records, to), counts, (digit * width, width), parts) {
                std::mem::swap(&mut from, &mut to);
            }
        }
        Ok(from.slice(0, len as i64))
    }
}

/// Sorts records stably by one digit of their keys. Returns false, without writing, if all digits are equal.
fn sort_by_digit<R: Record>(
    (records, to): (&[R], ViewMut<R>),
    counts: &mut Vec<usize>,
    (shift, width): (u32, u32),
    parts: usize,
) -> bool {
    let (len, buckets) = (records.len(), 1usize << width);
    let digit = |r: R| (r.key() >> shift) as usize & (buckets - 1);
    counts.clear();
    counts.resize(parts * buckets, 0);
    // Each part has its own counts.
    let mut counts = ViewMut::of(counts);
    let (all_counts, bucket_count, pool) = (counts, buckets as i64, Pool::global());
    pool.run(parts, |p| {
        let (first, last) = part_bounds(len, parts, p);
        let mut all_counts = all_counts;
        let counts = all_counts.slice_mut(p as i64 * bucket_count, bucket_count);
        for r in &records[first..last] {
            counts[digit(*r)] += 1;
        }
    });
    let mut offset = 0;
    for bucket in 0..bucket_count {
        let start = offset;
        for p in 0..parts as i64 {
            let count = &mut counts.slice_mut(p * bucket_count + bucket, 1)[0];
            offset += std::mem::replace(count, offset);
        }
        if offset - start == len {
            return false;
        }
    }
    pool.run(parts, |p| {
        let (first, last) = part_bounds(len, parts, p);
        let mut all_counts = all_counts;
        let offsets = all_counts.slice_mut(p as i64 * bucket_count, bucket_count);
        for r in &records[first..last] {
            // The counts give each record a unique offset.
            let offset = &mut offsets[digit(*r)];
            to.set(*offset as i64, *r);
            *offset += 1;
        }
    });
    true
}
