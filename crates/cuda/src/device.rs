//! Devices: their context, their properties, and the lanes that runs use.

use super::cache::compiler_version;
use super::context::Context;
use super::driver::Driver;
use super::driver::sys::CUdevice_attribute::*;
use super::lane::{Lane, Slots};
use super::libraries::{Sensors, sensors};
use super::module::Modules;
use super::outcome::{Outcome, Outcomes};
use super::pool::Pool;
use super::stream::{Staging, Stream};
use kiln_base::{Gpu, Machine};
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use kiln_kernel::memory::{MemoryEvent, MemoryHolders, MemoryStats};
use std::ffi::CString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// An NVIDIA GPU. May be used from any number of threads.
pub struct Device {
    ordinal: u32,
    /// Its address on the PCI bus, by which NVML knows it.
    bus: CString,
    pub(super) context: Context,
    /// The properties of the device, without the compiler's version.
    gpu: Gpu,
    pub(super) pool: Arc<Pool>,
    pub(super) modules: Mutex<Modules>,
    /// Idle lanes; the most recently used last.
    pub(super) lanes: Mutex<Vec<Lane>>,
    /// The stream that copies data to the device.
    pub(super) copies: Arc<Stream>,
    pub(super) staging: Mutex<Vec<Staging>>,
    pub(super) slots: Arc<Slots>,
    pub(super) outcomes: Outcomes,
    graphs: AtomicBool,
    /// The stream of collective operations, created at the first one.
    communication: Mutex<Option<Arc<Stream>>>,
}

/// The number of devices; `CUDA_VISIBLE_DEVICES` restricts them.
///
/// # Errors
/// [`Error::Cuda`] if there is no driver, with the places that were searched.
pub fn count() -> Result<u32> {
    Ok(Driver::get()?.devices)
}

/// The version of CUDA that the driver supports, and the file that it was loaded from.
///
/// # Errors
/// [`Error::Cuda`] if there is no driver, with the places that were searched.
pub fn driver() -> Result<((u32, u32), &'static Path)> {
    let driver = Driver::get()?;
    Ok((driver.version()?, &driver.path))
}

impl Device {
    /// The device of this number, opened at the first call.
    ///
    /// # Errors
    /// [`Error::Cuda`] if there is no driver, no such device, or it can't be opened.
    pub fn get(ordinal: u32) -> Result<Arc<Device>> {
        static OPEN: Mutex<Vec<Arc<Device>>> = Mutex::new(Vec::new());
        let mut open = lock(&OPEN);
        if let Some(device) = open.iter().find(|d| d.ordinal == ordinal) {
            return Ok(device.clone());
        }
        let device = Arc::new(Device::open(ordinal)?);
        open.iter().for_each(|other| device.pool.share(&other.pool));
        open.push(device.clone());
        Ok(device)
    }

    fn open(ordinal: u32) -> Result<Device> {
        let driver = Driver::get()?;
        if ordinal >= driver.devices {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES");
            let visible = visible.map_or(String::new(), |v| format!(" (CUDA_VISIBLE_DEVICES={v})"));
            return Err(Error::Cuda(format!(
                "there is no cuda:{ordinal}: the driver shows {} devices{visible}",
                driver.devices
            )));
        }
        let (context, described) = Context::retain(driver, ordinal)?;
        let (name, attribute) = (&described.name, |id| described.attribute(id));
        let arch = (
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if arch < Gpu::MIN_ARCH {
            let ((major, minor), (min_major, min_minor)) = (arch, Gpu::MIN_ARCH);
            return Err(Error::Cuda(format!(
                "cuda:{ordinal} ({name}) has compute capability {major}.{minor}; Kiln's kernels need {min_major}.{min_minor} or \
                 newer (sm_{min_major}{min_minor}: A100, RTX 30 and later)"
            )));
        }
        if attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? == 0 {
            let message = format!("cuda:{ordinal} ({name}) has no memory pools");
            return Err(Error::Cuda(message));
        }
        let gpu = Gpu {
            name: name.clone().leak(),
            arch,
            processors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            registers: attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            threads: attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            shared: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
            most_shared: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            processor_shared: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            // Older drivers have neither the attribute nor clusters.
            clusters: attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH).is_ok_and(|n| n != 0),
            driver: driver.version().ok(),
            nvrtc: None,
        };
        Ok(Device {
            ordinal,
            context,
            pool: Arc::new(Pool::new(context, described.handle, described.memory)?),
            modules: Mutex::new(Modules::new(context, gpu.arch)),
            gpu,
            lanes: Mutex::default(),
            copies: Arc::new(Stream::new(context)?),
            staging: Mutex::default(),
            slots: Arc::new(Slots::new(context)),
            outcomes: Outcomes::default(),
            graphs: AtomicBool::new(std::env::var_os("KILN_CUDA_GRAPHS").is_none_or(|v| v != "0")),
            communication: Mutex::default(),
            bus: described.bus,
        })
    }

