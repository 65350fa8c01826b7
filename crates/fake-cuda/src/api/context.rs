//! Primary contexts.

use crate::abi::Out;
use crate::driver::{Driver, driver};
use std::cell::RefCell;
use std::ffi::c_int;

thread_local! {
    /// The contexts that pushed ones lie over.
    static COVERED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

exports! {
    fn cuDevicePrimaryCtxRetain(context: Out<usize>, device: c_int) {
        let index = driver().device(device)?;
        context.set(Driver::context_of(index))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        driver().device(device).map(drop)
    }

    fn cuCtxSetCurrent(context: usize) {
        driver().set_current(context)
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        let before = driver().current();
        driver().set_current(context)?;
        COVERED.with_borrow_mut(|covered| covered.push(before));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<usize>) {
        context.set_if_wanted(driver().current());
        let before = COVERED.with_borrow_mut(Vec::pop);
        driver().set_current(before.unwrap_or(0))
    }

    fn cuCtxGetCurrent(context: Out<usize>) {
        context.set(driver().current())
    }

    fn cuCtxSynchronize() {
        let driver = driver();
        let device = driver.current_device()?;
        driver.state().check_captures()?;
        driver.drain_device(device)
    }
}
