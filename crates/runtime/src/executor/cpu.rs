//! Running steps on the CPU.

use super::guard::Guard;
use super::loc::Loc;
use super::profile::Profile;
use super::step::BoundStep;
use crate::cancel::{self, Cancel};
use crate::error::Result;
use crate::kernels::work::Call;
use crate::pool::Pool;
use crate::tile::{Failure, Failures, Launch, run_all};
use kiln_plan::Site;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Runs steps one after the other on the CPU, up to the first data error, which names one of `sites`.
pub(super) fn run_steps(
    steps: &[BoundStep],
    place: impl Fn(Loc) -> *mut u8,
    sites: &[Site],
    kernels: &AtomicU64,
    profile: Option<&Profile>,
) -> Result<Option<Failure>> {
    let failures = Failures::of(Cancel::current());
    for group in steps.chunk_by(|_, next| next.joined) {
        cancel::check()?;
        let first = group[0].step;
        // SAFETY: binding proved that guards lie within their memory, and no step of the group writes one.
        let set = |guard: &Guard| unsafe { guard.is_set(place(guard.loc)) };
        let kept = |step: &&BoundStep| !step.guard.as_ref().is_some_and(set);
        let group: SmallVec<[&BoundStep; 1]> = group.iter().filter(kept).collect();
        if group.is_empty() {
            continue;
        }
        let args = |step: &BoundStep| -> SmallVec<[*mut u8; 12]> {
            step.args.iter().map(|a| place(*a)).collect()
        };
        let mut inner = None;
        let start = profile.is_some().then(Instant::now);
        let args: SmallVec<[_; 1]> = group.iter().map(|step| args(step)).collect();
        let calls = group.iter().zip(&args).map(|(step, args)| {
            let (args, packed) = match args.split_last() {
                Some((packed, args)) if step.packed => (args, Some(*packed)),
                _ => (&args[..], None),
            };
            Call {
                args,
                packed,
                scratch: place(Loc::Arena(step.scratch)),
                parallel: step.parallel,
                step_sites: &step.sites,
                sites,
                kernels,
                failures: &failures,
            }
        });
        let calls: SmallVec<[Call; 1]> = calls.collect();
        #[cfg(test)]
        let _declared = declare(&group, &args, &calls);
        // SAFETY: binding proved that the work stays within its arguments' lengths; inputs, constants
        // and prepared results are only read; outputs and the arena belong to this run; `parallel`
        // says when parts would disturb each other, and joined steps don't.
        unsafe {
            match &group[..] {
                [step] => inner = step.work.run(&calls[0])?,
                group => run_group(group, &calls, &failures),
            }
        }
        if let (Some(start), Some(profile)) = (start, profile) {
            profile.add(first, start, start.elapsed());
        }
        kernels.fetch_add(1, Ordering::Relaxed);
        if let Some(mut failure) = inner.or(failures.take()?) {
            let site = group[0].sites.get(failure.site as usize);
            failure.site = site.copied().unwrap_or(0);
            return Ok(Some(failure));
        }
    }
    Ok(None)
}

/// Runs steps at the same time.
///
/// # Safety
/// As [`Work::run`](crate::kernels::work::Work::run); no step touches what another writes.
unsafe fn run_group(group: &[&BoundStep], calls: &[Call], failures: &Failures) {
    let mut launches: Vec<Launch> = Vec::new();
    let mut jobs: Vec<Box<dyn FnMut() + '_>> = Vec::new();
    for (step, call) in group.iter().zip(calls) {
        match step.work.tile() {
            Some(program) => launches.push(Launch {
                program,
                args: call.args,
                parallel: call.parallel,
            }),
            None => jobs.push(Box::new(move || {
                // SAFETY: the call is the step's own, and no other step of the group touches what it writes.
                if let Err(e) = unsafe { step.work.run(call) } {
                    failures.broken(e);
                }
            })),
        }
    }
    // SAFETY: as for the others; each program was bound for the arguments of its call.
    let tiles = || unsafe { run_all(&launches, failures) };
    if jobs.is_empty() {
        return tiles();
    }
    if !launches.is_empty() {
        jobs.push(Box::new(tiles));
    }
    Pool::global().together(&mut jobs);
}

/// Says what steps may touch.
#[cfg(test)]
fn declare(
    group: &[&BoundStep],
    args: &[SmallVec<[*mut u8; 12]>],
    calls: &[Call],
) -> crate::interpreted::Declared {
    let mut memory = vec![];
    for ((step, args), call) in group.iter().zip(args).zip(calls) {
        memory.push((call.scratch.cast_const(), step.scratch_bytes(), true));
        for (i, at) in args.iter().enumerate() {
            let written = step.writes.get(i).copied().unwrap_or(false);
            memory.push((at.cast_const(), step.sizes[i], written));
        }
    }
    crate::interpreted::declare(memory.into_iter())
}
