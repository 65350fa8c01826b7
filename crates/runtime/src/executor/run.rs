//! Running a bound plan.

use super::bound::Bound;
use super::executable::{Executable, Prepared, find_and_touch, guarded, remember};
use super::loc::Loc;
use super::part::PlanPart;
use super::prepare::prepare;
use super::trace::Tracer;
use crate::buffer::Buffer;
use kiln_cuda::Outcome;
use kiln_kernel::cancel;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use kiln_kernel::memory::Storage;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Sets of prepared results kept for reuse.
const PREPARED: usize = 4;

impl Executable {
    /// Runs the plan on one buffer for each input; returns one for each output.
    ///
    /// Inputs must be on the device on which the plan runs. On a GPU, numbers (rank 0) and random keys may come from
    /// the host. Outputs exist before they are computed, and reading them waits. A data error is reported later too:
    /// by reading an output that it makes invalid, or by a run that takes one as an input (see [`Buffer::outcome`]).
    /// Donated memory then still has its old contents.
    ///
    /// `donate[i]` offers the memory of input `i` to an output. It is taken where the plan can use it and the caller
    /// holds the only reference; the input is then replaced by an empty buffer. `donate` may be shorter than the
    /// inputs.
    ///
    /// # Errors
    /// For wrong inputs, data errors, or lack of memory; every input is then unchanged.
    pub fn run(&self, inputs: &mut [Buffer], donate: &[bool]) -> Result<Vec<Buffer>> {
        guarded(|| {
            let bound = self.bind(inputs)?;
            inputs.iter().try_for_each(Buffer::settled)?;
            for (i, moved) in self.bring(inputs)? {
                inputs[i] = moved;
            }
            run(self, &bound, Inputs::Owned { inputs, donate }, None)
        })
    }

    /// Runs the plan without donating anything.
    ///
    /// # Errors
    /// As for [`Executable::run`].
    pub fn run_shared(&self, inputs: &[Buffer]) -> Result<Vec<Buffer>> {
        self.shared(inputs, None)
    }

    fn shared(&self, inputs: &[Buffer], tracer: Option<&mut dyn Tracer>) -> Result<Vec<Buffer>> {
        guarded(|| {
            let bound = self.bind(inputs)?;
            inputs.iter().try_for_each(Buffer::settled)?;
            let mut inputs = Cow::Borrowed(inputs);
            for (i, moved) in self.bring(&inputs)? {
                inputs.to_mut()[i] = moved;
            }
            run(self, &bound, Inputs::Shared(&inputs), tracer)
        })
    }

    /// Runs the plan one step after the other and shows each to `tracer`, those of the *prepare* part first. Kernels,
    /// memory layout and results are those of a run without donations.
    ///
    /// # Errors
    /// As for [`Executable::run`], and the tracer's errors.
    pub fn trace(&self, inputs: &[Buffer], tracer: &mut dyn Tracer) -> Result<Vec<Buffer>> {
        self.shared(inputs, Some(tracer))
    }

    /// Returns the prepared results for the parameters among the inputs, computed if necessary.
    pub(super) fn prepared(&self, bound: &Bound, inputs: &[Buffer]) -> Result<Arc<Prepared>> {
        let parameters: Vec<&Storage> = self.parameters(inputs).collect();
        let values = if self.facts.prepare_is_symbolic {
            &bound.values[..]
        } else {
            &[]
        };
        // Locked while preparing: runs that need the same results wait for them.
        let mut list = lock(&self.prepared);
        let is_current = |p: &Arc<Prepared>| {
            let mut pairs = p.contents.iter().zip(&parameters);
            p.values == values
                && p.touched == bound.touched
                && pairs.all(|(made_from, s)| s.holds(made_from))
        };
        if let Some(results) = find_and_touch(&mut list, is_current) {
            return Ok(results);
        }
        // Results from contents that no longer exist are never needed again.
        list.retain(|p| p.contents.iter().all(|c| c.strong_count() > 0));
        self.counts.prepares.fetch_add(1, Ordering::Relaxed);
        let storages = prepare(self, bound, inputs, None)?;
        let results = Arc::new(Prepared {
            contents: parameters.iter().map(|s| s.contents()).collect(),
            values: values.to_vec(),
            touched: bound.touched.clone(),
            storages,
        });
        remember(&mut list, results.clone(), PREPARED);
        Ok(results)
    }
}

/// The inputs, and whether their memory may be taken.
enum Inputs<'a> {
    Shared(&'a [Buffer]),
    Owned {
        inputs: &'a mut [Buffer],
        donate: &'a [bool],
    },
}

