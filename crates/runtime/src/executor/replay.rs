//! Runs of a plan as CUDA graphs that are replayed, to measure the time of a run.

use super::bound::Bound;
use super::executable::{Executable, Prepared, guarded};
use super::gpu::expand;
use super::loc::Loc;
use super::part::address;
use crate::buffer::Buffer;
use kiln_cuda::{Graph, Session};
use kiln_kernel::calls::{Calls, LastCalls, StepContext};
use kiln_kernel::error::{Error, Result};
use kiln_kernel::memory::Storage;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The *run* part of a plan on sets of inputs, as CUDA graphs of several runs each. All runs write their results to
/// the same memory, which no caller gets.
pub struct Replays {
    graphs: Vec<Captured>,
    session: Session,
    /// The launches of a run.
    calls: usize,
    executable: Arc<Executable>,
    // The owners of the memory that the graphs address.
    _bound: Arc<Bound>,
    _inputs: Vec<Vec<Buffer>>,
    _prepared: Option<Arc<Prepared>>,
    _memory: Vec<Storage>,
}

struct Captured {
    graph: Graph,
    runs: usize,
}

impl Executable {
    /// Captures a run on each of these sets of inputs, of equal sizes, with `batch` runs per graph. Only on a GPU.
    ///
    /// # Errors
    /// For wrong inputs, or lack of memory.
    pub fn replays(self: &Arc<Self>, inputs: &[Vec<Buffer>], batch: usize) -> Result<Replays> {
        guarded(|| Replays::new(self, inputs, batch.max(1)))
    }
}

impl Replays {
    fn new(exe: &Arc<Executable>, inputs: &[Vec<Buffer>], batch: usize) -> Result<Replays> {
        let (Some(device), Some(first)) = (&exe.gpu, inputs.first()) else {
            let text = "replays are of runs on a GPU, on some inputs";
            return Err(Error::Buffer(text.into()));
        };
        let bound = exe.bind(first)?;
        let mut sets = Vec::with_capacity(inputs.len());
        for set in inputs {
            if !Arc::ptr_eq(&exe.bind(set)?, &bound) {
                let text = "replays are of runs on inputs of equal sizes";
                return Err(Error::Buffer(text.into()));
            }
            set.iter().try_for_each(Buffer::settled)?;
            let mut set = set.clone();
            for (i, moved) in exe.bring(&set)? {
                set[i] = moved;
            }
            sets.push(set);
        }
        let prepared = match bound.prepare.is_empty() {
            true => None,
            false => Some(exe.prepared(&bound, &sets[0])?),
        };
        let session = Session::new(device)?;
        let mut memory = Vec::with_capacity(bound.slots.len() + 1);
        for slot in &bound.slots {
            memory.push(session.allocate(slot.bytes, bound.holders.outputs)?);
        }
        memory.push(session.allocate(bound.arena, bound.holders.arena)?);
        let (arena, slots) = memory.split_last().expect("the arena is there");
        let prepared_results: &[Arc<Storage>] = prepared.as_ref().map_or(&[], |p| &p.storages);
        let mut graphs = Vec::new();
        for sets in sets.chunks(batch) {
            let read = sets.iter().flatten().chain(&exe.constants);
            let read = read
                .map(Buffer::storage)
                .chain(&bound.run_on_gpu.gpu_memory);
            let graph = session.capture(read.chain(prepared_results), &|record, sink| {
                let (mut calls, mut ends) = (Calls::new(sink), LastCalls::new());
                for set in sets {
                    let storage = |loc: Loc| match loc {
                        Loc::Input(i) => set[i].storage(),
                        Loc::Slot(s) => &slots[s],
                        Loc::Constant(c) => exe.constants[c].storage(),
                        Loc::Prepared(p) => &prepared_results[p],
                        Loc::Arena(_) => arena,
                    };
                    let context = StepContext {
                        after: &ends,
                        ..StepContext::plan(record, exe.plan.commit as usize)
                    };
                    let address_of = |loc| address(&storage, loc);
                    ends = expand(&bound.run, &address_of, context, &mut calls)?;
                }
                Ok(())
            })?;
            let runs = sets.len();
            graphs.push(Captured { graph, runs });
        }
        Ok(Replays {
            graphs,
            session,
            calls: bound.run_on_gpu.calls,
            executable: exe.clone(),
            _prepared: prepared,
            _memory: memory,
            _inputs: sets,
            _bound: bound,
        })
    }

    /// Replays a graph; they are used round-robin by `iteration`. Returns the device's average time per run.
    /// Data errors are not reported.
    ///
    /// # Errors
    /// If the device fails.
    pub fn time(&self, iteration: usize) -> Result<Duration> {
        guarded(|| {
            let Captured { graph, runs } = &self.graphs[iteration % self.graphs.len()];
            let time = self.session.time(graph)?;
            let (runs, calls) = (*runs as u64, self.calls as u64);
            let counts = &self.executable.counts;
            counts.runs.fetch_add(runs, Ordering::Relaxed);
            counts.kernels.fetch_add(runs * calls, Ordering::Relaxed);
            Ok(time / runs as u32)
        })
    }
}
