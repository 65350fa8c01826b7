//! Plans that are ready to run.

mod after;
mod bound;
mod check;
mod control;
mod covered;
mod gpu;
mod guard;
mod link;
mod moved;
mod pack;
mod profile;
mod replay;
mod run;
mod trace;
mod work;

use crate::buffer::Buffer;
use crate::cuda;
use crate::error::{Error, Result};
use crate::fork;
use crate::memory::{ALIGN, Storage, evict};
use crate::simd::Level;
pub use bound::MemoryBlock;
use bound::{Bound, Owner, Setting};
use kiln_plan::{Plan, Role, Site};
pub use profile::{StepEvent, StepTime};
pub use replay::Replays;
use run::Prepared;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
pub use trace::{Traced, Tracer};

/// Bindings kept for reuse.
const BINDINGS: usize = 16;
/// Sets of prepared results kept for reuse.
const PREPARED: usize = 4;

/// A checked plan, ready to run from any number of threads.
///
/// Programs for known sizes are made at the first run with those sizes and kept; so are the results
/// of the plan's *prepare* part, as long as the parameters' storages keep their identity.
pub struct Executable {
    plan: Plan,
    /// The plan's, for errors that are found when it may be gone.
    sites: Arc<[Site]>,
    facts: check::Facts,
    level: Level,
    /// The GPU it runs on, if it does.
    gpu: Option<Arc<cuda::Device>>,
    /// The kernels there, which stay loaded for later sizes.
    _functions: Vec<cuda::Function>,
    constants: Vec<Buffer>,
    /// Most recently used last.
    bindings: Mutex<Vec<Arc<Bound>>>,
    /// Most recently used last.
    prepared: Mutex<Vec<Arc<Prepared>>>,
    counts: Counts,
    profile: profile::Profile,
}

#[derive(Default)]
struct Counts {
    runs: AtomicU64,
    kernels: AtomicU64,
    prepares: AtomicU64,
    bindings: AtomicU64,
}

/// What an [`Executable`] has done so far.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Runs that were started.
    pub runs: u64,
    /// Kernels that were run, those of *prepare* among them.
    pub kernels: u64,
    /// Times *prepare* was run.
    pub prepares: u64,
    /// For how many sets of parameters results of *prepare* are kept.
    pub prepared: usize,
    /// Times the plan was bound to new sizes.
    pub bindings: u64,
}

/// Bytes that a run needs, known before it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// The arena of one run.
    pub peak: usize,
    /// The most bytes of temporaries that are alive at one step.
    pub lower_bound: usize,
    /// The arena that *prepare* needs while it runs.
    pub prepare_peak: usize,
    /// Results of *prepare*.
    pub prepared: usize,
    /// Outputs, without those in donated memory or handed through.
    pub outputs: usize,
    /// Data baked into the plan.
    pub constants: usize,
    /// Of these, what begins as zeros since it is not known that all of it is written.
    pub cleared: usize,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entry that `found` picks, moved to the end.
fn recent<T>(list: &mut Vec<Arc<T>>, found: impl FnMut(&Arc<T>) -> bool) -> Option<Arc<T>> {
    let at = list.iter().position(found)?;
    if at + 1 < list.len() {
        let entry = list.remove(at);
        list.push(entry);
    }
    list.last().cloned()
}

fn remember<T>(list: &mut Vec<Arc<T>>, entry: Arc<T>, most: usize) {
    if list.len() >= most {
        list.remove(0);
    }
    list.push(entry);
}

/// Turns a panic, which would be a bug of this crate, into an error.
fn guarded<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    fork::check()?;
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::Internal(text.unwrap_or("a panic").to_string()))
    })
}

impl Executable {
    /// Checks a plan for [`Level::current`]. Without symbols, its programs are made here.
    ///
    /// # Errors
    /// [`Error::Plan`] if anything in the plan is contradictory, [`Error::Level`] if the environment
    /// asks for a level that this machine lacks.
    pub fn new(plan: Plan) -> Result<Executable> {
        guarded(|| Executable::load(plan, None))
    }

    /// Checks a plan of CUDA kernels and compiles or loads those for a GPU.
    ///
    /// # Errors
    /// [`Error::Plan`] if anything in the plan is contradictory, [`Error::Cuda`] if a kernel can't be
    /// compiled or loaded.
    pub fn on_gpu(plan: Plan, device: &Arc<cuda::Device>) -> Result<Executable> {
        guarded(|| Executable::load(plan, Some(device.clone())))
    }

