//! Plans that are ready to run, with everything that is computed once and kept.

use super::binder::{Owner, Setting};
use super::bound::Bound;
use super::check::{self, Facts};
use super::linker::Linker;
use super::packed::Stored;
use super::profile::{Profile, StepEvent, StepTime};
use super::report::{MemoryBlock, MemoryReport};
use super::step::BoundStep;
use crate::buffer::Buffer;
use kiln_base::LevelError;
use kiln_cuda as cuda;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::fork;
use kiln_kernel::lock::lock;
use kiln_kernel::memory::{ALIGN, Storage, evict};
use kiln_kernel::simd::Features;
use kiln_plan::{Plan, Role, Site};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Bindings kept for reuse.
const BINDINGS: usize = 16;

/// A checked plan, ready to run from any number of threads.
///
/// Programs for known sizes are compiled at the first run with those sizes and kept. The results of the plan's
/// *prepare* part are kept as long as the parameters' storages keep their identity.
pub struct Executable {
    pub(super) plan: Plan,
    /// The plan's sites, for errors that are found when the plan may be dropped.
    pub(super) sites: Arc<[Site]>,
    pub(super) facts: Facts,
    level: Features,
    /// The GPU it runs on, if it does.
    pub(super) gpu: Option<Arc<cuda::Device>>,
    /// The loader of kernels for that GPU.
    loader: Option<Arc<cuda::Loader>>,
    /// The kernels on that GPU, which stay loaded for later sizes.
    _functions: Vec<cuda::Function>,
    pub(super) constants: Vec<Buffer>,
    /// Most recently used last.
    pub(super) bindings: Mutex<Vec<Arc<Bound>>>,
    /// Most recently used last.
    pub(super) prepared: Mutex<Vec<Arc<Prepared>>>,
    /// Packed weights that the caller provided.
    pub(super) stored: Mutex<Option<Stored>>,
    pub(super) counts: Counts,
    pub(super) profile: Profile,
}

/// Results of *prepare* for one set of parameters.
pub(super) struct Prepared {
    /// The identities of the parameters' contents that it was computed from.
    pub contents: Vec<Weak<u64>>,
    pub values: Vec<i64>,
    /// For each result, true if it exists: runs touch no others.
    pub touched: Vec<bool>,
    pub storages: Vec<Arc<Storage>>,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) runs: AtomicU64,
    pub(super) kernels: AtomicU64,
    pub(super) prepares: AtomicU64,
    pub(super) bindings: AtomicU64,
}

/// Counts of an [`Executable`]'s work so far.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Runs that were started.
    pub runs: u64,
    /// Kernels that were run, those of *prepare* among them.
    pub kernels: u64,
    /// The number of times that *prepare* was run.
    pub prepares: u64,
    /// The number of sets of parameters for which results of *prepare* are kept.
    pub prepared: usize,
    /// The number of times that the plan was bound to new sizes.
    pub bindings: u64,
}

/// Returns the entry that satisfies `is_match`, and moves it to the end.
pub(super) fn find_and_touch<T>(
    list: &mut Vec<Arc<T>>,
    is_match: impl FnMut(&Arc<T>) -> bool,
) -> Option<Arc<T>> {
    let index = list.iter().position(is_match)?;
    if index + 1 < list.len() {
        let entry = list.remove(index);
        list.push(entry);
    }
    list.last().cloned()
}

pub(super) fn remember<T>(list: &mut Vec<Arc<T>>, entry: Arc<T>, capacity: usize) {
    if list.len() >= capacity {
        list.remove(0);
    }
    list.push(entry);
}

/// Turns a panic, which would be a bug of this crate, into an error.
pub(super) fn guarded<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    fork::check()?;
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::Internal(text.unwrap_or("a panic").to_string()))
    })
}

impl Executable {
    /// Checks a plan for [`Features::current`]. If it has no symbols, its programs are compiled here.
    ///
    /// # Errors
    /// [`Error::Plan`] if anything in the plan is contradictory, [`Error::Level`] if the environment
    /// asks for a level that this machine lacks.
    pub fn new(plan: Plan) -> Result<Executable> {
        guarded(|| Executable::load(plan, None, Features::current()?))
    }

