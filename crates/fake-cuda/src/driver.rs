//! The state of the driver: one per process.

use crate::clock::Span;
use crate::config::Config;
use crate::graph::{GraphNode, Nodes};
use crate::pool::Accounts;
use crate::queue::{Captures, Event, Stream};
use crate::status::{
    Failure, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_INITIALIZED, OUT_OF_MEMORY,
    Status, failure,
};
use kiln_gpu_emulator::{Kernel, Memory, Program, Statistics};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A function of a module.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub kernel: Arc<Kernel>,
    pub program: Arc<Program>,
    pub module: usize,
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
    pub max_dynamic: u32,
}

/// Counts of executed work, for tests.
#[derive(Copy, Clone, Debug, Default)]
#[repr(C)]
pub struct Counters {
    /// Kernels that ran.
    pub kernels: u64,
    /// Graphs that were launched.
    pub graphs: u64,
    /// Instructions of warps.
    pub instructions: u64,
    /// Copies between devices that need not go through the host.
    pub peer_copies: u64,
    /// Modules that are loaded now.
    pub modules: u64,
    /// Modules whose unloading waited for work in progress.
    pub waiting_unloads: u64,
}

/// The state that calls change.
#[derive(Debug, Default)]
pub(crate) struct State {
    next: usize,
    pub initialised: bool,
    /// The status left by a fault.
    pub sticky: Status,
    pub fault: Option<String>,
    pub streams: HashMap<usize, Stream>,
    pub events: HashMap<usize, Event>,
    pub captures: Captures,
    /// The nodes of the graphs that were captured or built.
    pub graphs: HashMap<usize, Vec<GraphNode>>,
    pub executables: HashMap<usize, Nodes>,
    pub modules: HashMap<usize, Arc<Program>>,
    pub functions: HashMap<usize, Function>,
    pub accounts: Accounts,
    /// Pinned memory of the host: address → storage and length.
    pub pinned: BTreeMap<usize, (Vec<u128>, usize)>,
    /// Pairs of devices: the first may access the second.
    pub peers: Vec<(usize, usize)>,
    pub counters: Counters,
    /// The work on the virtual clock.
    pub spans: Vec<Span>,
    /// By device, the time up to which the host has waited for its work.
    pub host: Vec<f64>,
    /// The nanoseconds that work has taken, if events tell the time by instructions.
    pub spent: u64,
}

/// The driver.
pub(crate) struct Driver {
    pub config: Config,
    pub memory: Arc<Memory>,
    state: Mutex<State>,
    /// A lock that is held while work is executed.
    engine: Mutex<()>,
    start: Instant,
}

/// The first handle of contexts; the device is added.
const CONTEXTS: usize = 0x1000;

/// The first handle of null streams; the device is added.
const NULL_STREAMS: usize = 0x2000;

/// The first handle of everything else.
const FIRST_HANDLE: usize = 0x1_0000;

thread_local! {
    /// The current context of the thread.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The driver of this process.
pub(crate) fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let config = Config::from_environment();
        let null_stream = |device| Stream {
            device,
            ..Stream::default()
        };
        Driver {
            memory: Arc::new(Memory::default()),
            state: Mutex::new(State {
                next: FIRST_HANDLE,
                streams: (0..config.devices)
                    .map(|d| (NULL_STREAMS + d, null_stream(d)))
                    .collect(),
                accounts: Accounts::new(config.devices, config.memory),
                host: vec![0.0; config.devices],
                ..State::default()
            }),
            engine: Mutex::new(()),
            start: Instant::now(),
            config,
        }
    })
}

/// True if a handle from [`Driver::stream`] is a null stream.
pub(crate) fn is_null_stream(stream: usize) -> bool {
    (NULL_STREAMS..FIRST_HANDLE).contains(&stream)
}

impl State {
    /// A handle that was never used.
    pub fn new_handle(&mut self) -> usize {
        self.next += 16;
        self.next
    }

    /// Fails after a fault.
    pub fn check_healthy(&self) -> Result<(), Failure> {
        match self.sticky {
            0 => Ok(()),
            fault => Err(fault.into()),
        }
    }

    /// True if a pinned allocation holds `len` bytes at `address`.
    pub fn pinned_at(&self, address: usize, len: usize) -> bool {
        let below = self.pinned.range(..=address).next_back();
        below.is_some_and(|(start, (_, size))| address + len <= start + size)
    }
}

impl Driver {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn engine(&self) -> MutexGuard<'_, ()> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails before `cuInit`.
    pub fn check_initialised(&self) -> Result<(), Failure> {
        match self.state().initialised {
            true => Ok(()),
            false => Err(NOT_INITIALIZED.into()),
        }
    }

    /// The index of a device.
    pub fn device(&self, device: i32) -> Result<usize, Failure> {
        self.check_initialised()?;
        match usize::try_from(device) {
            Ok(index) if index < self.config.devices => Ok(index),
            _ => Err(crate::status::INVALID_DEVICE.into()),
        }
    }

