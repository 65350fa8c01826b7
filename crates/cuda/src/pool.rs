//! The stream-ordered pool of a device's memory, and its blocks.

use super::context::Context;
use super::driver::{Address, Object, call, sys};
use super::stream::{Event, Stream};
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use kiln_kernel::memory::{Holder, Ledger, MemoryStats};
use smallvec::SmallVec;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The pool of a device's memory.
pub(super) struct Pool {
    pub(super) context: Context,
    device: sys::CUdevice,
    handle: Object<sys::CUmemPoolHandle_st>,
    /// Bytes of the device's memory.
    pub(super) total: usize,
    pub(super) ledger: Mutex<Ledger>,
    /// The bytes that the pool still held after it last freed unused memory because of the limit.
    floor: AtomicUsize,
}

/// A block of a device's memory. When dropped, it is freed after the work of the streams that use it.
pub struct DeviceBlock {
    pool: Arc<Pool>,
    address: Address,
    pub(super) len: usize,
    holder: Mutex<Holder>,
    /// Its number in the ledger.
    number: usize,
    /// The stream that it was allocated on.
    home: Arc<Stream>,
    uses: Mutex<Uses>,
}

/// Uses of a block that may still be in progress.
#[derive(Default)]
struct Uses {
    last_write: Option<Arc<Event>>,
    /// The last use on each stream.
    events: SmallVec<[Arc<Event>; 2]>,
}

impl Pool {
    /// The default pool of this device of the driver.
    pub(super) fn new(context: Context, device: sys::CUdevice, total: usize) -> Result<Pool> {
        let mut handle = Object(null_mut());
        let mut threshold = u64::MAX;
        // SAFETY: the pool outlives the process's use of the device, and the attribute is a 64-bit
        // number.
        unsafe {
            call!(cuDeviceGetDefaultMemPool(&mut handle.0, device))?;
            call!(cuMemPoolSetAttribute(
                handle.0,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut threshold).cast()
            ))?;
        }
        Ok(Pool {
            context,
            device,
            handle,
            total,
            ledger: Mutex::default(),
            floor: AtomicUsize::new(0),
        })
    }

    /// Lets two devices access each other's memory if the driver can. Otherwise copies between them go through the
    /// host.
    pub(super) fn share(&self, other: &Pool) {
        for (pool, reader) in [(self, other), (other, self)] {
            let mut can = 0;
            // SAFETY: the pointer is to writable memory, and both are devices of the driver.
            let status =
                unsafe { call!(cuDeviceCanAccessPeer(&mut can, reader.device, pool.device)) };
            if status.is_err() || can == 0 {
                continue;
            }
            // SAFETY: the pool is alive, and the description is one of a device.
            let _ = unsafe {
                call!(cuMemPoolSetAccess(
                    pool.handle.0,
                    &sys::CUmemAccessDesc {
                        location: sys::CUmemLocation {
                            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                            id: reader.device,
                        },
                        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                    },
                    1
                ))
            };
        }
    }

    /// The memory that this process holds.
    pub(super) fn stats(&self) -> MemoryStats {
        let reserved = self.reserved();
        let mut stats = lock(&self.ledger).stats;
        stats.reserved = reserved.max(stats.allocated);
        stats
    }

    /// Bytes that the pool has taken from the device.
    fn reserved(&self) -> usize {
        let mut reserved = 0u64;
        // SAFETY: the pool is alive and the attribute a 64-bit number.
        let status = unsafe {
            call!(cuMemPoolGetAttribute(
                self.handle.0,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                (&raw mut reserved).cast()
            ))
        };
        status.map_or(0, |()| reserved as usize)
    }

    /// Limits the bytes in use.
    pub(super) fn set_limit(&self, limit: Option<usize>) {
        lock(&self.ledger).stats.limit = limit;
        self.floor.store(0, Ordering::Relaxed);
    }

    /// Returns unused memory to the system.
    pub(super) fn trim(&self) -> Result<()> {
        self.context.synchronize()?;
        // SAFETY: the pool is alive.
        Ok(unsafe { call!(cuMemPoolTrimTo(self.handle.0, 0)) }?)
    }

    /// Returns unused memory beyond the limit to the system.
    fn trim_to_limit(&self) -> Result<()> {
        let limit = lock(&self.ledger).stats.limit;
        let floor = self.floor.load(Ordering::Relaxed);
        if limit.is_some_and(|l| self.reserved() > l.max(floor)) {
            self.trim()?;
            self.floor.store(self.reserved(), Ordering::Relaxed);
        }
        Ok(())
    }

    fn out_of_memory(&self, ledger: &Ledger, requested: usize) -> Error {
        Error::OutOfMemory {
            requested,
            allocated: ledger.stats.allocated,
            limit: Some(ledger.stats.limit.unwrap_or(self.total)),
            holders: ledger.largest(),
        }
    }
}

