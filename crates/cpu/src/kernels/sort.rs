//! The order of elements.
//!
//! Elements become unsigned keys of the same order (reversed for a descending sort). Each key is packed with its index
//! into one number. These numbers are unique, so any sorting algorithm gives the stable order, on any number of
//! threads. Short lanes use the standard library's sort, long ones a radix sort. Where only the first few are needed,
//! one pass collects candidates.

use crate::kernels::matmul::split;
use kiln_base::DType;
use kiln_kernel::affine::extent;
use kiln_kernel::error::{Error, Result, damaged};
use kiln_kernel::failures::{Failure, Failures};
use kiln_kernel::memory::{Category, Holder, Storage};
use kiln_kernel::pool::Pool;
use kiln_kernel::simd::convert as c;
use kiln_kernel::simd::convert::{Mem, with_dtype};
use kiln_kernel::simd::{Features, Isa, Kernel, compiled};
use kiln_kernel::view::Arguments;
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
    keys: unsafe fn(Keys),
    flip: u64,
}

impl LinkedKernel for ArgSort {
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        // SAFETY: linked for arguments of these lengths; its parts are apart where `parallel` says so.
        unsafe { self.run(&call.args, call.parallel, call.failures) };
        Ok(None)
    }
}

/// The least elements of a lane that is sorted by radix.
const RADIX_LEN: usize = 512;
/// The most first elements that are found without sorting the lane.
const FEW: usize = 1024;
/// The least elements of a lane that threads share.
const SHARED_LEN: usize = 1 << 17;
/// The number of keys that are made at once.
const BLOCK: usize = 256;
/// The most bits of a digit.
const DIGIT: u32 = 11;

impl ArgSort {
    /// True if there is code for it.
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
            keys: with_dtype!(p.dtype, M => compiled::<MakeKeys<M>, Keys>(level)),
            flip: if p.descending {
                u64::MAX >> (64 - bits)
            } else {
                0
            },
        })
    }

    /// Runs it.
    ///
    /// # Safety
    /// `args` are the buffers it was linked for; see [`crate::tile::Runner::new`].
    pub(crate) unsafe fn run(&self, args: &Arguments, parallel: bool, failures: &Failures) {
        if self.lanes == 0 || self.kept == 0 {
            return;
        }
        // SAFETY: `args` are those it was linked for; a key and an index fit the chosen word.
        unsafe {
            if key_bits(self.dtype) <= 32 && self.len <= 1 << 32 {
                self.run_packed::<u64>(args, parallel, failures)
            } else {
                self.run_packed::<u128>(args, parallel, failures)
            }
        }
    }

    unsafe fn run_packed<R: Packed>(&self, args: &Arguments, parallel: bool, failures: &Failures) {
        let lane = |i: i64, scratch: &mut Scratch<R>, threads: usize| -> Result<()> {
            let x =
                args.addresses()[self.x].wrapping_add(i as usize * self.len * self.dtype.size());
            let out = args.addresses()[self.out].cast::<i64>();
            let out = out.wrapping_add(i as usize * self.kept);
            // SAFETY: linking checked the buffers' lengths; lanes write different places.
            unsafe { self.lane(x, out, scratch, threads) }
        };
        let failed = |r: Result<()>| r.unwrap_or_else(|e| failures.broken(e));
        let threads = Pool::global().threads();
        if parallel && self.len >= SHARED_LEN && self.lanes < threads as i64 {
            let mut scratch = Scratch::new();
            return (0..self.lanes).for_each(|i| failed(lane(i, &mut scratch, threads)));
        }
        let work = (self.len as i64).saturating_mul(64);
        split(self.lanes, work, parallel, |from, to| {
            let mut scratch = Scratch::new();
            (from..to).for_each(|i| failed(lane(i, &mut scratch, 1)));
        });
    }

    unsafe fn lane<R: Packed>(
        &self,
        x: *const u8,
        out: *mut i64,
        scratch: &mut Scratch<R>,
        threads: usize,
    ) -> Result<()> {
        let lane = Lane {
            x,
            size: self.dtype.size(),
            keys: self.keys,
            flip: self.flip,
        };
        let parts = if threads > 1 { 4 * threads } else { 1 };
        let sorted: &[R] = if self.kept <= FEW && self.kept * 8 <= self.len {
            scratch.first(&lane, self.len, self.kept, parts)
        } else {
            scratch.sorted(&lane, self.len, key_bits(self.dtype), parts)?
        };
        for (i, record) in sorted[..self.kept].iter().enumerate() {
            // SAFETY: the lane of the result has this many elements.
            unsafe { *out.add(i) = record.index() as i64 };
        }
        Ok(())
    }
}

