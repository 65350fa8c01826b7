//! Memory on a device, from its stream-ordered pool.

use super::device::Device;
use super::driver::{Address, OUT_OF_MEMORY};
use super::stream::{Event, Pinned, Staging, Stream};
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::memory::MemoryStats;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What is held of a device's memory.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) stats: MemoryStats,
    /// Bytes by what they are for.
    holders: BTreeMap<Arc<str>, usize>,
    /// What the pool was left with when it last held more than the limit and gave back what it could.
    pub(super) floor: usize,
}

/// A block of a device's memory; given back, in order of the streams that use it, when dropped.
pub(crate) struct Memory {
    device: Arc<Device>,
    address: Address,
    len: usize,
    what: Arc<str>,
    /// The stream it was allocated on.
    home: Arc<Stream>,
    uses: Mutex<Uses>,
}

/// Work that may still be going on with a block.
#[derive(Default)]
struct Uses {
    written: Option<Arc<Event>>,
    /// The last use on each stream.
    all: SmallVec<[Arc<Event>; 2]>,
}

/// Page-locked memory comes in pieces of this size.
const STAGING: usize = 4 << 20;
/// This many pieces may be in use by copies.
const STAGINGS: usize = 4;

impl Memory {
    /// Memory that can be used on `stream`, with arbitrary contents. The context must be current.
    pub(super) fn new(
        device: &Arc<Device>,
        len: usize,
        stream: &Arc<Stream>,
        what: &Arc<str>,
    ) -> Result<Memory> {
        let reserve = || {
            let mut figures = lock(&device.figures);
            let stats = &mut figures.stats;
            if stats
                .limit
                .is_some_and(|l| stats.allocated.saturating_add(len) > l)
            {
                return Err(device.out_of_memory(&figures, len));
            }
            stats.allocated += len;
            stats.peak = stats.peak.max(stats.allocated);
            *figures.holders.entry(what.clone()).or_default() += len;
            Ok(())
        };
        reserve()?;
        let mut memory = Memory {
            device: device.clone(),
            address: 0,
            len,
            what: what.clone(),
            home: stream.clone(),
            uses: Mutex::default(),
        };
        if len == 0 {
            return Ok(memory);
        }
        let allocate = || {
            let mut address = 0;
            let alloc = device.driver.functions.memory_alloc;
            // SAFETY: the place is writable and the stream alive.
            (
                unsafe { alloc(&mut address, len, stream.handle()) },
                address,
            )
        };
        let (mut status, mut address) = allocate();
        if status == OUT_OF_MEMORY {
            // What other streams have freed becomes usable once they are done.
            device.empty_cache()?;
            (status, address) = allocate();
        }
        if status == OUT_OF_MEMORY {
            drop(memory);
            return Err(device.out_of_memory(&lock(&device.figures), len));
        }
        device.driver.check("cuMemAllocAsync", status)?;
        memory.address = address;
        device.keep_within_limit()?;
        Ok(memory)
    }

    /// The same bytes on another device, copied there when the contents are.
    pub(crate) fn copy_to(&self, device: &Arc<Device>) -> Result<Memory> {
        device.activate()?;
        let stream = &device.copies;
        let copy = Memory::new(device, self.len, stream, &self.what)?;
        if self.len == 0 {
            return Ok(copy);
        }
        self.before_reading(stream)?;
        let (to, from) = (device.context(), self.device.context());
        // SAFETY: both blocks have that many bytes on the devices of these contexts, and are freed behind
        // this use of them. Devices that don't reach each other copy through the host.
        let status = unsafe {
            let f = device.driver.functions.copy_between;
            f(
                copy.address,
                to,
                self.address,
                from,
                self.len,
                stream.handle(),
            )
        };
        device.driver.check("cuMemcpyPeerAsync", status)?;
        let done = stream.event()?;
        copy.used(&done, true);
        self.used(&done, false);
        Ok(copy)
    }

    pub(super) fn address(&self) -> Address {
        self.address
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.address as *mut u8
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Makes what follows on `stream` wait until the contents are there.
    pub(super) fn before_reading(&self, stream: &Stream) -> Result<()> {
        let written = lock(&self.uses).written.clone();
        written.map_or(Ok(()), |event| stream.wait(&event))
    }

    /// Makes what follows on `stream` wait until nobody uses the contents.
    pub(super) fn before_writing(&self, stream: &Stream) -> Result<()> {
        let all = lock(&self.uses).all.clone();
        all.iter().try_for_each(|event| stream.wait(event))
    }

    /// Notes that a stream uses the block up to `event`.
    pub(super) fn used(&self, event: &Arc<Event>, written: bool) {
        let mut uses = lock(&self.uses);
        if written {
            uses.written = Some(event.clone());
            uses.all.clear(); // this event is behind all of them
        } else {
            uses.all.retain(|e| e.stream.id() != event.stream.id());
        }
        uses.all.push(event.clone());
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut figures = lock(&self.device.figures);
        figures.stats.allocated -= self.len;
        if let Some(bytes) = figures.holders.get_mut(&self.what) {
            *bytes -= self.len;
            if *bytes == 0 {
                figures.holders.remove(&self.what);
            }
        }
        drop(figures);
        if self.address == 0 || self.device.activate().is_err() {
            return;
        }
        // Freed where it was used last, so that the stream of copies waits for no run.
        let last = lock(&self.uses).all.last().map(|e| e.stream.clone());
        let stream = last.as_ref().unwrap_or(&self.home);
        // A failing device has no use for its memory any more.
        let _ = self.before_writing(stream);
        // SAFETY: the block came from this pool; every use of it comes before in the stream.
        unsafe { (self.device.driver.functions.memory_free)(self.address, stream.handle()) };
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} bytes on {})", self.len, self.device)
    }
}