    fn load(plan: Plan, gpu: Option<Arc<cuda::Device>>) -> Result<Executable> {
        let facts = check::check(&plan)?;
        let mut constants = check::constants(&plan)?;
        let mut functions = Vec::new();
        if let Some(device) = &gpu {
            functions = device.prepare(&plan)?;
            for constant in &mut constants {
                *constant = constant.to_gpu(device)?;
            }
        }
        let exe = Executable {
            facts,
            level: Level::current()?,
            gpu,
            _functions: functions,
            constants,
            bindings: Mutex::default(),
            prepared: Mutex::default(),
            counts: Counts::default(),
            profile: profile::Profile::default(),
            sites: plan.sites.clone().into(),
            plan,
        };
        if exe.plan.symbols.is_empty() {
            exe.bound(&[])?;
        }
        Ok(exe)
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The CPU level the plan runs at.
    pub fn level(&self) -> Level {
        self.level
    }

    /// The GPU the plan runs on; `None` for the CPU.
    pub fn gpu(&self) -> Option<&Arc<cuda::Device>> {
        self.gpu.as_ref()
    }

    /// Runs the plan: one buffer an input in, one an output out.
    ///
    /// Inputs must be where the plan runs. On a GPU, numbers (rank 0) and random keys may come from the
    /// host. Outputs are there before they are computed, and reading them waits. A data error is found
    /// later too: by reading an output that it spoils, or by a run that takes one as an input (see
    /// [`Buffer::outcome`]); donated memory then still holds what it held.
    ///
    /// `donate[i]` offers the memory of input `i` to an output; it is taken where the plan can use
    /// it and the caller holds the only reference. The input's place then holds an empty buffer.
    /// `donate` may be shorter than the inputs.
    ///
    /// # Errors
    /// For wrong inputs, data errors, or lack of memory; every input is then as it was.
    pub fn run(&self, inputs: &mut [Buffer], donate: &[bool]) -> Result<Vec<Buffer>> {
        guarded(|| {
            let bound = self.bind(inputs)?;
            inputs.iter().try_for_each(Buffer::settled)?;
            for (i, moved) in self.bring(inputs)? {
                inputs[i] = moved;
            }
            run::run(self, &bound, run::Inputs::Owned { inputs, donate }, None)
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
            run::run(self, &bound, run::Inputs::Shared(&inputs), tracer)
        })
    }

    /// The memory that runs with these symbol values need.
    ///
    /// # Errors
    /// If the values do not fit the plan.
    pub fn memory(&self, values: &[i64]) -> Result<MemoryReport> {
        guarded(|| {
            if values.len() != self.plan.symbols.len() {
                let (takes, given) = (self.plan.symbols.len(), values.len());
                return Err(Error::Buffer(format!(
                    "the plan has {takes} symbols, {given} values given"
                )));
            }
            Ok(self.bound(values)?.report)
        })
    }

    /// The temporaries of runs with these symbol values, in the order of their first use.
    ///
    /// # Errors
    /// If the values do not fit the plan.
    pub fn temporaries(&self, values: &[i64]) -> Result<Vec<MemoryBlock>> {
        self.memory(values)?;
        guarded(|| Ok(self.bound(values)?.blocks.clone()))
    }

    /// What has been done so far.
    pub fn stats(&self) -> Stats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        Stats {
            runs: get(&self.counts.runs),
            kernels: get(&self.counts.kernels),
            prepares: get(&self.counts.prepares),
            prepared: lock(&self.prepared).len(),
            bindings: get(&self.counts.bindings),
        }
    }

    /// Forgets prepared results and bindings; later runs make them again.
    pub fn clear(&self) {
        lock(&self.bindings).clear();
        lock(&self.prepared).clear();
    }

