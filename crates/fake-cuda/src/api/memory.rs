//! Memory: allocation, copies and fills.

use crate::abi::Out;
use crate::driver::{Driver, driver};
use crate::pool::Allocation;
use crate::status::{Failure, INVALID_VALUE, NOT_SUPPORTED, failure};
use crate::work::{CopyEnd, Node, Work};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// Runs `node` at once in the null stream, as calls without a stream do.
fn now(node: Node) -> Result<(), Failure> {
    let driver = driver();
    driver.state().check_captures()?;
    let null = driver.stream(0)?;
    driver.submit(null, node)
}

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

fn to_device(to: u64, host: usize, len: usize, stream: usize) -> Result<(), Failure> {
    let driver = driver();
    check_device(driver, to, len)?;
    let stream = driver.stream(stream)?;
    // A graph copies the contents at the time that it runs.
    let captures = driver.state().stream(stream)?.capture.is_some();
    let from = if captures {
        CopyEnd::Host(host)
    } else {
        from_host(host, len)?
    };
    driver.submit(
        stream,
        Node::Copy {
            to: CopyEnd::Device(to),
            from,
            len,
        },
    )
}

fn to_host(host: usize, from: u64, len: usize, stream: usize) -> Result<(), Failure> {
    let driver = driver();
    check_device(driver, from, len)?;
    let stream = driver.stream(stream)?;
    let waits = {
        let mut state = driver.state();
        let captures = state.stream(stream)?.capture.is_some();
        !captures && !state.pinned_at(host, len)
    };
    driver.submit(
        stream,
        Node::Copy {
            to: CopyEnd::Host(host),
            from: CopyEnd::Device(from),
            len,
        },
    )?;
    // A copy to pageable memory returns when it is complete.
    if waits { driver.drain(stream) } else { Ok(()) }
}

fn between(to: u64, from: u64, len: usize, stream: usize) -> Result<(), Failure> {
    let driver = driver();
    check_device(driver, to, len)?;
    check_device(driver, from, len)?;
    let node = Node::Copy {
        to: CopyEnd::Device(to),
        from: CopyEnd::Device(from),
        len,
    };
    driver.submit(driver.stream(stream)?, node)
}

fn fill(to: u64, value: u32, element: usize, count: usize, stream: usize) -> Result<(), Failure> {
    let driver = driver();
    check_device(driver, to, element * count)?;
    if !to.is_multiple_of(element as u64) {
        return Err(failure(
            INVALID_VALUE,
            format!("memset at {to:#x} with elements of {element}"),
        ));
    }
    driver.submit(
        driver.stream(stream)?,
        Node::Fill {
            to,
            value,
            element,
            count,
        },
    )
}

