//! Memory: allocation, copies and fills.

use crate::abi::Out;
use crate::driver::{Driver, driver};
use crate::status::{CAPTURE_UNSUPPORTED, Failure, INVALID_VALUE, failure};
use crate::work::{CopyEnd, Node, Work};
use std::ffi::c_uint;
use std::sync::Arc;

/// Checks the addresses of a copy when it is submitted, as far as they are known by then.
fn check_device(driver: &Driver, address: u64, len: usize) -> Result<(), Failure> {
    if len == 0 {
        return Ok(());
    }
    driver
        .memory
        .check(address, len)
        .map_err(|e| failure(INVALID_VALUE, e.to_string()))
}

/// The source of a copy from the host: pageable memory is read at once, pinned memory when the copy is executed.
fn from_host(host: usize, len: usize) -> Result<CopyEnd, Failure> {
    if host == 0 && len > 0 {
        return Err(INVALID_VALUE.into());
    }
    let driver = driver();
    if len == 0 || driver.state().pinned_at(host, len) {
        return Ok(CopyEnd::Host(host));
    }
    // SAFETY: the caller passes `len` readable bytes.
    let bytes = unsafe { std::slice::from_raw_parts(host as *const u8, len) };
    Ok(CopyEnd::Bytes(Arc::from(bytes)))
}

fn copy_on_device(to: u64, from: u64, len: usize, stream: usize) -> Result<(), Failure> {
    let driver = driver();
    check_device(driver, to, len)?;
    check_device(driver, from, len)?;
    let (to, from) = (CopyEnd::Device(to), CopyEnd::Device(from));
    driver.submit(driver.stream(stream)?, Node::Copy { to, from, len })
}

/// Executes a copy in the null stream, and waits for it.
fn copy_now(to: CopyEnd, from: CopyEnd, len: usize) -> Result<(), Failure> {
    let driver = driver();
    driver.state().check_captures()?;
    let null = driver.stream(0)?;
    driver.submit(null, Node::Copy { to, from, len })?;
    driver.drain(null)
}

exports! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let driver = driver();
        let device = driver.current_device()?;
        free.set(driver.state().accounts.free(device) as usize)?;
        total.set(driver.config.memory as usize)
    }

    fn cuMemAlloc_v2(address: Out<u64>, size: usize) {
        let driver = driver();
        let device = driver.current_device()?;
        driver.state().check_captures()?;
        if size == 0 {
            return Err(INVALID_VALUE.into());
        }
        address.set(driver.allocate(device, size)?)
    }

    fn cuMemFree_v2(address: u64) {
        let driver = driver();
        if address == 0 {
            return Ok(());
        }
        let device = driver.owner(address)?;
        driver.state().check_captures()?;
        driver.drain_device(device)?;
        driver.release(address);
        Ok(())
    }

    fn cuMemAllocAsync(address: Out<u64>, size: usize, stream: usize) {
        let driver = driver();
        let stream = driver.stream(stream)?;
        let device = driver.state().stream(stream)?.device;
        let mut state = driver.state();
        state.check_healthy()?;
        if state.stream(stream)?.capture.is_some() {
            return Err(failure(CAPTURE_UNSUPPORTED, "allocations in graphs are not emulated"));
        }
        drop(state);
        if size == 0 {
            return Err(INVALID_VALUE.into());
        }
        address.set(driver.allocate(device, size)?)
    }

    fn cuMemFreeAsync(address: u64, stream: usize) {
        let driver = driver();
        let stream = driver.stream(stream)?;
        let (owner, device) = (driver.owner(address)?, driver.state().stream(stream)?.device);
        if owner != device {
            // The pool would not know what the next user of the memory has to wait for.
            let why = format!("memory of device {owner} is freed in a stream of device {device}");
            return Err(failure(INVALID_VALUE, why));
        }
        driver.enqueue(stream, Work::Free(address))
    }

    fn cuMemHostAlloc(pointer: Out<usize>, size: usize, _flags: c_uint) {
        let driver = driver();
        driver.current_device()?;
        if size == 0 {
            return Err(INVALID_VALUE.into());
        }
        let mut storage = vec![0u128; size.div_ceil(16)];
        let host = storage.as_mut_ptr() as *mut u8;
        // SAFETY: the storage lives until `cuMemFreeHost` takes the address out again.
        unsafe { driver.memory.register_host(host, size) };
        driver.state().pinned.insert(host as usize, (storage, size));
        pointer.set(host as usize)
    }

    fn cuMemFreeHost(pointer: usize) {
        let driver = driver();
        for device in 0..driver.config.devices {
            driver.drain_device(device)?;
        }
        match driver.state().pinned.remove(&pointer) {
            Some(_) => {
                driver.memory.free(pointer as u64);
                Ok(())
            }
            None => Err(failure(INVALID_VALUE, format!("no pinned memory at {pointer:#x}"))),
        }
    }

    fn cuMemcpyHtoD_v2(to: u64, host: usize, len: usize) {
        check_device(driver(), to, len)?;
        copy_now(CopyEnd::Device(to), CopyEnd::Host(host), len)
    }

    fn cuMemcpyDtoH_v2(host: usize, from: u64, len: usize) {
        check_device(driver(), from, len)?;
        copy_now(CopyEnd::Host(host), CopyEnd::Device(from), len)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, host: usize, len: usize, stream: usize) {
        let driver = driver();
        check_device(driver, to, len)?;
        let stream = driver.stream(stream)?;
        // A graph copies the contents at the time that it runs.
        let captures = driver.state().stream(stream)?.capture.is_some();
        let from = if captures { CopyEnd::Host(host) } else { from_host(host, len)? };
        driver.submit(stream, Node::Copy { to: CopyEnd::Device(to), from, len })
    }

    fn cuMemcpyDtoHAsync_v2(host: usize, from: u64, len: usize, stream: usize) {
        let driver = driver();
        check_device(driver, from, len)?;
        let stream = driver.stream(stream)?;
        let waits = {
            let mut state = driver.state();
            let captures = state.stream(stream)?.capture.is_some();
            !captures && !state.pinned_at(host, len)
        };
        driver.submit(stream, Node::Copy { to: CopyEnd::Host(host), from: CopyEnd::Device(from), len })?;
        // A copy to pageable memory returns when it is complete.
        if waits { driver.drain(stream) } else { Ok(()) }
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
        copy_on_device(to, from, len, stream)
    }

    fn cuMemcpyPeerAsync(
        to: u64,
        to_context: usize,
        from: u64,
        from_context: usize,
        len: usize,
        stream: usize,
    ) {
        let driver = driver();
        let pair = (driver.device_of(to_context)?, driver.device_of(from_context)?);
        let mut state = driver.state();
        state.counters.peer_copies += u64::from(state.peers.contains(&pair));
        drop(state);
        copy_on_device(to, from, len, stream)
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) {
        let driver = driver();
        check_device(driver, to, count)?;
        driver.submit(driver.stream(stream)?, Node::Fill { to, value, count })
    }
}
