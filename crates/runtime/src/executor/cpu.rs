//! Running steps on the CPU.

use super::control::{Body, BodyMemory, Loop};
use super::guard::Guard;
use super::loc::Loc;
use super::pending::Pending;
use super::profile::Profile;
use super::step::BoundStep;
use kiln_cpu::run_concurrently;
use kiln_kernel::cancel;
use kiln_kernel::cancel::Cancel;
use kiln_kernel::error::Result;
use kiln_kernel::failures::{Failure, Failures};
use kiln_kernel::view::{Arguments, ViewMut};
use kiln_kernel::work::Call;
use kiln_plan::Site;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Runs steps one after the other on the CPU, up to the first data error, which names one of `sites`. An asynchronous
/// operation is awaited before the first step that touches its result, and at the latest after the last step.
pub(super) fn run_steps(
    steps: &[BoundStep],
    address: impl Fn(Loc) -> *mut u8,
    sites: &[Site],
    kernels: &AtomicU64,
    profile: Option<&Profile>,
) -> Result<Option<Failure>> {
    let failures = Failures::with_cancel(Cancel::current());
    let mut pending = Pending::new(sites, profile);
    for group in steps.chunk_by(|_, next| next.concurrent) {
        cancel::check()?;
        let first = group[0].step;
        if !pending.is_empty() {
            let touched: Vec<Range<usize>> =
                group.iter().flat_map(|s| s.memory(&address)).collect();
            pending.wait(|r| touched.iter().any(|t| t.start < r.end && r.start < t.end))?;
        }
        // SAFETY: binding proved that guards are within their memory, and no step of the group writes one.
        let memory = |guard: &Guard| unsafe { ViewMut::new(address(guard.loc), guard.bytes) };
        let set = |guard: &Guard| guard.is_set(*memory(guard));
        let is_enabled = |step: &&BoundStep| !step.guard.as_ref().is_some_and(set);
        let group: SmallVec<[&BoundStep; 1]> = group.iter().filter(is_enabled).collect();
        if group.is_empty() {
            continue;
        }
        let args = |step: &BoundStep| -> SmallVec<[*mut u8; 12]> {
            step.args.iter().map(|a| address(*a)).collect()
        };
        let mut inner = None;
        let start = profile.is_some().then(Instant::now);
        let args: SmallVec<[_; 1]> = group.iter().map(|step| args(step)).collect();
        // SAFETY: binding proved the lengths of arguments, and memory of the size that the work asks for. Inputs,
        // constants and prepared results are only read, and outputs and the arena belong to this run. `parallel` is
        // false if parts of the step would conflict; concurrent steps never conflict.
        let calls = group.iter().zip(&args).map(|(step, args)| unsafe {
            let n = args.len() - usize::from(step.packed);
            let packed = (args.get(n)).map(|packed| ViewMut::new(*packed, step.sizes[n]));
            let scratch = address(Loc::Arena(step.scratch));
            Call {
                args: Arguments::new(&args[..n], &step.sizes[..n]),
                packed,
                scratch: ViewMut::new(scratch, step.work.scratch()),
                parallel: step.parallel,
                step_sites: &step.sites,
                sites,
                kernels,
                failures: &failures,
            }
        });
        let calls: SmallVec<[Call; 1]> = calls.collect();
        #[cfg(feature = "testing")]
        let _declared = declare(&group, &args, &calls);
        match &group[..] {
            [step] => match step.work.start(&calls[0])? {
                Some(started) => {
                    let (result, bytes) = (args[0][started.out], step.sizes[started.out]);
                    // SAFETY: binding proved the length. No step that touches it runs before `pending` has written it.
                    let out = unsafe { ViewMut::new(result, bytes) };
                    // The profile counts the time that is spent waiting for it.
                    pending.add(step, started, out);
                    kernels.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                None => inner = step.work.run(&calls[0])?,
            },
            group => {
                let works = group.iter().map(|step| &*step.work).zip(&calls);
                run_concurrently(&works.collect::<Vec<_>>(), &failures);
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
    pending.wait(|_| true)?;
    Ok(None)
}

impl Body {
    /// Packs the weights that are the same for all runs.
    fn pack(&self, memory: &BodyMemory, kernels: &AtomicU64) -> Result<Option<Failure>> {
        let steps = &self.bound.prepare;
        run_steps(steps, self.addresses(memory), &self.sites, kernels, None)
    }

    /// Runs the program.
    pub(super) fn run(&self, memory: &BodyMemory, kernels: &AtomicU64) -> Result<Option<Failure>> {
        for (from, to, bytes) in self.initial_copies(memory) {
            // SAFETY: both have this size, and a kernel's results do not alias its operands.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        }
        let steps = &self.bound.run;
        run_steps(steps, self.addresses(memory), &self.sites, kernels, None)
    }
}

impl Loop {
    /// Runs its steps, up to the first data error or to the one before which its condition is false.
    pub(super) fn run_steps(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        let args = call.args.addresses();
        for (from, to, bytes) in self.copies_without_steps(args) {
            // SAFETY: both have this size, and the result does not alias an operand.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        }
        let mut first = true;
        let scratch = call.scratch.address_mut([0, 8]);
        let end = self.steps(args, scratch, |number, memory| {
            let carried = &memory.inputs[1..];
            // SAFETY: the first carried value of a conditional loop is one bool byte.
            if self.conditional && unsafe { carried[0].read() } == 0 {
                let results = self.last.iter().zip(&self.body.inputs[1..]);
                for (from, (to, bytes)) in carried.iter().zip(results) {
                    // SAFETY: both have this size. They are one buffer, or two.
                    unsafe { std::ptr::copy(*from, args[*to], *bytes) };
                }
                return Ok(Some(None));
            }
            call.scratch.cast::<i64>().set(0, number);
            if std::mem::take(&mut first) {
                self.body.pack(memory, call.kernels)?;
            }
            Ok(self.body.run(memory, call.kernels)?.map(Some))
        })?;
        Ok(end.flatten())
    }
}

/// Declares the memory that steps may touch.
#[cfg(feature = "testing")]
fn declare(
    group: &[&BoundStep],
    args: &[SmallVec<[*mut u8; 12]>],
    calls: &[Call],
) -> kiln_kernel::interpreted::Declared {
    let mut memory = vec![];
    for ((step, args), call) in group.iter().zip(args).zip(calls) {
        let scratch = call.scratch.address([0; 2]);
        memory.push((scratch, step.scratch_bytes(), true));
        for (i, address) in args.iter().enumerate() {
            let written = step.writes.get(i).copied().unwrap_or(false);
            memory.push((address.cast_const(), step.sizes[i], written));
        }
    }
    kiln_kernel::interpreted::declare(memory.into_iter())
}