impl Device {
    /// Gives other programs what the pool holds back beyond the limit.
    fn keep_within_limit(&self) -> Result<()> {
        let (limit, floor) = {
            let figures = lock(&self.figures);
            (figures.stats.limit, figures.floor)
        };
        if limit.is_some_and(|l| self.reserved() > l.max(floor)) {
            self.empty_cache()?;
            lock(&self.figures).floor = self.reserved();
        }
        Ok(())
    }

    fn out_of_memory(&self, figures: &Figures, requested: usize) -> Error {
        let holders = figures
            .holders
            .iter()
            .map(|(what, bytes)| (what.to_string(), *bytes));
        let mut holders: Vec<(String, usize)> = holders.filter(|(_, b)| *b > 0).collect();
        holders.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        holders.truncate(5);
        Error::OutOfMemory {
            requested,
            allocated: figures.stats.allocated,
            limit: Some(figures.stats.limit.unwrap_or(self.total_memory())),
            holders,
        }
    }

    /// Page-locked memory that no copy uses.
    fn staging(&self) -> Result<Pinned> {
        let mut list = lock(&self.staging);
        let free = |s: &Staging| s.done.as_ref().is_none_or(|e| e.happened());
        if let Some(at) = list.iter().position(free) {
            return Ok(list.swap_remove(at).memory);
        }
        if list.len() >= STAGINGS {
            let oldest = list.remove(0);
            drop(list);
            oldest.done.map_or(Ok(()), |e| e.synchronize())?;
            return Ok(oldest.memory);
        }
        Pinned::new(self.driver, STAGING)
    }

    /// The bytes in this device's memory.
    pub(crate) fn upload(self: &Arc<Device>, bytes: &[u8]) -> Result<Memory> {
        self.activate()?;
        let stream = &self.copies;
        let memory = Memory::new(self, bytes.len(), stream, &"data from the host".into())?;
        for (i, chunk) in bytes.chunks(STAGING).enumerate() {
            let staging = self.staging()?;
            let to = memory.address + (i * STAGING) as u64;
            // SAFETY: the staging memory has room for a chunk and is used by nothing else until the
            // copy is done; the block has that many bytes behind the address.
            let status = unsafe {
                let from = staging.ptr;
                std::ptr::copy_nonoverlapping(chunk.as_ptr(), from.cast(), chunk.len());
                (self.driver.functions.upload)(to, from, chunk.len(), stream.handle())
            };
            let done = stream.event();
            if status != 0 || done.is_err() {
                std::mem::forget(staging); // a copy may still read it
                self.driver.check("cuMemcpyHtoDAsync", status)?;
                return done.map(|_| memory);
            }
            let done = done?;
            memory.used(&done, true);
            let done = Some(done);
            lock(&self.staging).push(Staging {
                memory: staging,
                done,
            });
        }
        Ok(memory)
    }

    /// Copies a block's contents from `offset` on, waiting for them.
    pub(crate) fn download(
        self: &Arc<Device>,
        memory: &Memory,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<()> {
        let lane = self.lane()?;
        memory.before_reading(&lane.stream)?;
        for (i, chunk) in bytes.chunks_mut(STAGING).enumerate() {
            let staging = self.staging()?;
            let from = memory.address + (offset + i * STAGING) as u64;
            // SAFETY: the staging memory has room for a chunk, the block has that many bytes behind
            // the address, and the copy is waited for before the bytes are read.
            unsafe {
                let (to, stream) = (staging.ptr, lane.stream.handle());
                let status = (self.driver.functions.download)(to, from, chunk.len(), stream);
                let done = lane.stream.synchronize();
                self.driver.check("cuMemcpyDtoHAsync", status)?;
                done?;
                std::ptr::copy_nonoverlapping(to.cast(), chunk.as_mut_ptr(), chunk.len());
            }
            lock(&self.staging).push(Staging {
                memory: staging,
                done: None,
            });
        }
        lock(&self.lanes).push(lane);
        Ok(())
    }
}
