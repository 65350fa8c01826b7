//! Products of few results with a long K: packing kernels compute parts of K independently, and the parts are then
//! added in order. Blocks of the result alone would be too few for several threads.

use super::{EpilogueRunner, MatMul, run_blocks};
use kiln_jit::contraction::multiply_as;
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::room;
use kiln_kernel::sums::Lane;

/// The least steps of K in a part.
const TERMS: i64 = 1024;
/// The most parts.
const MOST: i64 = 32;
/// The most elements of all parts.
const ELEMENTS: i64 = 1 << 20;
/// The results that are added up at a time.
const RESULTS: i64 = 4096;

impl MatMul {
    /// Returns the number of results of the whole batch.
    fn results(&self) -> i64 {
        self.batch.iter().product::<i64>() * self.m * self.n
    }

    /// Returns the number of parts of K; it follows from the sizes and the schedule alone.
    pub(super) fn parts(&self) -> i64 {
        if let Some(parts) = self.schedule.parts {
            return i64::from(parts).min(self.k.max(1));
        }
        let most = (ELEMENTS / self.results().max(1)).min(MOST);
        (self.k / TERMS).min(most).max(2)
    }

    /// Returns the number of elements of the parts.
    pub(super) fn parts_workspace(&self) -> i64 {
        self.parts() * self.results()
    }

    /// Runs a product in parts of K.
    ///
    /// # Safety
    /// As [`MatMul::run`].
    pub(super) unsafe fn in_parts<T: Lane>(
        &self,
        args: &[*mut u8],
        parallel: bool,
        failures: &Failures,
    ) {
        let (parts, results) = (self.parts(), self.results());
        if results == 0 {
            return;
        }
        let mut memory = None;
        let sums = match room::<T>(&mut memory, parts * results) {
            Ok(sums) => sums,
            Err(e) => return failures.broken(e),
        };
        let with_sums: Vec<*mut u8> = args.iter().copied().chain([sums.cast()]).collect();
        let batch: i64 = self.batch.iter().product();
        let cost = self.m * self.n * ceil(self.k, parts);
        let launch = (None, &with_sums[..], parallel, failures);
        run_blocks((parts * batch, cost), launch, |i, args, _: &mut (), _| {
            // SAFETY: the caller's; each part of each product has a place of its own.
            unsafe { self.part::<T>(args, (i / batch, parts), i % batch) }
        });
        let launch = (
            self.epilogue.as_ref(),
            &with_sums[..args.len()],
            parallel,
            failures,
        );
        let sums = PartialSums { sums, parts };
        let cost = RESULTS * parts;
        run_blocks(
            (ceil(results, RESULTS), cost),
            launch,
            |i, args, _: &mut (), work| {
                let first = i * RESULTS;
                // SAFETY: the caller's, and all parts are there; blocks write different places.
                unsafe { self.add_parts(args, &sums, (first, RESULTS.min(results - first)), work) }
            },
        );
    }

    /// Computes part `at` of `parts` of product `b`. The last argument is the memory of the parts.
    unsafe fn part<T: Lane>(
        &self,
        args: &[*mut u8],
        (at, parts): (i64, i64),
        b: i64,
    ) -> Result<()> {
        let edge = |at: i64| (self.k as i128 * at as i128 / parts as i128) as i64;
        let (from, to) = (edge(at), edge(at + 1));
        let sums = args[args.len() - 1].cast::<T>();
        let place = at * self.results() + b * self.m * self.n;
        // SAFETY: linking proved the operands within their buffers; the part has its place.
        unsafe {
            multiply_as(
                self.how(),
                (self.m, self.n, to - from),
                (sums.offset(place as isize), self.n),
                (
                    self.at::<T>(&self.lhs, args, b, 0, from),
                    self.lhs.row,
                    self.lhs.col,
                ),
                (
                    self.at::<T>(&self.rhs, args, b, from, 0),
                    self.rhs.row,
                    self.rhs.col,
                ),
                false,
            )
        }
    }

    /// Adds up `len` results from `first` on.
    unsafe fn add_parts<T: Lane>(
        &self,
        args: &[*mut u8],
        sums: &PartialSums<T>,
        (first, len): (i64, i64),
        work: &mut EpilogueRunner,
    ) -> Result<()> {
        let dst = match self.epilogue {
            Some(_) => work.scratch::<T>(len)?,
            None => args[self.out].cast::<T>().wrapping_offset(first as isize),
        };
        for p in 0..sums.parts {
            let part = (sums.sums).wrapping_offset((p * self.results() + first) as isize);
            for i in 0..len as usize {
                // SAFETY: the part and the destination have their elements, which nobody else writes now.
                unsafe {
                    let (to, term) = (dst.add(i), *part.add(i));
                    *to = if p == 0 { term } else { *to + term };
                }
            }
        }
        // SAFETY: the raw results are there.
        unsafe { work.finish((dst, len), first, (1, len), len) };
        Ok(())
    }
}

/// The parts of sums, contiguous.
struct PartialSums<T> {
    sums: *mut T,
    parts: i64,
}
// SAFETY: the parts are only read while they are shared.
unsafe impl<T> Sync for PartialSums<T> {}
