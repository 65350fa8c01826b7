//! The devices of tensors.

use crate::{Error, ErrorKind, Result};
use kiln_base::Loc;
use kiln_runtime::memory::{self, MemoryHolders, MemoryStats};
use kiln_runtime::{Buffer, Error as RunError, cuda};
use std::fmt;
use std::panic::Location;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The device on which a tensor's values live and are computed.
///
/// Operands of an operation must be on one device. Numbers (rank 0) from the CPU may join any, and so may
/// tensors that depend on no data, such as zeros or random numbers, until they are computed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The processor, all cores.
    #[default]
    Cpu,
    /// A GPU; see [`Device::cuda`].
    Cuda(Gpu),
}

/// An NVIDIA GPU that was found and opened; see [`Device::cuda`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gpu(u32);

impl Device {
    /// Returns the NVIDIA GPU with this number. There is no fallback to another device.
    ///
    /// # Errors
    /// If there is no driver (the message lists the paths that were searched), no such device, or it can't be opened.
    #[track_caller]
    pub fn cuda(ordinal: u32) -> Result<Device> {
        match cuda::Device::get(ordinal) {
            Ok(_) => Ok(Device::Cuda(Gpu(ordinal))),
            Err(e) => Err(device_error("Device::cuda", e, Location::caller())),
        }
    }

    /// The number of NVIDIA GPUs, as restricted by `CUDA_VISIBLE_DEVICES`; 0 without a driver.
    pub fn cuda_count() -> u32 {
        cuda::count().unwrap_or(0)
    }

    /// Returns the first GPU that can be opened, else the CPU.
    pub fn best() -> Device {
        let mut ordinals = 0..Device::cuda_count();
        ordinals
            .find_map(|n| Device::cuda(n).ok())
            .unwrap_or_default()
    }

    /// The device's name; of the CPU, `cpu`.
    pub fn name(self) -> String {
        match self.gpu() {
            Some(gpu) => gpu.name().to_string(),
            None => "cpu".to_string(),
        }
    }

    /// The compute capability of a GPU, such as (9, 0).
    pub fn capability(self) -> Option<(u32, u32)> {
        self.gpu().map(|gpu| gpu.capability())
    }

    /// Returns the free and total bytes of the device's memory. For a GPU, those of its driver, for all processes; for
    /// the CPU, those of the machine or its container, less what Kiln holds in this process.
    ///
    /// # Errors
    /// If the device failed.
    #[track_caller]
    pub fn mem_get_info(self) -> Result<(usize, usize)> {
        let Some(gpu) = self.gpu() else {
            let total = memory::machine_memory();
            return Ok((total.saturating_sub(memory::stats().reserved), total));
        };
        match gpu.free_memory() {
            Ok(free) => Ok((free, gpu.total_memory())),
            Err(e) => Err(device_error("Device::mem_get_info", e, Location::caller())),
        }
    }

    /// The device's memory that this process holds.
    pub fn memory(self) -> MemoryStats {
        self.gpu().map_or_else(memory::stats, |gpu| gpu.memory())
    }

    /// Resets the peak of [`Device::memory`] to the bytes in use now.
    pub fn reset_peak(self) {
        self.gpu()
            .map_or_else(memory::reset_peak, |gpu| gpu.reset_peak());
    }

    /// The holders of the device's memory, now and at the peak: lines of the program, by category.
    pub fn memory_holders(self) -> MemoryHolders {
        self.gpu().map_or_else(memory::holders, |gpu| gpu.holders())
    }

    /// A table of the device's memory by category, now and at the peak, and the largest holders at the peak.
    pub fn memory_summary(self) -> String {
        crate::memory::summary(self)
    }

    /// Limits the bytes that this process may hold of the device's memory. To exceed the limit is an error
    /// ([`ErrorKind::Memory`]) after which the program can continue. What readers of files keep counts against the
    /// CPU's limit too.
    pub fn set_memory_limit(self, limit: Option<usize>) {
        match self.gpu() {
            Some(gpu) => gpu.set_limit(limit),
            None => memory::set_limit(limit),
        }
    }

    /// Returns memory that is kept for reuse to the system.
    ///
    /// # Errors
    /// If the device failed.
    #[track_caller]
    pub fn empty_cache(self) -> Result<()> {
        match self.gpu() {
            Some(gpu) => gpu
                .empty_cache()
                .map_err(|e| device_error("Device::empty_cache", e, Location::caller())),
            None => {
                memory::empty_cache();
                Ok(())
            }
        }
    }

