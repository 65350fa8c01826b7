//! Work that runs blocks on threads, and applies epilogues to their results.

use crate::tile;
use crate::tile::{Linked, Runner};
use kiln_jit::contraction::RegisterEpilogue;
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::Storage;
use kiln_kernel::pool::Pool;
use kiln_kernel::simd::Features;
use kiln_plan::Epilogue;
use kiln_plan::tile::Schedule;
use smallvec::SmallVec;
use std::sync::Arc;

/// Multiply-adds that make it worth waking another thread.
const PART_WORK: i64 = 1 << 18;

/// Arguments that threads may share.
pub(crate) struct Args<'a>(pub &'a [*mut u8]);
// SAFETY: the pointers are only passed on; the callers promise what may be done with them.
unsafe impl Sync for Args<'_> {}

/// Runs `items` of `work` multiply-adds each, on several threads where that pays.
pub(crate) fn split(items: i64, work: i64, parallel: bool, run: impl Fn(i64, i64) + Sync) {
    split_among(items, work, parallel, &run);
}

/// [`split`], compiled once.
fn split_among(items: i64, work: i64, parallel: bool, run: &(dyn Fn(i64, i64) + Sync)) {
    let pool = Pool::global();
    let threads = pool.threads() as i64;
    let parts = if parallel && threads > 1 {
        (items.saturating_mul(work) / PART_WORK).clamp(1, items.min(8 * threads).max(1))
    } else {
        1
    };
    pool.run(parts as usize, |p| {
        let edge = |p: i64| (items as i128 * p as i128 / parts as i128) as i64;
        run(edge(p as i64), edge(p as i64 + 1));
    });
}

/// Runs `items` blocks of `cost` each, until one fails. Each thread has its own [`EpilogueRunner`] for the epilogue and its own
/// scratch, both kept between blocks.
pub(crate) fn run_blocks<S: Default>(
    (items, cost): (i64, i64),
    (epilogue, args, parallel, failures): (Option<&Linked>, &[*mut u8], bool, &Failures),
    block: impl Fn(i64, &[*mut u8], &mut S, &mut EpilogueRunner) -> Result<()> + Sync,
) {
    let args = Args(args);
    split(items, cost, parallel, |from, to| {
        let args = &args;
        let mut work = EpilogueRunner::new(epilogue, args.0, failures);
        let mut scratch = S::default();
        for i in from..to {
            if failures.cancelled() {
                return;
            }
            if let Err(e) = block(i, args.0, &mut scratch, &mut work) {
                return failures.broken(e);
            }
        }
    });
}

/// Returns the epilogue of f32 to apply to accumulators in registers, if it can be emitted for rows of this width.
pub(crate) fn finish(
    epilogue: &Option<Epilogue>,
    values: &[i64],
    lens: &[i64],
    (total, width): (i64, i64),
    level: Features,
) -> Result<Option<Arc<RegisterEpilogue>>> {
    let Some(Epilogue { program }) = epilogue else {
        return Ok(None);
    };
    let lens: Vec<i64> = lens.iter().copied().chain([total]).collect();
    let bound = tile::bind(program, values, &lens)?;
    Ok(RegisterEpilogue::of(&bound, width, level).map(Arc::new))
}

/// Links an epilogue over `total` results, or over whole rows of them if `row` gives their length.
pub(crate) fn epilogue(
    epilogue: &Option<Epilogue>,
    values: &[i64],
    lens: &[i64],
    (total, row): (i64, Option<i64>),
    level: Features,
) -> Result<Option<Linked>> {
    let Some(Epilogue { program }) = epilogue else {
        return Ok(None);
    };
    let lens: Vec<i64> = lens.iter().copied().chain([total]).collect();
    let bound = tile::bind(program, values, &lens)?;
    let inner = bound.inner_len();
    let fits = match program.schedule {
        Schedule::Rows => Some(inner) == row,
        Schedule::Lanes => program.inner.is_empty() && program.stages.iter().all(|s| !s.over_inner),
    };
    if !fits || bound.axes_len() * inner != total {
        return Err(damaged!(
            "{} is no epilogue of {total} results",
            program.name
        ));
    }
    let linked = tile::link(&bound, level)?;
    if !linked.reads_in_place(lens.len() - 1) {
        return Err(damaged!(
            "{} reads other results than its own",
            program.name
        ));
    }
    Ok(Some(linked))
}

/// The state of a thread for epilogues: the program, scratch memory for raw results, and arguments, of which the last
/// is the raw result.
pub(crate) struct EpilogueRunner<'a> {
    epilogue: Option<&'a Linked>,
    args: SmallVec<[*mut u8; 12]>,
    pub(crate) failures: &'a Failures,
    scratch: Option<Storage>,
}

impl<'a> EpilogueRunner<'a> {
    fn new(
        epilogue: Option<&'a Linked>,
        args: &[*mut u8],
        failures: &'a Failures,
    ) -> EpilogueRunner<'a> {
        let mut args = SmallVec::from_slice(args);
        args.push(std::ptr::null_mut());
        EpilogueRunner {
            epilogue,
            args,
            failures,
            scratch: None,
        }
    }

    /// Returns memory for `len` raw results.
    pub(crate) fn scratch<T>(&mut self, len: i64) -> Result<*mut T> {
        let bytes = len as usize * size_of::<T>();
        if self.scratch.as_ref().is_none_or(|s| s.len() < bytes) {
            self.scratch = Some(Storage::new(bytes)?);
        }
        Ok(self
            .scratch
            .as_ref()
            .map_or(std::ptr::null_mut(), |s| s.ptr().cast()))
    }

    /// Runs the epilogue over `rows` rows of `width` raw results, `pitch` apart in memory and `step`
    /// apart in the linear space, which they enter at `first`. Without one, does nothing.
    ///
    /// # Safety
    /// The raw results exist; see [`Runner::new`] for the arguments.
    pub(crate) unsafe fn finish<T>(
        &mut self,
        (raw, pitch): (*mut T, i64),
        first: i64,
        (rows, step): (i64, i64),
        width: i64,
    ) {
        let Some(program) = self.epilogue else {
            return;
        };
        let last = self.args.len() - 1;
        // SAFETY: the caller's. The raw argument is offset so that the indices in use land on the raw results.
        unsafe {
            let mut runner = match Runner::new(program, self.args.as_ptr(), self.failures) {
                Ok(runner) => runner,
                Err(e) => return self.failures.broken(e),
            };
            let raw_arg = self.args.as_mut_ptr().add(last);
            // The elements of a point: a row, or one.
            let point = match program.schedule {
                Schedule::Rows => step,
                Schedule::Lanes => 1,
            };
            // Contiguous lines are one.
            let (lines, width) = match pitch == step && width == step {
                true => (1, rows * step),
                false => (rows, width),
            };
            for line in 0..lines {
                let at = first + line * step;
                *raw_arg = raw.wrapping_offset((line * pitch - at) as isize).cast();
                runner.range(at / point, (at + width) / point);
            }
        }
    }
}
