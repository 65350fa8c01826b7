//! Running a bound plan.

use super::Executable;
use super::bound::{Bound, BoundStep, Loc, Work};
use crate::buffer::Buffer;
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
    let mut slots: SmallVec<[Memory; 4]> = SmallVec::new();
    for slot in &bound.slots {
        slots.push(match slot.donor.filter(|d| inputs.gives(*d, slot.bytes)) {
            Some(d) => Memory::Donated(d, Buffer::vacant(inputs.all()[d].dtype())?),
            None => Memory::Fresh(Storage::new(slot.bytes)?),
        });
    }
    let arena = Storage::new(bound.arena)?;
    let place = |loc: Loc| match loc {
        Loc::Input(i) => inputs.all()[i].storage().ptr(),
        Loc::Slot(s) => match &slots[s] {
            Memory::Fresh(storage) => storage.ptr(),
            Memory::Donated(i, _) => inputs.all()[*i].storage().ptr(),
        },
        Loc::Constant(c) => exe.constants[c].storage().ptr(),
        Loc::Prepared(p) => prepared[p].ptr(),
        Loc::Arena(offset) => arena.ptr().wrapping_add(offset),
    };
    run_steps(exe, &bound.run, &exe.plan.run, exe.profile.on(), place)?;
    finish(exe, bound, inputs, slots, prepared)
}

/// Runs steps one after the other, up to the first data error.
fn run_steps(
    exe: &Executable,
    steps: &[BoundStep],
    source: &[Step],
    profile: bool,
    place: impl Fn(Loc) -> *mut u8,
) -> Result<()> {
    let failures = Failures::default();
    for group in steps.chunk_by(|_, next| next.joined) {
        let args = |step: &BoundStep| -> SmallVec<[*mut u8; 12]> {
            step.args.iter().map(|a| place(*a)).collect()
        };
        let start = profile.then(Instant::now);
        // SAFETY: binding proved that the work stays within its arguments' lengths; inputs, constants
        // and prepared results are only read; outputs and the arena belong to this run; `parallel`
        // says when parts would disturb each other, and joined steps don't.
        unsafe {
            match group {
                [step] => run_step(step, &args(step), &failures),
                _ => {
                    let args: Vec<_> = group.iter().map(args).collect();
                    let launch = |(step, args)| tile_launch(step, args);
                    let launches: Vec<Launch> =
                        group.iter().zip(&args).filter_map(launch).collect();
                    run_all(&launches, &failures);
                }
            }
        }
        let step = &group[0];
        if let Some(start) = start {
            exe.profile.add(step.step, start.elapsed());
        }
        exe.counts.kernels.fetch_add(1, Ordering::Relaxed);
        if let Some(failure) = failures.take()? {
            let sites = &source[step.step].sites;
            let site = sites.get(failure.site as usize).copied().unwrap_or(0);
            let info = &exe.plan.sites[site as usize];
            return Err(Error::Data {
                site,
                op: info.op.clone(),
                kind: info.kind,
                node: info.node,
                index: failure.index,
                bound: failure.bound,
            });
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

/// Runs a step by itself.
///
/// # Safety
/// The arguments are those it was linked for, and `parallel` is right.
unsafe fn run_step(step: &BoundStep, args: &[*mut u8], failures: &Failures) {
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
        }
    }
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
    let storages = bound.prepared.iter().map(|bytes| Storage::new(*bytes));
    let storages = storages.collect::<Result<Vec<_>>>()?;
    let arena = Storage::new(bound.prepare_arena)?;
    let place = |loc: Loc| match loc {
        Loc::Input(i) => inputs[i].storage().ptr(),
        Loc::Constant(c) => exe.constants[c].storage().ptr(),
        Loc::Prepared(p) => storages[p].ptr(),
        Loc::Arena(offset) => arena.ptr().wrapping_add(offset),
        Loc::Slot(_) => std::ptr::null_mut(), // checking allows no output here
    };
    run_steps(exe, &bound.prepare, &exe.plan.prepare, false, place)?;
    Ok(storages.into_iter().map(Arc::new).collect())
}