    /// The runtime's handle of a GPU.
    pub fn gpu(self) -> Option<Arc<cuda::Device>> {
        match self {
            Device::Cpu => None,
            // Opened when the value was created.
            Device::Cuda(Gpu(ordinal)) => cuda::Device::get(ordinal).ok(),
        }
    }

    /// Returns the buffer on this device: itself, or a copy.
    pub fn bring(self, buffer: Buffer) -> Result<Buffer, RunError> {
        match (self.gpu(), buffer.gpu()) {
            (None, None) => Ok(buffer),
            (None, Some(_)) => buffer.to_host(),
            (Some(gpu), _) => buffer.to_gpu(&gpu),
        }
    }

    /// The number of a GPU.
    pub fn ordinal(self) -> Option<u32> {
        match self {
            Device::Cpu => None,
            Device::Cuda(Gpu(ordinal)) => Some(ordinal),
        }
    }

    /// An error of a run on this device, which is named if it is one of several GPUs.
    pub(crate) fn named_in(self, e: Error) -> Error {
        match self {
            Device::Cuda(_) if Device::cuda_count() > 1 => e.with_note(format!("on {self}")),
            _ => e,
        }
    }
}

/// The error of a device that failed.
pub(crate) fn device_error(called: &str, e: RunError, loc: &'static Location<'static>) -> Error {
    Error::new(ErrorKind::Device, called, e.to_string(), loc)
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(Gpu(ordinal)) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// PyTorch's texts of devices: `cpu`, `cuda:1`, and `cuda`, which is `cuda:0`.
///
/// ```
/// use kiln_lazy::device::Device;
/// assert_eq!("cpu".parse::<Device>()?, Device::Cpu);
/// let e = "gpu".parse::<Device>().unwrap_err();
/// assert!(e.to_string().contains("\"gpu\" is not a device: say cpu, cuda or cuda:N"));
/// # Ok::<(), kiln_lazy::Error>(())
/// ```
impl FromStr for Device {
    type Err = Error;

    /// # Errors
    /// If the text names no device, or as [`Device::cuda`].
    fn from_str(text: &str) -> Result<Device> {
        let ordinal = match text.strip_prefix("cuda") {
            Some("") => Some(0),
            Some(rest) => rest.strip_prefix(':').and_then(|n| n.parse().ok()),
            None if text == "cpu" => return Ok(Device::Cpu),
            None => None,
        };
        // The standard library's `parse` does not know the user's line.
        let error = |kind, message: &str| Error::new(kind, "parse", message, Loc::UNKNOWN);
        // Numbers would take a sign.
        match ordinal.filter(|_| !text.contains('+')) {
            Some(ordinal) => Device::cuda(ordinal).map_err(|e| error(e.kind(), e.message())),
            None => {
                let message = format!("{text:?} is not a device: say cpu, cuda or cuda:N");
                Err(error(ErrorKind::Value, &message))
            }
        }
    }
}

/// A device that changes.
pub struct Home(AtomicU32);

impl Home {
    /// Returns a home that is initially the CPU.
    pub const fn cpu() -> Home {
        Home(AtomicU32::new(0))
    }

    /// Returns a home that is initially this device.
    pub fn new(device: Device) -> Home {
        let home = Home::cpu();
        home.set(device);
        home
    }

    /// The current device.
    pub fn get(&self) -> Device {
        match self.0.load(Ordering::Relaxed) {
            0 => Device::Cpu,
            n => Device::Cuda(Gpu(n - 1)),
        }
    }

    /// Sets the device.
    pub fn set(&self, device: Device) {
        let n = device.ordinal().map_or(0, |ordinal| ordinal + 1);
        self.0.store(n, Ordering::Relaxed);
    }
}

/// Sets the number of threads that run kernels, for the whole process: at least 1, at most 1024; a number outside is
/// taken as the nearest one. Results never depend on it.
pub fn set_threads(threads: usize) {
    kiln_runtime::pool::Pool::global().set_threads(threads);
}

/// The number of threads that run kernels.
pub fn threads() -> usize {
    kiln_runtime::pool::Pool::global().threads()
}
