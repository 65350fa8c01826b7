//! The accounts of device memory: allocations, and free memory that pools hold.

use crate::status::{Failure, INVALID_HANDLE, OUT_OF_MEMORY};
use std::collections::HashMap;

/// A memory pool.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
    /// The bytes that the pool keeps when the device synchronises.
    pub threshold: u64,
}

impl Pool {
    /// Releases free memory beyond `keep` bytes.
    pub fn trim(&mut self, keep: u64) {
        self.reserved = self.reserved.min(keep.max(self.used));
    }
}

/// One allocation.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Allocation {
    pub device: usize,
    pub size: u64,
}

/// The memory of all devices.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    total: u64,
    /// The pool of each device.
    pools: Vec<Pool>,
    pub blocks: HashMap<u64, Allocation>,
}

/// Sizes are rounded up as the driver does.
const UNIT: u64 = 512;

/// The first handle of pools; the device is added.
const POOLS: usize = 0x100;

impl Accounts {
    pub fn new(devices: usize, total: u64) -> Accounts {
        Accounts {
            total,
            pools: (0..devices).map(|_| Pool::default()).collect(),
            blocks: HashMap::new(),
        }
    }

    /// The pool of a device.
    pub fn pool_of(device: usize) -> usize {
        POOLS + device
    }

    /// The device of a pool.
    pub fn device_of(&self, pool: usize) -> Result<usize, Failure> {
        let device = pool.checked_sub(POOLS);
        let device = device.filter(|device| *device < self.pools.len());
        device.ok_or_else(|| INVALID_HANDLE.into())
    }

    pub fn pool(&mut self, pool: usize) -> Result<&mut Pool, Failure> {
        let device = self.device_of(pool)?;
        Ok(&mut self.pools[device])
    }

    /// The bytes that no pool holds.
    pub fn free(&self, device: usize) -> u64 {
        self.total.saturating_sub(self.pools[device].reserved)
    }

    /// Accounts for an allocation of `size` bytes.
    pub fn reserve(&mut self, device: usize, size: u64) -> Result<Allocation, Failure> {
        let size = size.next_multiple_of(UNIT);
        let pool = &mut self.pools[device];
        if size > self.total - pool.used {
            return Err(OUT_OF_MEMORY.into());
        }
        pool.used += size;
        pool.reserved = pool.reserved.max(pool.used);
        pool.used_high = pool.used_high.max(pool.used);
        pool.reserved_high = pool.reserved_high.max(pool.reserved);
        Ok(Allocation { device, size })
    }

    /// Removes an allocation from the accounts.
    pub fn release(&mut self, block: Allocation) {
        self.pools[block.device].used -= block.size;
    }

    /// Lets the pool release memory beyond its threshold when its device synchronises.
    pub fn synchronised(&mut self, device: usize) {
        let pool = &mut self.pools[device];
        pool.trim(pool.threshold);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_hold_back_until_they_are_trimmed() {
        let mut accounts = Accounts::new(1, 4096);
        accounts.pools[0].threshold = u64::MAX;
        let block = accounts.reserve(0, 3000).unwrap();
        assert_eq!(accounts.free(0), 4096 - 3072);
        assert!(accounts.reserve(0, 3000).is_err());
        accounts.release(block);
        accounts.synchronised(0);
        assert_eq!(accounts.free(0), 4096 - 3072);
        // Memory that the pool holds is allocated again.
        let block = accounts.reserve(0, 4096).unwrap();
        accounts.release(block);
        accounts.pool(Accounts::pool_of(0)).unwrap().trim(1024);
        assert_eq!(accounts.free(0), 4096 - 1024);
        assert!(accounts.pool(Accounts::pool_of(1)).is_err());
    }
}
