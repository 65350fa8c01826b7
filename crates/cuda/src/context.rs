//! A device's context, to which a thread's calls of the driver apply.

use super::driver::{Driver, Object, call, sys};
use kiln_kernel::error::Result;

/// The primary context of a device, which is retained for the process's lifetime.
#[derive(Copy, Clone)]
pub(super) struct Context {
    pub(super) driver: &'static Driver,
    pub(super) handle: Object<sys::CUctx_st>,
}

impl Context {
    /// Makes it the current context of the calling thread.
    pub(super) fn activate(self) -> Result<()> {
        // SAFETY: the context is retained for the process's lifetime.
        Ok(unsafe { call!(cuCtxSetCurrent(self.handle.0)) }?)
    }

    /// Waits for all work that was given to its device.
    pub(super) fn synchronize(self) -> Result<()> {
        self.activate()?;
        // SAFETY: the context is current.
        let done = unsafe { call!(cuCtxSynchronize()) };
        done.map_err(|failure| failure.of("the GPU's work failed"))
    }
}