/// Frees memory that work may still use: waits for the device first.
fn free(address: u64) -> Result<(), Failure> {
    let driver = driver();
    if address == 0 {
        return Ok(());
    }
    let device = driver
        .state()
        .accounts
        .blocks
        .get(&address)
        .map(|block| block.device);
    let device =
        device.ok_or_else(|| failure(INVALID_VALUE, format!("no allocation at {address:#x}")))?;
    driver.state().check_captures()?;
    driver.drain_device(device)?;
    driver.release(address);
    Ok(())
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
        address.set(driver.allocate(device, size, None)?)
    }

    fn cuMemFree_v2(address: u64) {
        free(address)
    }

    fn cuMemAllocManaged(_address: Out<u64>, _size: usize, _flags: c_uint) {
        Err(failure(NOT_SUPPORTED, "managed memory is not emulated"))
    }

    fn cuMemAllocAsync(address: Out<u64>, size: usize, stream: usize) {
        let driver = driver();
        let stream = driver.stream(stream)?;
        let device = driver.state().stream(stream)?.device;
        let pool = driver.state().accounts.current_pool[device];
        super::pools::allocate(address, size, pool, stream)
    }

    fn cuMemFreeAsync(address: u64, stream: usize) {
        let driver = driver();
        if !driver.is_allocated(address) {
            return Err(failure(INVALID_VALUE, format!("no allocation at {address:#x}")));
        }
        driver.enqueue(driver.stream(stream)?, Work::Free(address))
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

    fn cuMemAllocHost_v2(pointer: Out<usize>, size: usize) {
        match cuMemHostAlloc(pointer, size, 0) {
            0 => Ok(()),
            status => Err(status.into()),
        }
    }

    fn cuMemFreeHost(pointer: usize) {
        let driver = driver();
        for device in 0..driver.config.devices {
            driver.drain_device(device)?;
        }
        let storage = driver.state().pinned.remove(&pointer);
        match storage {
            Some((storage, _)) if !storage.is_empty() => {
                driver.memory.free(pointer as u64);
                Ok(())
            }
            _ => Err(failure(INVALID_VALUE, format!("no pinned memory at {pointer:#x}"))),
        }
    }

    fn cuMemHostRegister_v2(pointer: usize, size: usize, _flags: c_uint) {
        let driver = driver();
        // SAFETY: the caller keeps the memory valid until it unregisters it.
        unsafe { driver.memory.register_host(pointer as *mut u8, size) };
        driver.state().pinned.insert(pointer, (Vec::new(), size));
        Ok(())
    }

    fn cuMemHostUnregister(pointer: usize) {
        let driver = driver();
        for device in 0..driver.config.devices {
            driver.drain_device(device)?;
        }
        driver.state().pinned.remove(&pointer).ok_or(INVALID_VALUE)?;
        driver.memory.free(pointer as u64);
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, pointer: usize, _flags: c_uint) {
        address.set(pointer as u64)
    }

    fn cuPointerGetAttribute(data: Out<u64>, attribute: c_int, address: u64) {
        let state = driver().state();
        let mut blocks = state.accounts.blocks.iter();
        let inside = |(start, block): &(&u64, &Allocation)| (**start..**start + block.size).contains(&address);
        let (_, block) = blocks.find(inside).ok_or(INVALID_VALUE)?;
        match attribute {
            2 => {
                // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a 32-bit enum: device.
                // SAFETY: the caller passes room for the attribute.
                unsafe { data.pointer().cast::<u32>().write(2) };
                Ok(())
            }
            9 => {
                // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
                // SAFETY: as above.
                unsafe { data.pointer().cast::<i32>().write(block.device as i32) };
                Ok(())
            }
            _ => Err(NOT_SUPPORTED.into()),
        }
    }

    fn cuMemcpyHtoD_v2(to: u64, host: usize, len: usize) {
        check_device(driver(), to, len)?;
        now(Node::Copy { to: CopyEnd::Device(to), from: CopyEnd::Host(host), len })
    }

    fn cuMemcpyDtoH_v2(host: usize, from: u64, len: usize) {
        check_device(driver(), from, len)?;
        now(Node::Copy { to: CopyEnd::Host(host), from: CopyEnd::Device(from), len })
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) {
        check_device(driver(), to, len)?;
        check_device(driver(), from, len)?;
        now(Node::Copy { to: CopyEnd::Device(to), from: CopyEnd::Device(from), len })
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, host: usize, len: usize, stream: usize) {
        to_device(to, host, len, stream)
    }

    fn cuMemcpyDtoHAsync_v2(host: usize, from: u64, len: usize, stream: usize) {
        to_host(host, from, len, stream)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
        between(to, from, len, stream)
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
        between(to, from, len, stream)
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        check_device(driver(), to, count)?;
        now(Node::Fill { to, value: value as u32, element: 1, count })
    }

    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) {
        check_device(driver(), to, 4 * count)?;
        now(Node::Fill { to, value, element: 4, count })
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) {
        fill(to, value as u32, 1, count, stream)
    }

    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: usize) {
        fill(to, value as u32, 2, count, stream)
    }

    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: usize) {
        fill(to, value, 4, count, stream)
    }
}
