//! A device's context: what calls of the driver from a thread are about.

use super::driver::{Driver, Handle};
use crate::error::Result;

/// The primary context of a device, which is retained for the process's lifetime.
#[derive(Copy, Clone)]
pub(super) struct Context {
    pub(super) driver: &'static Driver,
    pub(super) handle: Handle,
}

impl Context {
    /// Makes it that of the calling thread.
    pub(super) fn activate(self) -> Result<()> {
        // SAFETY: the context is retained for the process's lifetime.
        let status = unsafe { (self.driver.functions.context_set)(self.handle) };
        self.driver.check("cuCtxSetCurrent", status)
    }

    /// Waits for everything that was given to its device.
    pub(super) fn synchronize(self) -> Result<()> {
        self.activate()?;
        // SAFETY: the context is current.
        let status = unsafe { (self.driver.functions.context_synchronize)() };
        self.driver.check("the GPU's work failed", status)
    }
}