    /// Checks a plan for a level of this machine.
    ///
    /// # Errors
    /// As [`Executable::new`]; [`Error::Level`] if the machine lacks the level.
    pub fn at_level(plan: Plan, level: Features) -> Result<Executable> {
        let has = level.is_supported();
        // The interpreter supports every level.
        #[cfg(feature = "testing")]
        let has = has || kiln_kernel::interpreted::is_interpreting();
        if !has {
            return Err(Error::Level(LevelError {
                asked: level.name().into(),
                why: "this machine lacks it".into(),
            }));
        }
        guarded(|| Executable::load(plan, None, level))
    }

    /// Checks a plan of CUDA kernels and compiles or loads those for a GPU.
    ///
    /// # Errors
    /// [`Error::Plan`] if anything in the plan is contradictory, [`Error::Cuda`] if a kernel can't be
    /// compiled or loaded.
    pub fn on_gpu(plan: Plan, device: &Arc<cuda::Device>) -> Result<Executable> {
        Executable::loaded_by(plan, &Arc::new(cuda::Loader::new(device, Vec::new())))
    }

    /// Checks a plan of CUDA kernels and loads those that a loader has in compiled form; compiles the others.
    ///
    /// # Errors
    /// As [`Executable::on_gpu`]; [`Error::Plan`] if compiled kernels do not match their description.
    pub fn loaded_by(plan: Plan, loader: &Arc<cuda::Loader>) -> Result<Executable> {
        guarded(|| Executable::load(plan, Some(loader.clone()), Features::current()?))
    }

