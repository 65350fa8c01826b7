//! Running a bound plan.

use super::Executable;
use super::bound::{Bound, BoundStep, Loc, Work};
use crate::buffer::Buffer;
use crate::cuda::{Call, Session};
use crate::error::{Error, Result};
use crate::memory::Storage;
use crate::tile::{Failures, Launch, run_all};
use kiln_base::plan::Step;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Results of *prepare* for one set of parameters.
pub(super) struct Prepared {
    pub ids: Vec<u64>,
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

pub(super) fn run(exe: &Executable, bound: &Bound, mut inputs: Inputs) -> Result<Vec<Buffer>> {
    exe.counts.runs.fetch_add(1, Ordering::Relaxed);
    let prepared = match bound.prepared.is_empty() && bound.prepare.is_empty() {
        true => None,
        false => Some(exe.prepared(bound, inputs.all())?),
    };
    let prepared: &[Arc<Storage>] = prepared.as_ref().map_or(&[], |p| &p.storages);
    let part = Part::new(exe, bound, false)?;
    let mut slots: SmallVec<[Memory; 4]> = SmallVec::new();
    for slot in &bound.slots {
        slots.push(match slot.donor.filter(|d| inputs.gives(*d, slot.bytes)) {
            Some(d) => Memory::Donated(d, Buffer::vacant(inputs.all()[d].dtype())?),
            None => Memory::Fresh(part.allocate(slot.bytes, &bound.holders.outputs)?),
        });
    }
    let arena = part.allocate(bound.arena, &bound.holders.arena)?;
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
    part.run(storage)?;
    finish(exe, bound, inputs, slots, prepared)
}

/// A part of a plan being run: *prepare* or the rest.
struct Part<'a> {
    exe: &'a Executable,
    bound: &'a Bound,
    preparing: bool,
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
            session,
        })
    }

    fn allocate(&self, bytes: usize, what: &Arc<str>) -> Result<Storage> {
        match &self.session {
            None => Storage::new(bytes),
            Some(session) => session.allocate(bytes, what),
        }
    }

    /// Runs the steps up to the first data error. On a GPU they may still be running afterwards if
    /// they can't have one.
    fn run<'s>(self, storage: impl Fn(Loc) -> &'s Storage) -> Result<()> {
        let (exe, bound) = (self.exe, self.bound);
        let (steps, source) = match self.preparing {
            true => (&bound.prepare, &exe.plan.prepare),
            false => (&bound.run, &exe.plan.run),
        };
        let place = |loc: Loc| match loc {
            Loc::Arena(offset) => storage(loc).ptr().wrapping_add(offset),
            _ => storage(loc).ptr(),
        };
        let Some(session) = self.session else {
            let profile = !self.preparing && exe.profile.on();
            return run_steps(exe, steps, source, profile, place);
        };
        let mut calls = Vec::with_capacity(steps.len());
        let (mut read, mut written): (Vec<&Storage>, Vec<&Storage>) = (Vec::new(), Vec::new());
        for step in steps {
            let Work::Cuda(launch) = &*step.work else {
                return Err(Error::Internal("a CPU kernel for a GPU".into()));
            };
            calls.push(Call {
                launch,
                args: step.args.iter().map(|a| place(*a)).collect(),
                sites: &source[step.step].sites,
                guarded: !self.preparing && step.step >= exe.plan.commit as usize,
            });
            for (loc, writes) in step.args.iter().zip(launch.writes()) {
                let (list, at) = (if writes { &mut written } else { &mut read }, storage(*loc));
                if !list.iter().any(|s| std::ptr::eq(*s, at)) {
                    list.push(at);
                }
            }
        }
        let graphs = (!self.preparing).then_some(&bound.graphs);
        let failure = session.run(&calls, graphs, &read, &written)?;
        let count = steps.len() as u64;
        exe.counts.kernels.fetch_add(count, Ordering::Relaxed);
        match failure {
            Some(found) => Err(data_error(exe, found.state - 1, found.index, found.bound)),
            None => Ok(()),
        }
    }
}