impl Inputs<'_> {
    fn buffers(&self) -> &[Buffer] {
        match self {
            Inputs::Shared(inputs) => inputs,
            Inputs::Owned { inputs, .. } => inputs,
        }
    }

    /// True if input `i` is donated, nobody else holds it, and it has exactly `bytes` bytes.
    fn gives(&mut self, i: usize, bytes: usize) -> bool {
        match self {
            Inputs::Owned { inputs, donate } if donate.get(i) == Some(&true) => {
                let unique = Arc::get_mut(inputs[i].storage_mut());
                unique.is_some_and(|s| s.len() == bytes && s.is_own())
            }
            _ => false,
        }
    }
}

/// The memory of an output.
enum OutputMemory {
    Fresh(Storage),
    /// An input's memory, and the buffer that replaces the input.
    Donated(usize, Buffer),
}

fn run(
    exe: &Executable,
    bound: &Bound,
    mut inputs: Inputs,
    mut tracer: Option<&mut dyn Tracer>,
) -> Result<Vec<Buffer>> {
    exe.counts.runs.fetch_add(1, Ordering::Relaxed);
    let (cached, traced);
    let prepared: &[Arc<Storage>] = match (bound.prepared.is_empty(), &mut tracer) {
        (true, _) if bound.prepare.is_empty() => &[],
        (_, None) => {
            cached = exe.prepared(bound, inputs.buffers())?;
            &cached.storages
        }
        (_, Some(tracer)) => {
            traced = prepare(exe, bound, inputs.buffers(), Some(&mut **tracer))?;
            &traced
        }
    };
    cancel::check()?;
    let mut part = PlanPart::new(exe, bound, false)?;
    let mut slots: SmallVec<[OutputMemory; 4]> = SmallVec::new();
    for slot in &bound.slots {
        slots.push(match slot.donor.filter(|d| inputs.gives(*d, slot.bytes)) {
            Some(d) => OutputMemory::Donated(d, Buffer::vacant(inputs.buffers()[d].dtype())?),
            None => {
                let memory = part.allocate(slot.bytes, bound.holders.outputs)?;
                OutputMemory::Fresh(cleared(memory, slot.clear))
            }
        });
    }
    for (input, slot) in &bound.initial_inputs {
        if let OutputMemory::Fresh(to) = &mut slots[*slot] {
            part.copy(inputs.buffers()[*input].storage(), to)?;
        }
    }
    if slots.iter().any(|s| matches!(s, OutputMemory::Donated(..))) {
        part.firm = exe.plan.commit as usize;
    }
    let arena = part.allocate(bound.arena, bound.holders.arena)?;
    let arena = cleared(arena, bound.clear);
    let storage = |loc: Loc| match loc {
        Loc::Input(i) => inputs.buffers()[i].storage(),
        Loc::Slot(s) => match &slots[s] {
            OutputMemory::Fresh(storage) => storage,
            OutputMemory::Donated(i, _) => inputs.buffers()[*i].storage(),
        },
        Loc::Constant(c) => exe.constants[c].storage(),
        Loc::Prepared(p) => &prepared[p],
        Loc::Arena(_) => &arena,
    };
    let outcome = part.run(storage, tracer)?;
    finish(exe, bound, inputs, slots, prepared, outcome)
}

impl PlanPart<'_> {
    /// Runs the steps up to the first data error. On a GPU they may still be running afterwards; if they can report
    /// one, the outcome of the run is returned.
    pub(super) fn run<'s>(
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
}

/// The memory, filled with zeros if `clear`.
pub(super) fn cleared(mut storage: Storage, clear: bool) -> Storage {
    if clear {
        storage.bytes_mut().fill(0);
    }
    storage
}

fn finish(
    exe: &Executable,
    bound: &Bound,
    mut inputs: Inputs,
    slots: SmallVec<[OutputMemory; 4]>,
    prepared: &[Arc<Storage>],
    outcome: Option<Arc<Outcome>>,
) -> Result<Vec<Buffer>> {
    let slots = slots.into_iter().map(|memory| match memory {
        OutputMemory::Fresh(storage) => Arc::new(storage),
        OutputMemory::Donated(i, vacant) => match &mut inputs {
            Inputs::Owned { inputs, .. } => {
                let input = std::mem::replace(&mut inputs[i], vacant);
                let mut storage = input.storage().clone();
                drop(input);
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
            Loc::Input(i) => inputs.buffers()[i].storage(),
            Loc::Constant(c) => exe.constants[c].storage(),
            Loc::Prepared(p) => &prepared[p],
            Loc::Arena(_) => return Err(Error::Internal("an output in the arena".into())),
        };
        let buffer = Buffer::new(o.dtype, shape, storage.clone());
        let invalid_after_error = exe.facts.invalid_after_error[o.buffer.0 as usize];
        Ok(buffer.with_outcome(outcome.clone().filter(|_| invalid_after_error)))
    });
    outputs.collect()
}
