//! Work that runs blocks on threads, and applies epilogues to their results.

use crate::tile;
use crate::tile::{Linked, run_lines};
use kiln_jit::contraction::RegisterEpilogue;
use kiln_kernel::bound::Bound;
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::Storage;
use kiln_kernel::pool::Pool;
use kiln_kernel::simd::Features;
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{Arguments, Plain, ViewMut};
use kiln_kernel::work::Call;
use kiln_plan::Epilogue;
use kiln_plan::tile::Schedule;
use std::sync::Arc;

/// Multiply-adds that make it worth waking another thread.
const PART_WORK: i64 = 1 << 18;

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

/// Some rows of results: a view of the first one, and their distance.
pub(crate) type Results<'a, T> = (ViewMut<'a, T>, i64);

/// Adds the second and later ones of `parts` parts of `len` sums, `apart` apart, to the first one in order.
pub(crate) fn add_parts<T: Lane>(mut sums: ViewMut<T>, parts: i64, (apart, len): (i64, i64)) {
    for part in 1..parts {
        let more = sums.slice(part * apart, len);
        let to = sums.slice_mut(0, len).iter_mut();
        to.zip(more).for_each(|(to, term)| *to = *to + *term);
    }
}

/// A run of a kernel, with the epilogue of its results.
#[derive(Copy, Clone)]
pub(crate) struct Launch<'a> {
    pub epilogue: Option<&'a Linked>,
    /// True if the epilogue is applied to accumulators in registers.
    pub in_registers: bool,
    pub args: Arguments<'a>,
    pub parallel: bool,
    pub failures: &'a Failures,
}

impl<'a> Launch<'a> {
    pub fn new(epilogue: Option<&'a Linked>, call: &Call<'a>) -> Launch<'a> {
        Launch {
            epilogue,
            in_registers: false,
            args: call.args,
            parallel: call.parallel,
            failures: call.failures,
        }
    }

    /// Runs `items` blocks of `cost` each, until one fails. Each thread keeps its scratch memory between blocks.
    pub fn run<S: Default>(
        &self,
        (items, cost): (i64, i64),
        block: impl Fn(i64, &mut S) -> Result<()> + Sync,
    ) {
        split(items, cost, self.parallel, |from, to| {
            let mut scratch = S::default();
            for i in from..to {
                if self.failures.is_cancelled() {
                    return;
                }
                if let Err(e) = block(i, &mut scratch) {
                    return self.failures.report_error(e);
                }
            }
        });
    }

    /// Returns the destination of results that enter the linear space of argument `out` at `first`, in rows `step`
    /// apart: the argument itself, or memory for `len` raw results in rows `pitch` apart until their epilogue. There
    /// is none if the epilogue is applied in registers.
    ///
    /// # Errors
    /// If memory is short.
    pub fn destination<'b, T: Plain>(
        &self,
        (out, first, step): (usize, i64, i64),
        (raw, len, pitch): (&'b mut Option<Storage>, i64, i64),
    ) -> Result<Results<'b, T>>
    where
        'a: 'b,
    {
        match self.epilogue {
            Some(_) if self.in_registers => Ok((ViewMut::none(), 0)),
            Some(_) => Ok((ViewMut::room(raw, len)?, pitch)),
            None => Ok((self.args.view_mut(out).shift(first), step)),
        }
    }

    /// Runs the epilogue over `rows` rows of `width` raw results, `pitch` apart in memory and `step`
    /// apart in the linear space, which they enter at `first`. Does nothing if none is left to apply.
    pub fn apply_epilogue<T: Plain>(
        &self,
        (raw, pitch): (ViewMut<T>, i64),
        first: i64,
        (rows, step): (i64, i64),
        width: i64,
    ) -> Result<()> {
        let (part, lines) = ((raw.bytes(), pitch), (rows, step));
        match self.epilogue {
            Some(p) if !self.in_registers => {
                run_lines(p, &self.args, part, first, lines, width, self.failures)
            }
            _ => Ok(()),
        }
    }
}

/// Returns the epilogue of f32 to apply to accumulators in registers, if it can be emitted for rows of this width.
pub(crate) fn register_epilogue(
    epilogue: &Option<Epilogue>,
    values: &[i64],
    lens: &[i64],
    (total, width): (i64, i64),
    level: Features,
) -> Result<Option<Arc<RegisterEpilogue>>> {
    let bound = bind(epilogue, values, lens, total)?;
    let finished = bound.and_then(|bound| RegisterEpilogue::of(&bound, width, level));
    Ok(finished.map(Arc::new))
}

/// Binds an epilogue over `total` results, which are its last argument.
fn bind<'a>(
    epilogue: &'a Option<Epilogue>,
    values: &[i64],
    lens: &[i64],
    total: i64,
) -> Result<Option<Bound<'a>>> {
    let Some(Epilogue { program }) = epilogue else {
        return Ok(None);
    };
    let lens: Vec<i64> = lens.iter().copied().chain([total]).collect();
    tile::bind(program, values, &lens).map(Some)
}

/// Links an epilogue over `total` results, or over whole rows of them if `row` gives their length.
pub(crate) fn epilogue(
    epilogue: &Option<Epilogue>,
    values: &[i64],
    lens: &[i64],
    (total, row): (i64, Option<i64>),
    level: Features,
) -> Result<Option<Linked>> {
    let Some(bound) = bind(epilogue, values, lens, total)? else {
        return Ok(None);
    };
    let (program, inner) = (bound.program, bound.inner_len());
    let fits = match program.schedule {
        Schedule::Rows => Some(inner) == row,
        Schedule::Lanes => program.inner.is_empty() && program.stages.iter().all(|s| !s.over_inner),
    };
    if !fits || bound.axes_len() * inner != total {
        return Err(damaged!(
            "{} is not an epilogue of {total} results",
            program.name
        ));
    }
    let linked = tile::link(&bound, level)?;
    if !linked.accesses_in_place(lens.len()) {
        return Err(damaged!(
            "{} reads other results than its own",
            program.name
        ));
    }
    Ok(Some(linked))
}