fn data_error(exe: &Executable, site: u32, index: i64, bound: i64) -> Error {
    let Some(info) = exe.plan.sites.get(site as usize) else {
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

/// Runs steps one after the other on the CPU, up to the first data error.
fn run_steps(
    exe: &Executable,
    steps: &[BoundStep],
    source: &[Step],
    profile: bool,
    place: impl Fn(Loc) -> *mut u8,
) -> Result<()> {
    let failures = Failures::default();
    for group in steps.chunk_by(|_, next| next.joined) {
        let site = |i: u32| {
            let sites = &source[group[0].step].sites;
            let site = sites.get(i as usize).copied().unwrap_or(0);
            (site, &exe.plan.sites[site as usize])
        };
        let args = |step: &BoundStep| -> SmallVec<[*mut u8; 12]> {
            step.args.iter().map(|a| place(*a)).collect()
        };
        let start = profile.then(Instant::now);
        // SAFETY: binding proved that the work stays within its arguments' lengths; inputs, constants
        // and prepared results are only read; outputs and the arena belong to this run; `parallel`
        // says when parts would disturb each other, and joined steps don't.
        unsafe {
            match group {
                [step] => {
                    if let Some(text) = run_step(step, &args(step), &failures)? {
                        return Err(Error::Custom {
                            op: site(0).1.op.clone(),
                            text,
                            node: site(0).1.node,
                        });
                    }
                }
                _ => {
                    let args: Vec<_> = group.iter().map(args).collect();
                    let launch = |(step, args)| tile_launch(step, args);
                    let launches: Vec<Launch> =
                        group.iter().zip(&args).filter_map(launch).collect();
                    run_all(&launches, &failures);
                }
            }
        }
        if let Some(start) = start {
            exe.profile.add(group[0].step, start.elapsed());
        }
        exe.counts.kernels.fetch_add(1, Ordering::Relaxed);
        if let Some(failure) = failures.take()? {
            return Err(data_error(
                exe,
                site(failure.site).0,
                failure.index,
                failure.bound,
            ));
        }
    }
    Ok(())
}

/// A step of a tile kernel, to run with others.
fn tile_launch<'a>(step: &'a BoundStep, args: &'a SmallVec<[*mut u8; 12]>) -> Option<Launch<'a>> {
    match &*step.work {
        Work::Tile(program) => Some(Launch {
            program,
            args,
            parallel: step.parallel,
        }),
        _ => None,
    }
}

/// Runs a step by itself; gives what a user's kernel says of its failure.
///
/// # Safety
/// The arguments are those it was linked for, and `parallel` is right.
unsafe fn run_step(
    step: &BoundStep,
    args: &[*mut u8],
    failures: &Failures,
) -> Result<Option<String>> {
    let parallel = step.parallel;
    // SAFETY: the caller's.
    unsafe {
        match &*step.work {
            Work::Tile(program) => {
                let launch = Launch {
                    program,
                    args,
                    parallel,
                };
                run_all(&[launch], failures);
            }
            Work::MatMul(m) => m.run(args, parallel, failures),
            Work::Conv(c) => c.run(args, parallel, failures),
            Work::Scan(s) => s.run(args, parallel),
            Work::ArgSort(s) => s.run(args, parallel, failures),
            Work::Scatter(s) => s.run(args, parallel, failures),
            Work::Custom(c) => return Ok(c.run(args).err()),
            Work::Cuda(_) => return Err(Error::Internal("a GPU kernel for the CPU".into())),
        }
    }
    Ok(None)
}

fn finish(
    exe: &Executable,
    bound: &Bound,
    mut inputs: Inputs,
    slots: SmallVec<[Memory; 4]>,
    prepared: &[Arc<Storage>],
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
        Ok(Buffer::new(o.dtype, shape.clone(), storage.clone()))
    });
    outputs.collect()
}

/// Runs the *prepare* part.
pub(super) fn prepare(
    exe: &Executable,
    bound: &Bound,
    inputs: &[Buffer],
) -> Result<Vec<Arc<Storage>>> {
    let part = Part::new(exe, bound, true)?;
    let storages = bound
        .prepared
        .iter()
        .map(|bytes| part.allocate(*bytes, &bound.holders.prepared));
    let storages = storages.collect::<Result<Vec<_>>>()?;
    let arena = part.allocate(bound.prepare_arena, &bound.holders.arena)?;
    part.run(|loc| match loc {
        Loc::Input(i) => inputs[i].storage(),
        Loc::Constant(c) => exe.constants[c].storage(),
        Loc::Prepared(p) => &storages[p],
        Loc::Arena(_) | Loc::Slot(_) => &arena, // checking allows no output here
    })?;
    Ok(storages.into_iter().map(Arc::new).collect())
}
