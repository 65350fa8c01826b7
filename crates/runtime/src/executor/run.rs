//! Running a bound plan.

use super::bound::{Bound, BoundStep, Loc};
use super::guard::Guard;
use super::profile::Profile;
use super::trace::{self, Tracer};
use super::work::Call;
use super::{Executable, gpu};
use crate::buffer::Buffer;
use crate::cancel::{self, Cancel};
use crate::cuda::{Job, Outcome, Session};
use crate::error::{Error, Result};
use crate::memory::Storage;
use crate::pool::Pool;
use crate::tile::{Failure, Failures, Launch, run_all};
use kiln_plan::Site;
use kiln_plan::cuda::ErrorRecord;
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Results of *prepare* for one set of parameters.
pub(super) struct Prepared {
    /// The parameters' contents that it was made from.
    pub contents: Vec<Weak<u64>>,
    pub values: Vec<i64>,
    pub storages: Vec<Arc<Storage>>,
}

/// The inputs, and whether their memory may be taken.
pub(super) enum Inputs<'a> {
    Shared(&'a [Buffer]),
    Owned {
        inputs: &'a mut [Buffer],
        donate: &'a [bool],
    },
}

impl Inputs<'_> {
    fn all(&self) -> &[Buffer] {
        match self {
            Inputs::Shared(inputs) => inputs,
            Inputs::Owned { inputs, .. } => inputs,
        }
    }

    /// Whether input `i` is given up, held by nobody else, and has exactly `bytes` bytes.
    fn gives(&mut self, i: usize, bytes: usize) -> bool {
        match self {
            Inputs::Owned { inputs, donate } if donate.get(i) == Some(&true) => {
                let unique = Arc::get_mut(inputs[i].storage_mut());
                unique.is_some_and(|s| s.len() == bytes)
            }
            _ => false,
        }
    }
}

/// Memory of one output.
enum Memory {
    Fresh(Storage),
    /// An input's, and what takes its place.
    Donated(usize, Buffer),
}

pub(super) fn run(
    exe: &Executable,
    bound: &Bound,
    mut inputs: Inputs,
    mut tracer: Option<&mut dyn Tracer>,
) -> Result<Vec<Buffer>> {
    exe.counts.runs.fetch_add(1, Ordering::Relaxed);
    let prepared = match (bound.prepared.is_empty(), &mut tracer) {
        (true, _) if bound.prepare.is_empty() => None,
        (_, None) => Some(exe.prepared(bound, inputs.all())?),
        (_, Some(t)) => Some(Arc::new(trace::prepare(exe, bound, inputs.all(), *t)?)),
    };
    let prepared: &[Arc<Storage>] = prepared.as_ref().map_or(&[], |p| &p.storages);
    cancel::check()?;
    let mut part = Part::new(exe, bound, false)?;
    let mut slots: SmallVec<[Memory; 4]> = SmallVec::new();
    for slot in &bound.slots {
        slots.push(match slot.donor.filter(|d| inputs.gives(*d, slot.bytes)) {
            Some(d) => Memory::Donated(d, Buffer::vacant(inputs.all()[d].dtype())?),
            None => {
                let fresh = part.allocate(slot.bytes, &bound.holders.outputs)?;
                Memory::Fresh(cleared(fresh, slot.clear))
            }
        });
    }
    for (input, slot) in &bound.kept {
        if let Memory::Fresh(to) = &mut slots[*slot] {
            part.copy(inputs.all()[*input].storage(), to)?;
        }
    }
    if slots.iter().any(|s| matches!(s, Memory::Donated(..))) {
        part.firm = exe.plan.commit as usize;
    }
    let arena = part.allocate(bound.arena, &bound.holders.arena)?;
    let arena = cleared(arena, bound.clear);
    let storage = |loc: Loc| match loc {
        Loc::Input(i) => inputs.all()[i].storage(),
        Loc::Slot(s) => match &slots[s] {
            Memory::Fresh(storage) => storage,
            Memory::Donated(i, _) => inputs.all()[*i].storage(),
        },
        Loc::Constant(c) => exe.constants[c].storage(),
        Loc::Prepared(p) => &prepared[p],
        Loc::Arena(_) => &arena,
    };
    let outcome = part.run(storage, tracer)?;
    finish(exe, bound, inputs, slots, prepared, outcome)
}

/// A part of a plan being run: *prepare* or the rest.
pub(super) struct Part<'a> {
    pub(super) exe: &'a Executable,
    pub(super) bound: &'a Bound,
    pub(super) preparing: bool,
    /// The first step that writes over donated memory, which no run leaves half written.
    firm: usize,
    /// On a GPU, what the part goes through.
    session: Option<Session>,
}