/// Returns the number of a dtype's bits.
fn key_bits(dtype: DType) -> u32 {
    8 * dtype.size() as u32
}

// ---- keys ----

/// The source of keys: `count` elements from `x` on.
struct Keys {
    x: *const u8,
    count: usize,
    to: *mut u64,
    /// XORed into each key.
    flip: u64,
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

struct MakeKeys<M>(PhantomData<M>);
impl<M: Key> Kernel<Keys> for MakeKeys<M> {
    #[inline(always)]
    unsafe fn run<I: Isa>(k: Keys) {
        let x = k.x.cast::<M::Raw>();
        for i in 0..k.count {
            // SAFETY: there are `count` elements and places for their keys.
            unsafe { *k.to.add(i) = M::key(*x.add(i)) ^ k.flip };
        }
    }
}

/// A lane of elements.
struct Lane {
    x: *const u8,
    size: usize,
    keys: unsafe fn(Keys),
    flip: u64,
}
// SAFETY: the elements are only read.
unsafe impl Sync for Lane {}

impl Lane {
    /// Calls `f` with blocks of keys of the elements `from..to`, and the index of the first of each.
    fn blocks(&self, from: usize, to: usize, mut f: impl FnMut(usize, &[u64])) {
        let mut keys = [0u64; BLOCK];
        for first in (from..to).step_by(BLOCK) {
            let count = BLOCK.min(to - first);
            // SAFETY: the lane has these elements.
            unsafe {
                (self.keys)(Keys {
                    x: self.x.wrapping_add(first * self.size),
                    count,
                    to: keys.as_mut_ptr(),
                    flip: self.flip,
                })
            };
            f(first, &keys[..count]);
        }
    }
}

/// A key and an index as one number, ordered by key and then index.
trait Packed: Copy + Ord + Send + Sync {
    const MAX: Self;
    fn new(key: u64, index: usize) -> Self;
    fn key(self) -> u64;
    fn index(self) -> usize;
}
impl Packed for u64 {
    const MAX: u64 = u64::MAX;
    #[inline(always)]
    fn new(key: u64, index: usize) -> u64 {
        key << 32 | index as u64
    }
    #[inline(always)]
    fn key(self) -> u64 {
        self >> 32
    }
    #[inline(always)]
    fn index(self) -> usize {
        self as u32 as usize
    }
}
impl Packed for u128 {
    const MAX: u128 = u128::MAX;
    #[inline(always)]
    fn new(key: u64, index: usize) -> u128 {
        (key as u128) << 64 | index as u128
    }
    #[inline(always)]
    fn key(self) -> u64 {
        (self >> 64) as u64
    }
    #[inline(always)]
    fn index(self) -> usize {
        self as u64 as usize
    }
}

// ---- sorting ----

/// Memory for the lanes of one thread.
struct Scratch<R> {
    /// Two buffers, each of the size of a lane.
    records: Option<Storage>,
    found: Vec<R>,
    counts: Vec<usize>,
}

/// A list that threads write different parts of.
#[derive(Copy, Clone)]
struct Shared<T>(*mut T);
// SAFETY: each writer promises that nobody else touches the element.
unsafe impl<T> Sync for Shared<T> {}
impl<T> Shared<T> {
    /// # Safety
    /// The element exists and nobody else touches it now.
    #[inline(always)]
    unsafe fn write(&self, at: usize, value: T) {
        // SAFETY: the element exists, and nobody else touches it now.
        unsafe { *self.0.add(at) = value }
    }
}

/// Returns the bounds of part `p` of `len` elements.
fn edges(len: usize, parts: usize, p: usize) -> (usize, usize) {
    let edge = |p: usize| (len as u128 * p as u128 / parts as u128) as usize;
    (edge(p), edge(p + 1))
}

impl<R: Packed> Scratch<R> {
    fn new() -> Scratch<R> {
        Scratch {
            records: None,
            found: Vec::new(),
            counts: Vec::new(),
        }
    }