    /// An idle lane or a new one. Makes the context current.
    pub(super) fn lane(&self) -> Result<Lane> {
        self.context.activate()?;
        let idle = lock(&self.lanes).pop();
        idle.map_or_else(|| Lane::new(&self.pool), Ok)
    }

    /// The stream of its collective operations. The context must be current.
    pub(super) fn communication(&self) -> Result<Arc<Stream>> {
        let mut stream = lock(&self.communication);
        if let Some(stream) = &*stream {
            return Ok(stream.clone());
        }
        let new = Arc::new(Stream::new(self.context)?);
        Ok(stream.insert(new).clone())
    }

    /// Makes the device's context the current one of the calling thread.
    ///
    /// # Errors
    /// If the device failed.
    pub fn activate(&self) -> Result<()> {
        self.context.activate()
    }

    /// Runs of this device that may have an unreported data error, oldest first. Successful runs are dropped in time.
    pub fn outcomes(&self) -> Vec<Arc<Outcome>> {
        self.outcomes.unreported()
    }

    /// Its number.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Its name, such as `NVIDIA H200`.
    pub fn name(&self) -> &'static str {
        self.gpu.name
    }

    /// True if it is the emulated device of the test suites, whose times mean nothing.
    pub fn is_emulated(&self) -> bool {
        self.gpu.name.starts_with("Kiln GPU emulator")
    }

    /// Its compute capability, such as (9, 0).
    pub fn capability(&self) -> (u32, u32) {
        self.gpu.arch
    }

    /// The machine that programs on it are compiled for.
    pub fn machine(&self) -> Machine {
        Machine::Gpu(Gpu {
            nvrtc: compiler_version(),
            ..self.gpu
        })
    }

    /// Bytes of its memory.
    pub fn total_memory(&self) -> usize {
        self.pool.total
    }

    /// Bytes of its memory that no process uses.
    ///
    /// # Errors
    /// If the driver reports none.
    pub fn free_memory(&self) -> Result<usize> {
        self.context.free_memory()
    }

    /// Its sensors, as far as NVML supports them.
    pub fn sensors(&self) -> Sensors {
        sensors(&self.bus)
    }

    /// The memory of the device that this process holds.
    pub fn memory(&self) -> MemoryStats {
        self.pool.stats()
    }

    /// Resets the peak to the bytes in use now.
    pub fn reset_peak(&self) {
        lock(&self.pool.ledger).reset_peak();
    }

    /// The holders of its memory.
    pub fn holders(&self) -> MemoryHolders {
        lock(&self.pool.ledger).holders()
    }

    /// Begins or ends the history of its memory, and returns the events so far.
    pub fn keep_history(&self, on: bool) -> Vec<MemoryEvent> {
        lock(&self.pool.ledger).keep_history(on)
    }

    /// Limits the bytes in use; an allocation beyond fails with [`Error::OutOfMemory`]. Memory that is kept for reuse
    /// beyond the limit is freed, so that other programs have the rest of the device.
    pub fn set_limit(&self, limit: Option<usize>) {
        self.pool.set_limit(limit);
    }

    /// Returns unused memory to the system.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn empty_cache(&self) -> Result<()> {
        self.pool.trim()
    }

    /// Waits for all work of the device. Data errors are in [`Device::outcomes`].
    ///
    /// # Errors
    /// If the device failed.
    pub fn synchronize(&self) -> Result<()> {
        self.context.synchronize()
    }

    /// Switches the replay of repeated runs as CUDA graphs on or off. On unless `KILN_CUDA_GRAPHS=0`.
    pub fn set_graphs(&self, on: bool) {
        self.graphs.store(on, Ordering::Relaxed);
    }

    /// True if repeated runs of a plan are replayed as CUDA graphs.
    pub fn graphs(&self) -> bool {
        self.graphs.load(Ordering::Relaxed)
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuda:{}", self.ordinal)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device(cuda:{} {:?})", self.ordinal, self.gpu.name)
    }
}
