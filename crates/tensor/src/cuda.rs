//! NVIDIA GPUs under PyTorch's names, as `torch.cuda` has them. Without a driver there are none; nothing here needs one
//! to be asked.
//!
//! A GPU is its number among those that `CUDA_VISIBLE_DEVICES` leaves. The oldest compute capability is
//! [`MIN_CAPABILITY`]; opening an older GPU is an error.
//!
//! ```
//! use kiln_tensor::cuda;
//! for n in 0..cuda::device_count() {
//!     let (free, total) = cuda::mem_get_info(n)?;
//!     println!("{}: {free} of {total} bytes are free", cuda::get_device_name(n)?);
//! }
//! # Ok::<(), kiln_tensor::Error>(())
//! ```

use crate::memory::MemoryStats;
use crate::{Device, Result};
use kiln_base::Gpu;
use kiln_runtime::cuda;
pub use kiln_runtime::cuda::{Library, Sensors, libraries};

/// The minimum compute capability that kernels are compiled for: 8.0, of Ampere (A100).
pub const MIN_CAPABILITY: (u32, u32) = Gpu::MIN_ARCH;

/// True if there is a GPU. None is opened, so an error of [`Device::cuda`] may still say that it is too old.
pub fn is_available() -> bool {
    device_count() > 0
}

/// The number of GPUs, as restricted by `CUDA_VISIBLE_DEVICES`; 0 without a driver.
pub fn device_count() -> u32 {
    Device::cuda_count()
}

/// The number of the [default device](crate::default_device), if it is a GPU, else 0.
pub fn current_device() -> u32 {
    crate::default_device().ordinal().unwrap_or(0)
}

/// The name, such as `NVIDIA H200`.
///
/// # Errors
/// As [`Device::cuda`].
#[track_caller]
pub fn get_device_name(device: u32) -> Result<String> {
    Ok(Device::cuda(device)?.name())
}

/// The compute capability, such as (9, 0).
///
/// # Errors
/// As [`Device::cuda`].
#[track_caller]
pub fn get_device_capability(device: u32) -> Result<(u32, u32)> {
    Ok(Device::cuda(device)?.capability().unwrap_or_default())
}

/// Bytes of memory, free and in total, for all processes.
///
/// # Errors
/// As [`Device::cuda`], or if the device failed.
#[track_caller]
pub fn mem_get_info(device: u32) -> Result<(usize, usize)> {
    Device::cuda(device)?.mem_get_info()
}

/// The bytes that this process uses, their peak and what it keeps for reuse.
///
/// # Errors
/// As [`Device::cuda`].
#[track_caller]
pub fn memory_stats(device: u32) -> Result<MemoryStats> {
    Ok(Device::cuda(device)?.memory())
}

/// The bytes that this process uses.
///
/// # Errors
/// As [`Device::cuda`].
#[track_caller]
pub fn memory_allocated(device: u32) -> Result<usize> {
    Ok(memory_stats(device)?.allocated)
}

/// The peak number of bytes that this process has used, since [`reset_peak_memory_stats`] if it was called.
///
/// # Errors
/// As [`Device::cuda`].
#[track_caller]
pub fn max_memory_allocated(device: u32) -> Result<usize> {
    Ok(memory_stats(device)?.peak)
}

/// The bytes that this process uses or keeps for reuse.
///
/// # Errors
/// As [`Device::cuda`].
#[track_caller]
pub fn memory_reserved(device: u32) -> Result<usize> {
    Ok(memory_stats(device)?.reserved)
}

/// Resets the peak to the bytes in use now; see [`Device::reset_peak`].
///
/// # Errors
/// As [`Device::cuda`].
#[track_caller]
pub fn reset_peak_memory_stats(device: u32) -> Result<()> {
    Device::cuda(device)?.reset_peak();
    Ok(())
}

/// A table of the memory by category; see [`Device::memory_summary`].
///
/// # Errors
/// As [`Device::cuda`].
#[track_caller]
pub fn memory_summary(device: u32) -> Result<String> {
    Ok(Device::cuda(device)?.memory_summary())
}

/// The percentage of the last moments in which a kernel ran; `None` where NVML is missing or does not tell.
///
/// # Errors
/// As [`Device::cuda`].
#[track_caller]
pub fn utilization(device: u32) -> Result<Option<u32>> {
    Ok(sensors(device)?.utilization)
}

/// The sensors of a GPU, as far as NVML tells them: utilization, temperature, power.
///
/// # Errors
/// As [`Device::cuda`].
#[track_caller]
pub fn sensors(device: u32) -> Result<Sensors> {
    let gpu = Device::cuda(device)?.gpu();
    Ok(gpu.map(|gpu| gpu.sensors()).unwrap_or_default())
}

/// Seeds the random numbers of every device, the CPU too, which draw from one generator; see
/// [`manual_seed`](crate::manual_seed).
pub fn manual_seed_all(seed: u64) {
    crate::manual_seed(seed);
}

/// Waits for everything that was given to a GPU; see [`Device::synchronize`].
///
/// # Errors
/// As [`Device::cuda`] and [`Device::synchronize`].
#[track_caller]
pub fn synchronize(device: u32) -> Result<()> {
    Device::cuda(device)?.synchronize()
}

/// The version of CUDA that the driver supports, if there is a driver.
pub fn driver_version() -> Option<(u32, u32)> {
    Some(cuda::driver().ok()?.0)
}

/// The version of NVRTC, which compiles kernels, if it is there: what `torch.version.cuda` tells.
pub fn nvrtc_version() -> Option<(u32, u32)> {
    let (major, minor) = cuda::Nvrtc::get().ok()?.version();
    Some((major as u32, minor as u32))
}