    /// Checks a plan for a level.
    fn load(plan: Plan, loader: Option<Arc<cuda::Loader>>, level: Features) -> Result<Executable> {
        let facts = check::check(&plan)?;
        let mut constants = check::constants(&plan)?;
        let mut functions = Vec::new();
        if let Some(loader) = &loader {
            functions = loader.prepare(&plan)?;
            for constant in &mut constants {
                *constant = constant.to_gpu(loader.device())?;
            }
        }
        let exe = Executable {
            facts,
            level,
            gpu: loader.as_ref().map(|l| l.device().clone()),
            loader,
            _functions: functions,
            constants,
            bindings: Mutex::default(),
            prepared: Mutex::default(),
            stored: Mutex::default(),
            counts: Counts::default(),
            profile: Profile::default(),
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
    pub fn level(&self) -> Features {
        self.level
    }

    /// The GPU the plan runs on; `None` for the CPU.
    pub fn gpu(&self) -> Option<&Arc<cuda::Device>> {
        self.gpu.as_ref()
    }

    /// Returns the memory that runs with these symbol values need.
    ///
    /// # Errors
    /// If the values do not fit the plan.
    pub fn memory(&self, values: &[i64]) -> Result<MemoryReport> {
        guarded(|| {
            if values.len() != self.plan.symbols.len() {
                let (expected, actual) = (self.plan.symbols.len(), values.len());
                return Err(Error::Buffer(format!(
                    "the plan has {expected} symbols, {actual} values given"
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

    /// Returns the schedules of the kernels of *prepare* and of a run with these symbol values, for the level, as text
    /// for people. `None` if the algorithm alone determines the schedule, and on a GPU.
    ///
    /// # Errors
    /// If the values do not fit the plan.
    pub fn schedules(&self, values: &[i64]) -> Result<[Vec<Option<String>>; 2]> {
        self.memory(values)?;
        guarded(|| {
            let bound = self.bound(values)?;
            let texts = |steps: &[BoundStep], count: usize| {
                let mut list = vec![None; count];
                for s in steps.iter().filter(|s| s.step < count) {
                    list[s.step] = s.work.schedule();
                }
                list
            };
            let prepare = texts(&bound.prepare, self.plan.prepare.len());
            Ok([prepare, texts(&bound.run, self.plan.run.len())])
        })
    }

    /// Counts of the work so far.
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

    /// Drops prepared results and bindings; later runs compute them again.
    pub fn clear(&self) {
        lock(&self.bindings).clear();
        lock(&self.prepared).clear();
    }

    /// Switches the collection of [`step_times`](Executable::step_times) on or off, and drops earlier times. On a GPU
    /// the times are the device's, and each run is waited for while this is on.
    pub fn profile(&self, on: bool) {
        self.profile.collect(on);
    }

    /// Switches the recording of [`take_events`](Executable::take_events) on or off, and drops earlier events.
    pub fn record_events(&self, on: bool) {
        self.profile.record(on);
    }

    /// The executions of steps of the *run* part since recording was switched on or they were last
    /// taken, in the order in which they ended.
    pub fn take_events(&self) -> Vec<StepEvent> {
        self.profile.take_events()
    }

    /// The time that each step of the *run* part has taken since profiling was switched on.
    pub fn step_times(&self) -> Vec<StepTime> {
        self.profile.times(&self.plan)
    }

    /// Copies the numbers and random keys that are on the host to the device on which the plan runs, in one copy.
    pub(super) fn bring(&self, inputs: &[Buffer]) -> Result<Vec<(usize, Buffer)>> {
        let is_on_device = |b: &Buffer| match (&self.gpu, b.gpu()) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        let mut bytes: Vec<u8> = Vec::new();
        let mut offsets: Vec<(usize, usize)> = Vec::new();
        for (i, input) in inputs.iter().enumerate().filter(|(_, b)| !is_on_device(b)) {
            let is_key = self.plan.inputs[i].role == Role::RandomKey;
            if self.gpu.is_none() || input.gpu().is_some() || !is_key && !input.shape().is_empty() {
                let name =
                    |d: Option<&Arc<cuda::Device>>| d.map_or("cpu".into(), |d| d.to_string());
                let (location, device_name) = (name(input.gpu()), name(self.gpu.as_ref()));
                return Err(Error::Buffer(format!(
                    "input {i} is on {location}, the plan runs on {device_name}"
                )));
            }
            bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
            offsets.push((i, bytes.len()));
            bytes.extend_from_slice(input.storage().bytes());
        }
        let (Some(device), false) = (&self.gpu, offsets.is_empty()) else {
            return Ok(Vec::new());
        };
        let memory = Arc::new(device.upload(&bytes)?);
        let copies = offsets.into_iter().map(|(i, offset)| {
            let (memory, len) = (memory.clone(), inputs[i].storage().len());
            let storage = Arc::new(Storage::part_on_gpu(memory, offset, len));
            let (dtype, shape) = (inputs[i].dtype(), inputs[i].shape());
            (i, Buffer::new(dtype, shape, storage))
        });
        Ok(copies.collect())
    }

    /// Checks the inputs and finds or compiles the programs for their sizes.
    pub(super) fn bind(&self, inputs: &[Buffer]) -> Result<Arc<Bound>> {
        let values = check::inputs(&self.plan, inputs)?;
        self.bound(&values)
    }

    fn bound(&self, values: &[i64]) -> Result<Arc<Bound>> {
        let mut bindings = lock(&self.bindings);
        if let Some(bound) = find_and_touch(&mut bindings, |b| b.values[..] == *values) {
            return Ok(bound);
        }
        check::constraints(&self.plan, values)?;
        self.counts.bindings.fetch_add(1, Ordering::Relaxed);
        let linker = Linker {
            level: self.level,
            gpu: self.loader.as_deref(),
        };
        let with = Setting {
            plan: &self.plan,
            facts: &self.facts,
            linker: &linker,
            owner: Owner::Executable,
        };
        // Bindings often differ in an offset alone.
        let mut latest = bindings.iter().rev();
        let moved = latest.find_map(|b| b.rebind(with, values).transpose());
        let bound = Arc::new(match moved {
            Some(bound) => bound?,
            None => Bound::new(with, values)?,
        });
        remember(&mut bindings, bound.clone(), BINDINGS);
        Ok(bound)
    }

    /// Evicts these buffers on the host, and prepared results, from the processor's caches, where
    /// [`memory::can_evict`](kiln_kernel::memory::can_evict). The next reader finds them in memory alone, like an
    /// operand that was written long ago.
    ///
    /// # Errors
    /// If the contents of a buffer are those of a run that failed.
    pub fn evict(&self, buffers: &[Buffer]) -> Result<()> {
        for buffer in buffers.iter().filter(|b| b.gpu().is_none()) {
            evict(buffer.bytes()?);
        }
        let prepared = lock(&self.prepared).clone();
        let storages = prepared.iter().flat_map(|p| &p.storages);
        for storage in storages.filter(|s| s.device_memory().is_none()) {
            evict(storage.bytes());
        }
        Ok(())
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
