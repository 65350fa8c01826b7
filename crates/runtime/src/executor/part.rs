//! A part of a bound plan on its engine.

use super::bound::Bound;
use super::cpu::run_steps;
use super::executable::Executable;
use super::gpu::expand;
use super::loc::Loc;
use super::on_gpu::OnGpu;
use super::profile::Profile;
use super::step::BoundStep;
use kiln_cuda::{Job, Outcome, Session};
use kiln_kernel::calls::{Calls, StepContext};
use kiln_kernel::cancel;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::memory::{Holder, Storage};
use kiln_kernel::work::step_error;
use kiln_plan::Site;
use kiln_plan::cuda::ErrorRecord;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A part of a plan being run: *prepare* or the rest.
pub(super) struct PlanPart<'a> {
    pub(super) exe: &'a Executable,
    pub(super) bound: &'a Bound,
    pub(super) preparing: bool,
    /// The first step that writes over donated memory. The run is not cancelled after it: the memory is never partly
    /// overwritten.
    pub(super) firm: usize,
    /// On a GPU, the session that issues the part's work.
    pub(super) session: Option<Session>,
}

impl<'a> PlanPart<'a> {
    pub(super) fn new(
        exe: &'a Executable,
        bound: &'a Bound,
        preparing: bool,
    ) -> Result<PlanPart<'a>> {
        let session = exe.gpu.as_ref().map(Session::new).transpose()?;
        Ok(PlanPart {
            exe,
            bound,
            preparing,
            firm: usize::MAX,
            session,
        })
    }

    pub(super) fn allocate(&self, bytes: usize, holder: Holder) -> Result<Storage> {
        match &self.session {
            None => Storage::held_by(bytes, holder),
            Some(session) => session.allocate(bytes, holder),
        }
    }

    /// Copies an input's contents to memory of the same size.
    pub(super) fn copy(&self, from: &Storage, to: &mut Storage) -> Result<()> {
        match &self.session {
            _ if from.len() != to.len() => Err(Error::Internal("a copy of another size".into())),
            None => {
                to.bytes_mut().copy_from_slice(from.bytes());
                Ok(())
            }
            Some(session) => session.copy(from, to),
        }
    }

    pub(super) fn on_cpu<'s>(
        &self,
        steps: &[BoundStep],
        storage: &impl Fn(Loc) -> &'s Storage,
        profile: Option<&Profile>,
    ) -> Result<()> {
        let (sites, kernels) = (&self.exe.plan.sites, &self.exe.counts.kernels);
        let run = |steps: &[BoundStep]| {
            run_steps(steps, |loc| address(storage, loc), sites, kernels, profile)
        };
        let (before, firm) = steps.split_at(self.firm.min(steps.len()));
        let mut failed = run(before)?;
        if failed.is_none() && !firm.is_empty() {
            failed = cancel::unwatched(|| run(firm))?;
        }
        match failed {
            Some(failed) => Err(data_error(sites, failed.site, failed.index, failed.bound)),
            None => Ok(()),
        }
    }

    /// Runs steps on a GPU; `on_gpu` holds their properties.
    pub(super) fn on_gpu<'s>(
        &self,
        session: Session,
        steps: &[BoundStep],
        on_gpu: &OnGpu,
        storage: &impl Fn(Loc) -> &'s Storage,
    ) -> Result<Option<Arc<Outcome>>> {
        let exe = self.exe;
        let address_of = |loc: Loc| address(storage, loc);
        let gpu_memory = on_gpu.gpu_memory.iter().map(|s| &**s);
        let read: Vec<&Storage> = (on_gpu.read.iter().map(|l| storage(*l)))
            .chain(gpu_memory)
            .collect();
        let written: Vec<&Storage> = on_gpu.written.iter().map(|l| storage(*l)).collect();
        // The device reports the time of each step, and steps run one after the other.
        let start = Cell::new(Instant::now());
        let add = |step, time| {
            exe.profile.add(step, start.get(), time);
            start.set(start.get() + time);
        };
        let profiled = !self.preparing && exe.profile.on();
        let job = Job {
            calls: &|record, sink| {
                let guarded_from = match self.preparing {
                    true => usize::MAX,
                    false => exe.plan.commit as usize,
                };
                let context = StepContext::plan(record, guarded_from);
                let mut calls = Calls::new(sink);
                expand(steps, &address_of, context, &mut calls).map(drop)
            },
            count: on_gpu.calls,
            fallible: on_gpu.fallible,
            profile: profiled.then_some(&add),
            communicates: on_gpu.communicates,
            graphs: (!self.preparing).then_some(&on_gpu.graphs),
            read: &read,
            written: &written,
        };
        let sites = exe.sites.clone();
        let explain = move |r: ErrorRecord, fault: Option<String>| match fault {
            Some(text) => step_error(&[r.state - 1], &sites, text),
            None => data_error(&sites, r.state - 1, r.index, r.bound),
        };
        let outcome = session.run(&job, explain)?;
        let count = on_gpu.calls as u64;
        exe.counts.kernels.fetch_add(count, Ordering::Relaxed);
        Ok(outcome)
    }
}

pub(super) fn address<'s>(storage: &impl Fn(Loc) -> &'s Storage, loc: Loc) -> *mut u8 {
    match loc {
        Loc::Arena(offset) => storage(loc).ptr().wrapping_add(offset),
        _ => storage(loc).ptr(),
    }
}

fn data_error(sites: &[Site], site: u32, index: i64, bound: i64) -> Error {
    let Some(info) = sites.get(site as usize) else {
        return Error::Internal(format!("a kernel reports an error at site {site}"));
    };
    Error::Data {
        site,
        op: info.op.clone(),
        kind: info.kind,
        node: info.node,
        index,
        bound,
    }
}
