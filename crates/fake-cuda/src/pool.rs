//! The accounts of device memory: allocations, and free memory that pools hold.

use crate::status::{Failure, INVALID_HANDLE, OUT_OF_MEMORY};
use std::collections::HashMap;

/// A memory pool.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    pub device: usize,
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
    pub pool: Option<usize>,
}

/// The memory of all devices.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    total: u64,
    /// Bytes allocated outside of pools, by device.
    plain: Vec<u64>,
    /// The default pool of each device.
    pub default_pool: Vec<usize>,
    /// The pool that each device allocates from.
    pub current_pool: Vec<usize>,
    pub pools: HashMap<usize, Pool>,
    pub blocks: HashMap<u64, Allocation>,
}

/// Sizes are rounded up as the driver does.
const UNIT: u64 = 512;

impl Accounts {
    pub fn new(devices: usize, total: u64) -> Accounts {
        let handles: Vec<usize> = (0..devices).map(|d| 0x100 + d).collect();
        let pools = handles
            .iter()
            .enumerate()
            .map(|(device, &handle)| {
                (
                    handle,
                    Pool {
                        device,
                        ..Pool::default()
                    },
                )
            })
            .collect();
        Accounts {
            total,
            plain: vec![0; devices],
            default_pool: handles.clone(),
            current_pool: handles,
            pools,
            blocks: HashMap::new(),
        }
    }

    fn reserved(&self, device: usize) -> u64 {
        self.pools
            .values()
            .filter(|p| p.device == device)
            .map(|p| p.reserved)
            .sum()
    }

    /// The bytes that any allocation may take.
    pub fn free(&self, device: usize) -> u64 {
        self.total
            .saturating_sub(self.plain[device] + self.reserved(device))
    }

    /// Accounts for an allocation of `size` bytes. Pools give up their free memory if it is needed.
    pub fn reserve(
        &mut self,
        device: usize,
        size: u64,
        pool: Option<usize>,
    ) -> Result<Allocation, Failure> {
        let size = size.next_multiple_of(UNIT);
        let cached = match pool {
            Some(handle) => {
                let pool = self.pools.get(&handle).ok_or(INVALID_HANDLE)?;
                pool.reserved - pool.used
            }
            None => 0,
        };
        if size.saturating_sub(cached) > self.free(device) {
            for (_, other) in self
                .pools
                .iter_mut()
                .filter(|(h, p)| p.device == device && Some(**h) != pool)
            {
                other.trim(0);
            }
            if size.saturating_sub(cached) > self.free(device) {
                return Err(OUT_OF_MEMORY.into());
            }
        }
        match pool.and_then(|handle| self.pools.get_mut(&handle)) {
            Some(pool) => {
                pool.used += size;
                pool.reserved = pool.reserved.max(pool.used);
                pool.used_high = pool.used_high.max(pool.used);
                pool.reserved_high = pool.reserved_high.max(pool.reserved);
            }
            None => self.plain[device] += size,
        }
        Ok(Allocation { device, size, pool })
    }

    /// Removes an allocation from the accounts.
    pub fn release(&mut self, block: Allocation) {
        match block.pool.and_then(|handle| self.pools.get_mut(&handle)) {
            Some(pool) => pool.used -= block.size,
            None => self.plain[block.device] -= block.size,
        }
    }

    /// Lets pools release memory beyond their threshold when a device synchronises.
    pub fn synchronised(&mut self, device: usize) {
        for pool in self.pools.values_mut().filter(|p| p.device == device) {
            let keep = pool.threshold;
            pool.trim(keep);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_hold_back_until_they_are_trimmed() {
        let mut accounts = Accounts::new(1, 4096);
        let pool = accounts.default_pool[0];
        accounts.pools.get_mut(&pool).unwrap().threshold = u64::MAX;
        let block = accounts.reserve(0, 3000, Some(pool)).unwrap();
        assert_eq!(accounts.free(0), 4096 - 3072);
        assert!(accounts.reserve(0, 3000, Some(pool)).is_err());
        accounts.release(block);
        accounts.synchronised(0);
        assert_eq!(accounts.free(0), 4096 - 3072);
        // A plain allocation takes free memory that the pool holds.
        let plain = accounts.reserve(0, 2048, None).unwrap();
        assert_eq!(accounts.pools[&pool].reserved, 0);
        accounts.release(plain);
        assert_eq!(accounts.free(0), 4096);
    }
}