impl DeviceBlock {
    /// Memory that can be used on `stream`, with arbitrary contents. The context must be current.
    pub(super) fn new(
        pool: &Arc<Pool>,
        len: usize,
        stream: &Arc<Stream>,
        holder: Holder,
    ) -> Result<DeviceBlock> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        {
            let mut ledger = lock(&pool.ledger);
            let stats = &ledger.stats;
            let total = stats.allocated.saturating_add(len);
            if stats.limit.is_some_and(|l| total > l) {
                return Err(pool.out_of_memory(&ledger, len));
            }
            ledger.add(len, holder, number);
        }
        let mut block = DeviceBlock {
            pool: pool.clone(),
            address: 0,
            len,
            holder: Mutex::new(holder),
            number,
            home: stream.clone(),
            uses: Mutex::default(),
        };
        if len == 0 {
            return Ok(block);
        }
        let mut allocate = || -> Result<bool> {
            let mut address = 0;
            // SAFETY: the pointer is to writable memory and the stream is alive.
            match unsafe { call!(cuMemAllocAsync(&mut address, len, stream.handle())) } {
                Err(f) if f.status == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Ok(false),
                allocated => allocated?,
            }
            block.address = address;
            Ok(true)
        };
        let mut allocated = allocate()?;
        if !allocated {
            // Memory freed by other streams becomes usable once these are done.
            pool.trim()?;
            allocated = allocate()?;
        }
        if !allocated {
            drop(block);
            return Err(pool.out_of_memory(&lock(&pool.ledger), len));
        }
        pool.trim_to_limit()?;
        Ok(block)
    }

    pub(super) fn holder(&self) -> Holder {
        *lock(&self.holder)
    }

    /// Changes the holder in the ledger.
    pub(super) fn set_holder(&self, to: Holder) {
        let mut holder = lock(&self.holder);
        let change = [std::mem::replace(&mut *holder, to), to];
        lock(&self.pool.ledger).hand_over(self.len, change, self.number);
    }

    pub(super) fn address(&self) -> Address {
        self.address
    }

    pub fn ptr(&self) -> *mut u8 {
        self.address as *mut u8
    }

    /// Makes later work on `stream` wait until the contents are computed.
    pub(super) fn before_reading(&self, stream: &Stream) -> Result<()> {
        let last_write = lock(&self.uses).last_write.clone();
        last_write.map_or(Ok(()), |event| stream.wait(&event))
    }

    /// Makes later work on `stream` wait for all uses of the contents.
    pub(super) fn before_writing(&self, stream: &Stream) -> Result<()> {
        let events = lock(&self.uses).events.clone();
        events.iter().try_for_each(|event| stream.wait(event))
    }

    /// Records that a stream uses the block up to `event`.
    pub(super) fn record_use(&self, event: &Arc<Event>, written: bool) {
        let mut uses = lock(&self.uses);
        if written {
            uses.last_write = Some(event.clone());
            uses.events.clear(); // this event comes after all of them
        } else {
            uses.events.retain(|e| e.stream.id() != event.stream.id());
        }
        uses.events.push(event.clone());
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        let holder = self.holder();
        lock(&self.pool.ledger).remove(self.len, holder, self.number);
        if self.address == 0 {
            return;
        }
        // Free on the stream of the last use on this device, so that the stream of copies need not wait for runs.
        let is_local = |e: &&Arc<Event>| e.stream.context.handle.0 == self.pool.context.handle.0;
        let uses = lock(&self.uses);
        let last = uses.events.iter().rfind(is_local).map(|e| e.stream.clone());
        drop(uses);
        let stream = last.as_ref().unwrap_or(&self.home);
        // Errors are ignored: the memory of a failed device is not needed any more.
        let _ = self.pool.context.with_current(|| {
            let _ = self.before_writing(stream);
            // SAFETY: the block came from this pool; every use of it comes earlier in the stream.
            let _ = unsafe { call!(cuMemFreeAsync(self.address, stream.handle())) };
        });
    }
}
