//! Memory pools.

use crate::abi::{In, Out, PoolAccess, PoolProps};
use crate::driver::driver;
use crate::pool::Pool;
use crate::status::{CAPTURE_UNSUPPORTED, Failure, INVALID_HANDLE, INVALID_VALUE, failure};
use std::ffi::{c_int, c_void};

/// Allocates from a pool, in the order of a stream.
pub(super) fn allocate(
    address: Out<u64>,
    size: usize,
    pool: usize,
    stream: usize,
) -> Result<(), Failure> {
    let driver = driver();
    {
        let mut state = driver.state();
        state.check_healthy()?;
        if state.stream(stream)?.capture.is_some() {
            return Err(failure(
                CAPTURE_UNSUPPORTED,
                "allocations in graphs are not emulated",
            ));
        }
    }
    if size == 0 {
        return Err(INVALID_VALUE.into());
    }
    let device = driver
        .state()
        .accounts
        .pools
        .get(&pool)
        .ok_or(INVALID_HANDLE)?
        .device;
    address.set(driver.allocate(device, size, Some(pool))?)
}

exports! {
    fn cuDeviceGetDefaultMemPool(pool: Out<usize>, device: c_int) {
        let device = driver().device(device)?;
        pool.set(driver().state().accounts.default_pool[device])
    }

    fn cuDeviceGetMemPool(pool: Out<usize>, device: c_int) {
        let device = driver().device(device)?;
        pool.set(driver().state().accounts.current_pool[device])
    }

    fn cuDeviceSetMemPool(device: c_int, pool: usize) {
        let device = driver().device(device)?;
        let mut state = driver().state();
        if !state.accounts.pools.contains_key(&pool) {
            return Err(INVALID_HANDLE.into());
        }
        state.accounts.current_pool[device] = pool;
        Ok(())
    }

    fn cuMemPoolCreate(pool: Out<usize>, props: In<PoolProps>) {
        let device = driver().device(props.get()?.device)?;
        let mut state = driver().state();
        let handle = state.new_handle();
        state.accounts.pools.insert(handle, Pool { device, ..Pool::default() });
        pool.set(handle)
    }

    fn cuMemPoolDestroy(pool: usize) {
        let mut state = driver().state();
        if state.accounts.default_pool.contains(&pool) {
            return Err(INVALID_VALUE.into());
        }
        let removed = state.accounts.pools.remove(&pool).ok_or(INVALID_HANDLE)?;
        let default = state.accounts.default_pool[removed.device];
        if state.accounts.current_pool[removed.device] == pool {
            state.accounts.current_pool[removed.device] = default;
        }
        Ok(())
    }

    fn cuMemPoolSetAttribute(pool: usize, attribute: c_int, value: *mut c_void) {
        if value.is_null() {
            return Err(INVALID_VALUE.into());
        }
        let mut state = driver().state();
        let pool = state.accounts.pools.get_mut(&pool).ok_or(INVALID_HANDLE)?;
        match attribute {
            // The reuse policies of freed memory, C ints; here is only one policy.
            1..=3 => {}
            // SAFETY: the caller passes the 64 bits of the attribute.
            4 => pool.threshold = unsafe { value.cast::<u64>().read() },
            // The high-water marks can only be reset.
            6 => pool.reserved_high = pool.reserved,
            8 => pool.used_high = pool.used,
            _ => return Err(INVALID_VALUE.into()),
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: usize, attribute: c_int, value: *mut c_void) {
        if value.is_null() {
            return Err(INVALID_VALUE.into());
        }
        let state = driver().state();
        let pool = state.accounts.pools.get(&pool).ok_or(INVALID_HANDLE)?;
        let number = match attribute {
            1..=3 => {
                // SAFETY: the caller passes room for a C int.
                unsafe { value.cast::<c_int>().write(1) };
                return Ok(());
            }
            4 => pool.threshold,
            5 => pool.reserved,
            6 => pool.reserved_high,
            7 => pool.used,
            8 => pool.used_high,
            _ => return Err(INVALID_VALUE.into()),
        };
        // SAFETY: the caller passes room for the 64 bits of the attribute.
        unsafe { value.cast::<u64>().write(number) };
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: usize, keep: usize) {
        let mut state = driver().state();
        state.accounts.pools.get_mut(&pool).ok_or(INVALID_HANDLE)?.trim(keep as u64);
        Ok(())
    }

    fn cuMemPoolSetAccess(pool: usize, access: In<PoolAccess>, count: usize) {
        let of = |a: PoolAccess| Ok((driver().device(a.device)?, (a.kind, a.flags)));
        let access = access.several(count)?.into_iter().map(of);
        let access = access.collect::<Result<Vec<_>, Failure>>()?;
        let mut state = driver().state();
        let owner = state.accounts.pools.get(&pool).ok_or(INVALID_HANDLE)?.device;
        for (device, kind) in access {
            // Reads and writes of a device other than the pool's.
            if kind != (1, 3) || device == owner {
                return Err(failure(INVALID_VALUE, format!("access of device {device}")));
            }
            state.peers.push((device, owner));
        }
        Ok(())
    }

    fn cuMemAllocFromPoolAsync(address: Out<u64>, size: usize, pool: usize, stream: usize) {
        let stream = driver().stream(stream)?;
        allocate(address, size, pool, stream)
    }
}