    /// Numbers and random keys of the host where the plan runs, in one copy.
    fn bring(&self, inputs: &[Buffer]) -> Result<Vec<(usize, Buffer)>> {
        let here = |b: &Buffer| match (&self.gpu, b.gpu()) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        let mut bytes: Vec<u8> = Vec::new();
        let mut places: Vec<(usize, usize)> = Vec::new();
        for (i, input) in inputs.iter().enumerate().filter(|(_, b)| !here(b)) {
            let key = self.plan.inputs[i].role == Role::RandomKey;
            if self.gpu.is_none() || input.gpu().is_some() || !key && !input.shape().is_empty() {
                let name =
                    |d: Option<&Arc<cuda::Device>>| d.map_or("cpu".into(), |d| d.to_string());
                let (found, runs) = (name(input.gpu()), name(self.gpu.as_ref()));
                return Err(Error::Buffer(format!(
                    "input {i} is on {found}, the plan runs on {runs}"
                )));
            }
            bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
            places.push((i, bytes.len()));
            bytes.extend_from_slice(input.storage().bytes());
        }
        let (Some(device), false) = (&self.gpu, places.is_empty()) else {
            return Ok(Vec::new());
        };
        let memory = Arc::new(device.upload(&bytes)?);
        let brought = places.into_iter().map(|(i, offset)| {
            let (memory, len) = (memory.clone(), inputs[i].storage().len());
            let storage = Arc::new(Storage::part_on_gpu(memory, offset, len));
            let (dtype, shape) = (inputs[i].dtype(), inputs[i].shape().to_vec());
            (i, Buffer::new(dtype, shape, storage))
        });
        Ok(brought.collect())
    }

    /// Checks the inputs and finds or makes the programs for their sizes.
    fn bind(&self, inputs: &[Buffer]) -> Result<Arc<Bound>> {
        let values = check::inputs(&self.plan, inputs)?;
        self.bound(&values)
    }

    fn bound(&self, values: &[i64]) -> Result<Arc<Bound>> {
        let mut bindings = lock(&self.bindings);
        if let Some(bound) = recent(&mut bindings, |b| b.values[..] == *values) {
            return Ok(bound);
        }
        check::needs(&self.plan, values)?;
        self.counts.bindings.fetch_add(1, Ordering::Relaxed);
        let with = Setting {
            plan: &self.plan,
            facts: &self.facts,
            level: self.level,
            gpu: self.gpu.as_ref(),
            owner: Owner::Executable,
        };
        // What differs is often an offset.
        let mut latest = bindings.iter().rev();
        let moved = latest.find_map(|b| b.moved(with, values).transpose());
        let bound = Arc::new(match moved {
            Some(bound) => bound?,
            None => Bound::new(with, values)?,
        });
        remember(&mut bindings, bound.clone(), BINDINGS);
        Ok(bound)
    }

    /// Takes these buffers on the host, and what was prepared, out of the processor's caches, where
    /// [`memory::can_evict`](crate::memory::can_evict): what reads them next finds them in memory alone, as an
    /// operand that was written long ago is found.
    ///
    /// # Errors
    /// If the contents of a buffer are those of a run that failed.
    pub fn evict(&self, buffers: &[Buffer]) -> Result<()> {
        for buffer in buffers.iter().filter(|b| b.gpu().is_none()) {
            evict(buffer.bytes()?);
        }
        let prepared = lock(&self.prepared).clone();
        let storages = prepared.iter().flat_map(|p| &p.storages);
        for storage in storages.filter(|s| s.gpu().is_none()) {
            evict(storage.bytes());
        }
        Ok(())
    }

    /// The prepared results for the parameters among the inputs, computed if need be.
    fn prepared(&self, bound: &Bound, inputs: &[Buffer]) -> Result<Arc<Prepared>> {
        let roles = self.plan.inputs.iter().zip(inputs);
        let parameters = roles.filter(|(i, _)| i.role == Role::Parameter);
        let parameters: Vec<&Storage> = parameters.map(|(_, b)| &**b.storage()).collect();
        let values = if self.facts.prepare_is_symbolic {
            &bound.values[..]
        } else {
            &[]
        };
        // Held while preparing, so that runs that need the same results wait for them.
        let mut list = lock(&self.prepared);
        let made_from_these = |p: &Arc<Prepared>| {
            let mut pairs = p.contents.iter().zip(&parameters);
            p.values == values && pairs.all(|(made_from, s)| s.holds(made_from))
        };
        if let Some(found) = recent(&mut list, made_from_these) {
            return Ok(found);
        }
        // What was made from contents that are gone is asked for by nobody.
        list.retain(|p| p.contents.iter().all(|c| c.strong_count() > 0));
        self.counts.prepares.fetch_add(1, Ordering::Relaxed);
        let storages = run::prepare(self, bound, inputs, None)?;
        let made = Arc::new(Prepared {
            contents: parameters.iter().map(|s| s.contents()).collect(),
            values: values.to_vec(),
            storages,
        });
        remember(&mut list, made.clone(), PREPARED);
        Ok(made)
    }
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executable")
            .field("level", &self.level)
            .field("kernels", &self.plan.kernels.len())
            .field("steps", &self.plan.run.len())
            .finish_non_exhaustive()
    }
}
