//! A device's context, to which a thread's calls of the driver apply, and the driver's description of the device.

use super::driver::{Driver, Object, call, sys};
use kiln_kernel::error::Result;
use kiln_kernel::lock::lock;
use std::ffi::{CStr, CString, c_int};
use std::ptr::null_mut;
use std::sync::Mutex;

/// The primary context of a device, which is retained for the process's lifetime.
#[derive(Copy, Clone)]
pub(super) struct Context {
    pub(super) driver: &'static Driver,
    pub(super) handle: Object<sys::CUctx_st>,
    /// Modules without owners that work in progress may still use.
    retired: &'static Mutex<Vec<Object<sys::CUmod_st>>>,
}

/// The maximum number of retired modules that wait for the device to be synchronised.
const MAX_RETIRED: usize = 32;

/// A device as the driver describes it.
pub(super) struct Described {
    pub(super) handle: sys::CUdevice,
    pub(super) name: String,
    /// Bytes of its memory.
    pub(super) memory: usize,
    /// Its address on the PCI bus.
    pub(super) bus: CString,
}

impl Described {
    /// A property.
    pub(super) fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<u32> {
        let mut value = 0;
        // SAFETY: the pointer is to writable memory.
        unsafe { call!(cuDeviceGetAttribute(&mut value, attribute, self.handle)) }?;
        Ok(value as u32)
    }
}

impl Context {
    /// Retains the context of the device of this number, and makes it the current one of the calling thread.
    pub(super) fn retain(driver: &'static Driver, ordinal: u32) -> Result<(Context, Described)> {
        let (mut device, mut handle) = (0, Object(null_mut()));
        let (mut memory, mut name, mut bus) = (0usize, [0u8; 256], [0u8; 32]);
        // SAFETY: all pointers are to writable memory of the stated sizes.
        unsafe {
            call!(cuDeviceGet(&mut device, ordinal as c_int))?;
            let len = name.len() as c_int - 1;
            call!(cuDeviceGetName(name.as_mut_ptr().cast(), len, device))?;
            call!(cuDeviceTotalMem_v2(&mut memory, device))?;
            let len = bus.len() as c_int;
            call!(cuDeviceGetPCIBusId(bus.as_mut_ptr().cast(), len, device))?;
            call!(cuDevicePrimaryCtxRetain(&mut handle.0, device))?;
        }
        let retired = Box::leak(Box::default());
        let context = Context {
            driver,
            handle,
            retired,
        };
        context.activate()?;
        let text = |bytes| CStr::from_bytes_until_nul(bytes).unwrap_or_default();
        let described = Described {
            handle: device,
            name: text(&name).to_string_lossy().into_owned(),
            memory,
            bus: text(&bus).into(),
        };
        Ok((context, described))
    }

    /// Sets it as the current context of the calling thread.
    pub(super) fn activate(self) -> Result<()> {
        // SAFETY: the context is retained for the process's lifetime.
        Ok(unsafe { call!(cuCtxSetCurrent(self.handle.0)) }?)
    }

    /// Calls a function with the context current, and restores the thread's context.
    pub(super) fn with_current<T>(self, f: impl FnOnce() -> T) -> Result<T> {
        // SAFETY: the context is retained for the process's lifetime.
        unsafe { call!(cuCtxPushCurrent_v2(self.handle.0)) }?;
        let result = f();
        let mut popped: *mut sys::CUctx_st = null_mut();
        // SAFETY: the pointer is to writable memory.
        unsafe { call!(cuCtxPopCurrent_v2(&mut popped)) }?;
        Ok(result)
    }

    /// Waits for all work of its device, and unloads the modules that were retired before.
    pub(super) fn synchronize(self) -> Result<()> {
        self.activate()?;
        let retired = std::mem::take(&mut *lock(self.retired));
        // SAFETY: the context is current.
        let result = unsafe { call!(cuCtxSynchronize()) };
        result.map_err(|failure| failure.of("the GPU's work failed"))?;
        for module in retired {
            // SAFETY: nobody holds a function of the module, and its launches are waited for.
            let _ = unsafe { call!(cuModuleUnload(module.0)) };
        }
        Ok(())
    }

    /// Unloads a module once the device is synchronised: the driver waits for the device's work before it unloads one.
    pub(super) fn retire(self, module: Object<sys::CUmod_st>) {
        lock(self.retired).push(module);
    }

    /// Synchronises the device if many modules are retired. Called where modules are loaded, which takes longer.
    pub(super) fn limit_retired(self) -> Result<()> {
        let is_full = lock(self.retired).len() > MAX_RETIRED;
        if is_full { self.synchronize() } else { Ok(()) }
    }

    /// Bytes of its device's memory that no process uses.
    pub(super) fn free_memory(self) -> Result<usize> {
        self.activate()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to writable memory.
        unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok(free)
    }
}
