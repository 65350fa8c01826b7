//! A plan's steps on a GPU as a list of calls, each with the earlier calls that it waits for. Loops are unrolled, and
//! branches include both their sides.
//!
//! Nothing waits for a condition. A kernel at the branch writes an error record for each side. The record of the side
//! that is not taken says that there was an error. All kernels of a side are guarded by its record, so those of the
//! side that is not taken do nothing. Data errors of the other side are passed on outwards after the branch. The
//! sides share scratch memory, so one comes after the other.

use super::control::{Body, BodyMemory, If, Loop, NUMBER};
use super::guard::Guard;
use super::loc::Loc;
use super::step::BoundStep;
use crate::buffer::Buffer;
use kiln_kernel::calls::{Calls, LastCalls, StepContext};
use kiln_kernel::error::{Error, Result};
use kiln_kernel::memory::Storage;
use kiln_kernel::work::Expand;
use kiln_plan::cuda::ErrorRecord;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Adds the calls of these steps, which are a whole part. Returns the last ones: when they end, all calls are done.
pub(super) fn expand(
    steps: &[BoundStep],
    address: &dyn Fn(Loc) -> *mut u8,
    context: StepContext,
    calls: &mut Calls,
) -> Result<LastCalls> {
    let mut ends: Vec<LastCalls> = Vec::with_capacity(steps.len());
    let mut last = vec![true; steps.len()];
    for step in steps {
        let site = |s: &u32| context.sites.map_or(*s, |outer| outer[*s as usize]);
        let sites: SmallVec<[u32; 2]> = step.sites.iter().map(site).collect();
        let guarded = step.step >= context.guarded_from;
        let args: SmallVec<[*mut u8; 12]> = step.args.iter().map(|a| address(*a)).collect();
        let mut after = LastCalls::new();
        for earlier in step.after.iter().map(|s| *s as usize) {
            after.extend_from_slice(&ends[earlier]);
            last[earlier] = false;
        }
        if step.after.is_empty() {
            after.extend_from_slice(context.after);
        }
        let mut inner = StepContext {
            record: context.record,
            guarded_from: if guarded { 0 } else { usize::MAX },
            sites: Some(&sites),
            step: context.step.or(Some(step.step)),
            after: &after,
        };
        let scratch = address(Loc::Arena(step.scratch));
        let guard_ends: LastCalls;
        if let Some(Guard {
            loc,
            launch: Some((launch, record)),
            ..
        }) = &step.guard
        {
            let record = scratch.wrapping_add(*record);
            guard_ends = calls.add(inner.call(&**launch, smallvec![address(*loc), record]))?;
            inner = StepContext {
                record,
                guarded_from: 0,
                after: &guard_ends,
                ..inner
            };
        }
        let call = Expand {
            args,
            scratch,
            context: inner,
        };
        ends.push(step.work.expand(call, calls)?);
    }
    if steps.is_empty() {
        return Ok(context.after.into());
    }
    let last = ends.iter().zip(last).filter(|(_, last)| *last);
    Ok(last.flat_map(|(ends, _)| ends).copied().collect())
}

impl Body {
    fn expand(
        &self,
        memory: &BodyMemory,
        context: StepContext,
        calls: &mut Calls,
    ) -> Result<LastCalls> {
        let mut after = LastCalls::from(context.after);
        for ((from, to, _), copy) in self.initial_copies(memory).zip(&self.copies) {
            after.extend(calls.add(context.call(&**copy, smallvec![from, to]))?);
        }
        let context = StepContext {
            after: &after,
            ..context
        };
        expand(&self.bound.run, &self.addresses(memory), context, calls)
    }

    fn gpu_memory(&self) -> impl Iterator<Item = &Arc<Storage>> {
        let constants = self.constants.iter().map(Buffer::storage);
        constants.chain(&self.bound.run_on_gpu.gpu_memory)
    }
}

impl Loop {
    /// The memory that it holds on a GPU.
    pub(super) fn gpu_memory(&self) -> Vec<&Arc<Storage>> {
        let numbers = self.numbers.iter().map(Buffer::storage);
        numbers.chain(self.body.gpu_memory()).collect()
    }

    /// Adds the calls of all its steps, each after the previous step.
    pub(super) fn unroll(&self, with: &Expand, calls: &mut Calls) -> Result<LastCalls> {
        let (args, scratch, context) = (&with.args, with.scratch, with.context);
        let mut ends = LastCalls::from(context.after);
        for ((from, to, _), copy) in self.copies_without_steps(args).zip(&self.copies) {
            ends.extend(calls.add(context.call(&**copy, smallvec![from, to]))?);
        }
        let scanned = self.scanned.iter();
        for (copy, [from, to]) in scanned.filter_map(|s| s.copy(args, scratch)) {
            ends.extend(calls.add(context.call(copy, smallvec![from, to]))?);
        }
        let numbers = self.numbers.as_ref().map(|n| n.storage().ptr());
        let numbers = numbers.ok_or_else(|| Error::Internal("a loop for the CPU".into()))?;
        let stopped: Option<()> = self.steps(args, scratch, |number, memory| {
            memory.inputs[0] = numbers.wrapping_add(number as usize * NUMBER * size_of::<i64>());
            let context = StepContext {
                after: &ends,
                ..context
            };
            ends = self.body.expand(memory, context, calls)?;
            Ok(None)
        })?;
        debug_assert!(stopped.is_none());
        let context = StepContext {
            after: &ends,
            ..context
        };
        let mut copied = LastCalls::new();
        let stacked = self.stacked.iter();
        for (copy, [to, from]) in stacked.filter_map(|s| s.copy(args, scratch)) {
            copied.extend(calls.add(context.call(copy, smallvec![from, to]))?);
        }
        Ok(if copied.is_empty() { ends } else { copied })
    }
}

impl If {
    /// The memory that it holds on a GPU.
    pub(super) fn gpu_memory(&self) -> Vec<&Arc<Storage>> {
        self.branches.iter().flat_map(Body::gpu_memory).collect()
    }

    /// Adds the calls of both sides.
    pub(super) fn expand_sides(&self, with: &Expand, calls: &mut Calls) -> Result<LastCalls> {
        let (args, scratch, context) = (&with.args, with.scratch, with.context);
        let branch = self.branch.as_ref();
        let branch = branch.ok_or_else(|| Error::Internal("a branch for the CPU".into()))?;
        let mut ends =
            calls.add(context.call(&**branch, smallvec![args[self.condition], scratch]))?;
        let memory = self.memory(args, scratch);
        let sites = context.sites.unwrap_or_default();
        let (of_then, of_else) = sites.split_at(self.branches[0].sites.len().min(sites.len()));
        for (i, (body, sites)) in self.branches.iter().zip([of_then, of_else]).enumerate() {
            let side = StepContext {
                record: scratch.wrapping_add(i * size_of::<ErrorRecord>()),
                guarded_from: 0,
                sites: Some(sites),
                step: context.step,
                after: &ends,
            };
            ends = body.expand(&memory, side, calls)?;
        }
        match &self.concurrent {
            Some(concurrent) => {
                let context = StepContext {
                    after: &ends,
                    ..context
                };
                calls.add(context.call(&**concurrent, smallvec![scratch]))
            }
            None => Ok(ends),
        }
    }
}
