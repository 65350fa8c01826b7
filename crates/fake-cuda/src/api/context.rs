//! Primary contexts.

use crate::abi::Out;
use crate::driver::{Driver, driver};
use crate::status::{PEER_ALREADY_ENABLED, PEER_NOT_ENABLED};
use std::cell::RefCell;
use std::ffi::{c_int, c_uint};

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

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) {
        driver().device(device).map(drop)
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        driver().device(device)?;
        flags.set_if_wanted(0);
        active.set_if_wanted(1);
        Ok(())
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

    fn cuCtxGetDevice(device: Out<c_int>) {
        device.set(driver().current_device()? as c_int)
    }

    fn cuCtxSetFlags(_flags: c_uint) {
        driver().current_device().map(drop)
    }

    fn cuCtxGetApiVersion(_context: usize, version: Out<c_uint>) {
        version.set(13000)
    }

    fn cuCtxSynchronize() {
        let driver = driver();
        let device = driver.current_device()?;
        driver.state().check_captures()?;
        driver.drain_device(device)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<usize>, _limit: c_int) {
        value.set(1024)
    }

    fn cuCtxSetLimit(_limit: c_int, _value: usize) {
        Ok(())
    }

    fn cuCtxEnablePeerAccess(peer: usize, _flags: c_uint) {
        let driver = driver();
        let pair = (driver.current_device()?, driver.device_of(peer)?);
        let mut state = driver.state();
        if state.peers.contains(&pair) {
            return Err(PEER_ALREADY_ENABLED.into());
        }
        state.peers.push(pair);
        Ok(())
    }

    fn cuCtxDisablePeerAccess(peer: usize) {
        let driver = driver();
        let pair = (driver.current_device()?, driver.device_of(peer)?);
        let mut state = driver.state();
        let before = state.peers.len();
        state.peers.retain(|p| *p != pair);
        if state.peers.len() == before { Err(PEER_NOT_ENABLED.into()) } else { Ok(()) }
    }
}
