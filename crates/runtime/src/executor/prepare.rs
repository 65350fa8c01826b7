//! Running *prepare*.

use super::bound::Bound;
use super::executable::Executable;
use super::loc::Loc;
use super::part::PlanPart;
use super::run::cleared;
use super::step::BoundStep;
use super::trace::Tracer;
use crate::buffer::Buffer;
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use std::sync::Arc;

/// Computes the results of *prepare* that runs touch, each in separate memory; the others have empty storage. For a
/// tracer it computes all results, since tracers see unpacked operands.
pub(super) fn prepare(
    exe: &Executable,
    bound: &Bound,
    inputs: &[Buffer],
    tracer: Option<&mut dyn Tracer>,
) -> Result<Vec<Arc<Storage>>> {
    match (tracer, &exe.gpu) {
        (None, None) => run_phases(exe, bound, inputs),
        (tracer, _) => prepare_all(exe, bound, inputs, tracer),
    }
}

/// Runs *prepare* with memory for all results.
fn prepare_all(
    exe: &Executable,
    bound: &Bound,
    inputs: &[Buffer],
    tracer: Option<&mut dyn Tracer>,
) -> Result<Vec<Arc<Storage>>> {
    let part = PlanPart::new(exe, bound, true)?;
    let clear = bound.prepare_clear;
    let storages = bound.prepared.iter().map(|bytes| {
        let memory = part.allocate(*bytes, bound.holders.prepared)?;
        Ok(cleared(memory, clear))
    });
    let storages = storages.collect::<Result<Vec<_>>>()?;
    let arena = part.allocate(bound.prepare_arena, bound.holders.arena)?;
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

/// Runs it phase by phase. Packed weights are in one block, which the system backs with huge pages, unless the caller
/// has provided them. Inputs that nothing reads again are released, which is possible for those in a mapped file.
fn run_phases(exe: &Executable, bound: &Bound, inputs: &[Buffer]) -> Result<Vec<Arc<Storage>>> {
    let (phases, clear) = (&bound.phases, bound.prepare_clear);
    let part = PlanPart::new(exe, bound, true)?;
    let arena = cleared(
        Storage::held_by(bound.prepare_arena, bound.holders.arena)?,
        clear,
    );
    let spare = Arc::new(Storage::held_by(phases.spare_bytes, bound.holders.arena)?);
    let (offsets, bytes) = bound.packed_offsets();
    let stored = exe.stored(bound, inputs).filter(|_| !clear);
    let block = match &stored {
        Some(stored) => stored.clone(),
        None => Arc::new(Storage::held_by(bytes, bound.holders.prepared)?),
    };
    let results = bound.prepared.iter().zip(&phases.spare).enumerate();
    let results = results.map(|(p, (bytes, shared_offset))| {
        match (shared_offset, p.checked_sub(bound.packs_from)) {
            (Some(offset), _) => Storage::part(&spare, *offset, *bytes),
            (None, Some(i)) => Storage::part(&block, offsets[i], *bytes),
            (None, None) => Storage::held_by(*bytes, bound.holders.prepared),
        }
    });
    let mut storages = results.collect::<Result<Vec<Storage>>>()?;
    let run = |storages: &[Storage], steps: &[BoundStep]| {
        let storage = |loc: Loc| match loc {
            Loc::Input(i) => &**inputs[i].storage(),
            Loc::Constant(c) => exe.constants[c].storage(),
            Loc::Prepared(p) => &storages[p],
            Loc::Arena(_) | Loc::Slot(_) => &arena,
        };
        part.on_cpu(steps, &storage, None)
    };
    if stored.is_some() {
        run(&storages, &bound.without_packing())?;
    } else {
        for phase in &phases.list {
            for p in phase.begins.iter().filter(|_| clear) {
                storages[*p].bytes_mut().fill(0);
            }
            run(&storages, &bound.prepare[phase.steps.clone()])?;
            let ends = phase.ends.iter().map(|i| inputs[*i].storage());
            ends.for_each(|s| s.release());
        }
    }
    let results = storages.into_iter().zip(&bound.touched);
    let results = results.map(|(storage, touched)| match touched {
        true => Ok(Arc::new(storage)),
        false => Ok(Arc::new(Storage::new(0)?)),
    });
    let results = results.collect();
    if let Some(spare) = Arc::into_inner(spare) {
        spare.give_back(); // large where weights are, and of no use to runs
    }
    results
}
