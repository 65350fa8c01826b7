//! Memory pools.

use crate::abi::{In, Out, PoolAccess};
use crate::driver::driver;
use crate::pool::Accounts;
use crate::status::{Failure, INVALID_VALUE, failure};
use std::ffi::{c_int, c_void};

exports! {
    fn cuDeviceGetDefaultMemPool(pool: Out<usize>, device: c_int) {
        let device = driver().device(device)?;
        pool.set(Accounts::pool_of(device))
    }

    fn cuMemPoolSetAttribute(pool: usize, attribute: c_int, value: *mut c_void) {
        if value.is_null() {
            return Err(INVALID_VALUE.into());
        }
        let mut state = driver().state();
        let pool = state.accounts.pool(pool)?;
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
        let mut state = driver().state();
        let pool = state.accounts.pool(pool)?;
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
        state.accounts.pool(pool)?.trim(keep as u64);
        Ok(())
    }

    fn cuMemPoolSetAccess(pool: usize, access: In<PoolAccess>, count: usize) {
        let permission = |a: PoolAccess| Ok((driver().device(a.device)?, (a.kind, a.flags)));
        let access = access.get_array(count)?.into_iter().map(permission);
        let access = access.collect::<Result<Vec<_>, Failure>>()?;
        let mut state = driver().state();
        let owner = state.accounts.device_of(pool)?;
        for (device, kind) in access {
            // Reads and writes of a device other than the pool's.
            if kind != (1, 3) || device == owner {
                return Err(failure(INVALID_VALUE, format!("access of device {device}")));
            }
            state.peers.push((device, owner));
        }
        Ok(())
    }
}