    /// The context of a device.
    pub fn context_of(device: usize) -> usize {
        CONTEXTS + device
    }

    /// The device of a context.
    pub fn device_of(&self, context: usize) -> Result<usize, Failure> {
        match context.checked_sub(CONTEXTS) {
            Some(device) if device < self.config.devices => Ok(device),
            _ => Err(INVALID_CONTEXT.into()),
        }
    }

    /// Makes a context current for this thread; 0 is none.
    pub fn set_current(&self, context: usize) -> Result<(), Failure> {
        if context != 0 {
            self.device_of(context)?;
        }
        CURRENT.set(context);
        Ok(())
    }

    /// The current context, or 0.
    pub fn current(&self) -> usize {
        CURRENT.get()
    }

    /// The device of the current context.
    pub fn current_device(&self) -> Result<usize, Failure> {
        self.device_of(CURRENT.get())
    }

    /// Resolves the stream of a call: 0, 1 and 2 are the null stream of the current device.
    pub fn stream(&self, stream: usize) -> Result<usize, Failure> {
        if stream > 2 {
            return Ok(stream);
        }
        Ok(NULL_STREAMS + self.current_device()?)
    }

    /// Allocates device memory. If too little is free, waits for queued frees.
    pub fn allocate(&self, device: usize, size: usize) -> Result<u64, Failure> {
        let reserve = || self.state().accounts.reserve(device, size as u64);
        let block = match reserve() {
            Err(error) if error.status == OUT_OF_MEMORY => {
                self.drain_device(device)?;
                reserve()?
            }
            found => found?,
        };
        let address = self.memory.allocate(size);
        self.state().accounts.blocks.insert(address, block);
        Ok(address)
    }

    /// The device of the allocation at an address.
    pub fn owner(&self, address: u64) -> Result<usize, Failure> {
        let block = self.state().accounts.blocks.get(&address).copied();
        let none = || failure(INVALID_VALUE, format!("no allocation at {address:#x}"));
        block.map(|block| block.device).ok_or_else(none)
    }

    /// Frees device memory at once.
    pub fn release(&self, address: u64) {
        let mut state = self.state();
        if let Some(block) = state.accounts.blocks.remove(&address) {
            state.accounts.release(block);
            self.memory.free(address);
        }
    }

    /// Checks that a queued copy stays inside the pinned memory at its address.
    pub fn check_host(&self, address: usize, len: usize) -> Result<(), String> {
        let state = self.state();
        let below = state.pinned.range(..=address).next_back();
        match below {
            Some((start, (_, size))) if address < start + size && address + len > start + size => {
                Err(format!(
                    "a copy of {len} bytes passes the end of pinned memory at {start:#x}"
                ))
            }
            _ => Ok(()),
        }
    }

    /// The function called `handle`.
    pub fn function(&self, handle: usize) -> Result<Function, Failure> {
        let state = self.state();
        let function = state.functions.get(&handle).cloned();
        function.ok_or_else(|| failure(INVALID_HANDLE, "no such function"))
    }

    /// Adds to the counters.
    pub fn count(&self, statistics: &Statistics) {
        let mut state = self.state();
        state.counters.kernels += 1;
        state.counters.instructions += statistics.instructions;
        state.spent += statistics.instructions * self.config.instruction_time.unwrap_or(0);
    }

    /// The time of an event.
    pub fn now(&self) -> Instant {
        match self.config.instruction_time {
            Some(_) => self.start + Duration::from_nanos(self.state().spent),
            None => Instant::now(),
        }
    }

    /// Adds work that begins at a time to the timeline of a device; returns its end. Without a clock that is 0.
    pub fn spend(&self, device: usize, start: f64, name: &str) -> f64 {
        let Some(costs) = self.config.costs else {
            return 0.0;
        };
        let end = start + costs.launch;
        self.note(device, [start, end], name.into());
        end
    }

    /// Adds work to the timeline of a device.
    pub fn note(&self, device: usize, [start, end]: [f64; 2], name: String) {
        self.state().spans.push(Span {
            device,
            start,
            end,
            name,
        });
    }
}

impl State {
    /// The device of a stream, and the time at which its next work begins: what the host has waited for is over.
    pub fn time_of(&self, stream: usize) -> (usize, f64) {
        let stream = self.streams.get(&stream);
        stream.map_or((0, 0.0), |s| (s.device, s.now.max(self.host[s.device])))
    }

    /// Sets the time that a stream has come to.
    pub fn set_time(&mut self, stream: usize, now: f64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.now = stream.now.max(now);
        }
    }

    /// Notes that the host has waited for work of a stream that ended at a time.
    pub fn waited(&mut self, stream: usize, now: f64) {
        if let Some(stream) = self.streams.get(&stream) {
            let host = &mut self.host[stream.device];
            *host = host.max(now);
        }
    }
}
