//! The default device.

use crate::device::{Device, Home};
use kiln_base::Scoped;
use std::cell::Cell;

thread_local! {
    static DEVICE: Cell<Option<Device>> = const { Cell::new(None) };
}

/// The device of the process, where no thread has its own.
static PROCESS: Home = Home::cpu();

/// The device of tensors that are created from numbers, from shapes or at random, of the parameters of layers and of
/// the specs of arguments, where none is given: that of the innermost [`with_device`] on this thread, else that of
/// [`set_default_device`], else the CPU.
pub fn default_device() -> Device {
    DEVICE.get().unwrap_or_else(|| PROCESS.get())
}

/// Sets the default device of the whole process. Data that a `DataLoader` loads stays on the CPU all the same, and so
/// do tensors read from files or arrays.
pub fn set_default_device(device: Device) {
    PROCESS.set(device);
}

/// Runs `f` with another default device on this thread, as `with torch.device(..)` does.
///
/// ```
/// use kiln_lazy::default_device::{default_device, with_device};
/// use kiln_lazy::device::Device;
/// assert_eq!(with_device(Device::best(), default_device), Device::best());
/// assert_eq!(default_device(), Device::Cpu);
/// ```
pub fn with_device<T>(device: Device, f: impl FnOnce() -> T) -> T {
    let _inside = set_device(device);
    f()
}

/// [`with_device`] until the returned guard is dropped. Functions that create tensors for operands use it with the
/// operands' device.
#[must_use = "the device before is restored when this is dropped"]
pub fn set_device(device: Device) -> impl Drop {
    Scoped::new(&DEVICE, Some(device))
}