    /// Returns the first `kept` of a lane, in order.
    fn first(&mut self, lane: &Lane, len: usize, kept: usize, parts: usize) -> &[R] {
        self.found.clear();
        let found = std::sync::Mutex::new(&mut self.found);
        Pool::global().run(parts, |p| {
            let (from, to) = edges(len, parts, p);
            let mut best = Vec::with_capacity(4 * kept + BLOCK);
            let mut limit = R::MAX;
            lane.blocks(from, to, |first, keys| {
                // If keys are equal, an earlier one is already present.
                let least = keys.iter().fold(u64::MAX, |a, k| a.min(*k));
                if best.len() >= kept && least > limit.key() {
                    return;
                }
                for (i, key) in keys.iter().enumerate() {
                    let record = R::new(*key, first + i);
                    if record <= limit {
                        best.push(record);
                    }
                }
                if best.len() >= 4 * kept {
                    best.select_nth_unstable(kept - 1);
                    best.truncate(kept);
                    limit = best[kept - 1];
                }
            });
            if best.len() > kept {
                best.select_nth_unstable(kept - 1);
                best.truncate(kept);
            }
            let mut found = found.lock().unwrap_or_else(|e| e.into_inner());
            found.extend_from_slice(&best);
        });
        self.found.sort_unstable();
        &self.found
    }

    /// Returns the whole lane in order.
    fn sorted(&mut self, lane: &Lane, len: usize, bits: u32, parts: usize) -> Result<&[R]> {
        let bytes = len.checked_mul(2 * size_of::<R>());
        let bytes = bytes.ok_or_else(|| Error::Internal("a lane of too many bytes".into()))?;
        if self.records.as_ref().is_none_or(|s| s.len() < bytes) {
            self.records = None;
            let holder = Holder::unknown(Category::Workspaces);
            self.records = Some(Storage::held_by(bytes, holder)?);
        }
        let storage = self
            .records
            .as_ref()
            .map_or(std::ptr::null_mut(), |s| s.ptr());
        let (mut from, mut to) = (Shared(storage.cast::<R>()), Shared(storage.cast::<R>()));
        to.0 = to.0.wrapping_add(len);
        Pool::global().run(parts, |p| {
            let (first, last) = edges(len, parts, p);
            lane.blocks(first, last, |at, keys| {
                for (i, key) in keys.iter().enumerate() {
                    // SAFETY: parts fill different places.
                    unsafe { from.write(at + i, R::new(*key, at + i)) };
                }
            });
        });
        if len < RADIX_LEN {
            // SAFETY: the first half holds `len` records.
            let all = unsafe { std::slice::from_raw_parts_mut(from.0, len) };
            all.sort_unstable();
            return Ok(all);
        }
        let digits = bits.div_ceil(DIGIT);
        let width = bits.div_ceil(digits);
        for digit in 0..digits {
            if self.pass(from, to, len, digit * width, width, parts) {
                std::mem::swap(&mut from, &mut to);
            }
        }
        // SAFETY: as above, for the buffer that was written last.
        Ok(unsafe { std::slice::from_raw_parts(from.0, len) })
    }

    /// Moves records by one digit of their keys, otherwise keeping their order. Returns false, without moving anything,
    /// if all have the same digit.
    fn pass(
        &mut self,
        from: Shared<R>,
        to: Shared<R>,
        len: usize,
        shift: u32,
        width: u32,
        parts: usize,
    ) -> bool {
        let buckets = 1usize << width;
        // SAFETY: the buffer holds `len` records that nobody changes here.
        let records = unsafe { std::slice::from_raw_parts(from.0, len) };
        let digit = |r: R| (r.key() >> shift) as usize & (buckets - 1);
        self.counts.clear();
        self.counts.resize(parts * buckets, 0);
        let counts = Shared(self.counts.as_mut_ptr());
        // SAFETY: each part uses a list of its own.
        let own = |p: usize| unsafe {
            let counts = &counts;
            std::slice::from_raw_parts_mut(counts.0.add(p * buckets), buckets)
        };
        let (own, pool) = (&own, Pool::global());
        pool.run(parts, |p| {
            let (first, last) = edges(len, parts, p);
            let counts = own(p);
            records[first..last]
                .iter()
                .for_each(|r| counts[digit(*r)] += 1);
        });
        let mut place = 0;
        for bucket in 0..buckets {
            let begin = place;
            for p in 0..parts {
                let count = &mut own(p)[bucket];
                place += std::mem::replace(count, place);
            }
            if place - begin == len {
                return false;
            }
        }
        pool.run(parts, |p| {
            let (first, last) = edges(len, parts, p);
            let (places, to) = (own(p), &to);
            for r in &records[first..last] {
                let place = &mut places[digit(*r)];
                // SAFETY: the counts give each record a place of its own.
                unsafe { to.write(*place, *r) };
                *place += 1;
            }
        });
        true
    }
}