impl<'a> Part<'a> {
    fn new(exe: &'a Executable, bound: &'a Bound, preparing: bool) -> Result<Part<'a>> {
        let session = exe.gpu.as_ref().map(Session::new).transpose()?;
        Ok(Part {
            exe,
            bound,
            preparing,
            firm: usize::MAX,
            session,
        })
    }

    fn allocate(&self, bytes: usize, what: &Arc<str>) -> Result<Storage> {
        match &self.session {
            None => Storage::new(bytes),
            Some(session) => session.allocate(bytes, what),
        }
    }

    /// Copies what an input holds to memory of the same size.
    fn copy(&self, from: &Storage, to: &mut Storage) -> Result<()> {
        match &self.session {
            _ if from.len() != to.len() => Err(Error::Internal("a copy of another size".into())),
            None => {
                to.bytes_mut().copy_from_slice(from.bytes());
                Ok(())
            }
            Some(session) => session.copy(from, to),
        }
    }

    /// Runs the steps up to the first data error. On a GPU they may still be running afterwards; if they
    /// can have one, that is the outcome.
    fn run<'s>(
        mut self,
        storage: impl Fn(Loc) -> &'s Storage,
        tracer: Option<&mut dyn Tracer>,
    ) -> Result<Option<Arc<Outcome>>> {
        let (steps, on_gpu) = match self.preparing {
            true => (&self.bound.prepare, &self.bound.prepare_on_gpu),
            false => (&self.bound.run, &self.bound.run_on_gpu),
        };
        if let Some(tracer) = tracer {
            self.trace(steps, &storage, tracer)?;
            return Ok(None);
        }
        match self.session.take() {
            Some(session) => self.on_gpu(session, steps, on_gpu, &storage),
            None => {
                let profile = Some(&self.exe.profile).filter(|p| !self.preparing && p.on());
                self.on_cpu(steps, &storage, profile)?;
                Ok(None)
            }
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
        let mut found = run(before)?;
        if found.is_none() && !firm.is_empty() {
            found = cancel::unwatched(|| run(firm))?;
        }
        match found {
            Some(found) => Err(data_error(sites, found.site, found.index, found.bound)),
            None => Ok(()),
        }
    }

    /// `on_gpu` is what a GPU needs to know of the steps.
    pub(super) fn on_gpu<'s>(
        &self,
        session: Session,
        steps: &[BoundStep],
        on_gpu: &gpu::OnGpu,
        storage: &impl Fn(Loc) -> &'s Storage,
    ) -> Result<Option<Arc<Outcome>>> {
        let exe = self.exe;
        let place = |loc: Loc| address(storage, loc);
        let held = on_gpu.held.iter().map(|b| &**b.storage());
        let read: Vec<&Storage> = (on_gpu.read.iter().map(|l| storage(*l)))
            .chain(held)
            .collect();
        let written: Vec<&Storage> = on_gpu.written.iter().map(|l| storage(*l)).collect();
        // The device says how long each step took, and they run one after the other.
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
                let around = gpu::Around::plan(record, guarded_from);
                let mut calls = gpu::Calls::new(sink);
                gpu::expand(steps, &place, around, &mut calls).map(drop)
            },
            count: on_gpu.calls,
            fallible: on_gpu.fallible,
            profile: profiled.then_some(&add),
            graphs: (!self.preparing).then_some(&on_gpu.graphs),
            read: &read,
            written: &written,
        };
        let sites = exe.sites.clone();
        let explain = move |r: ErrorRecord| data_error(&sites, r.state - 1, r.index, r.bound);
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
/// As [`Work::run`](super::work::Work::run); no step touches what another writes.
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

/// Memory with zeros in it, where that is asked for.
fn cleared(mut storage: Storage, clear: bool) -> Storage {
    if clear {
        storage.bytes_mut().fill(0);
    }
    storage
}

fn finish(
    exe: &Executable,
    bound: &Bound,
    mut inputs: Inputs,
    slots: SmallVec<[Memory; 4]>,
    prepared: &[Arc<Storage>],
    outcome: Option<Arc<Outcome>>,
) -> Result<Vec<Buffer>> {
    let slots = slots.into_iter().map(|memory| match memory {
        Memory::Fresh(storage) => Arc::new(storage),
        Memory::Donated(i, vacant) => match &mut inputs {
            Inputs::Owned { inputs, .. } => {
                let taken = std::mem::replace(&mut inputs[i], vacant);
                let mut storage = taken.storage().clone();
                drop(taken);
                if let Some(s) = Arc::get_mut(&mut storage) {
                    s.renew();
                }
                storage
            }
            Inputs::Shared(inputs) => inputs[i].storage().clone(), // shared inputs give nothing
        },
    });
    let slots: SmallVec<[Arc<Storage>; 4]> = slots.collect();
    let outputs = exe.plan.outputs.iter().zip(&bound.outputs);
    let outputs = outputs.map(|(o, (loc, shape))| {
        let storage = match *loc {
            Loc::Slot(s) => &slots[s],
            Loc::Input(i) => inputs.all()[i].storage(),
            Loc::Constant(c) => exe.constants[c].storage(),
            Loc::Prepared(p) => &prepared[p],
            Loc::Arena(_) => return Err(Error::Internal("an output in the arena".into())),
        };
        let buffer = Buffer::new(o.dtype, shape.clone(), storage.clone());
        let doubtful = exe.facts.doubtful[o.buffer.0 as usize];
        Ok(buffer.with_outcome(outcome.clone().filter(|_| doubtful)))
    });
    outputs.collect()
}

/// Runs the *prepare* part.
pub(super) fn prepare(
    exe: &Executable,
    bound: &Bound,
    inputs: &[Buffer],
    tracer: Option<&mut dyn Tracer>,
) -> Result<Vec<Arc<Storage>>> {
    let part = Part::new(exe, bound, true)?;
    let storages = bound
        .prepared
        .iter()
        .map(|bytes| part.allocate(*bytes, &bound.holders.prepared));
    let clear = bound.prepare_clear;
    let storages = storages.map(|s| Ok(cleared(s?, clear)));
    let storages = storages.collect::<Result<Vec<_>>>()?;
    let arena = part.allocate(bound.prepare_arena, &bound.holders.arena)?;
    let arena = cleared(arena, clear);
    let storage = |loc: Loc| match loc {
        Loc::Input(i) => inputs[i].storage(),
        Loc::Constant(c) => exe.constants[c].storage(),
        Loc::Prepared(p) => &storages[p],
        Loc::Arena(_) | Loc::Slot(_) => &arena, // checking allows no output here
    };
    let outcome = part.run(storage, tracer)?;
    // The results are kept, so they must be right.
    outcome.map_or(Ok(()), |o| o.wait())?;
    Ok(storages.into_iter().map(Arc::new).collect())
}
