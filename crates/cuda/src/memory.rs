//! Memory on a device, and copies from and to it.

use super::device::Device;
use super::driver::{Address, call};
use super::pool::DeviceBlock;
use super::stream::{Pinned, Staging, Stream};
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use kiln_kernel::memory::{Category, DeviceMemory, Holder, Storage};
use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;

/// A block of memory, and its device.
pub struct Memory {
    device: Arc<Device>,
    block: DeviceBlock,
}

impl Deref for Memory {
    type Target = DeviceBlock;

    fn deref(&self) -> &DeviceBlock {
        &self.block
    }
}

/// The size of a staging buffer in page-locked memory.
const STAGING_BYTES: usize = 4 << 20;
/// The maximum number of staging buffers.
const MAX_STAGINGS: usize = 4;

impl Memory {
    /// As [`DeviceBlock::new`].
    pub(super) fn new(
        device: &Arc<Device>,
        len: usize,
        stream: &Arc<Stream>,
        holder: Holder,
    ) -> Result<Memory> {
        Ok(Memory {
            block: DeviceBlock::new(&device.pool, len, stream, holder)?,
            device: device.clone(),
        })
    }

    /// The memory of a storage, if it is on a device.
    pub fn of(storage: &Storage) -> Option<&Memory> {
        let memory: &dyn Any = storage.device_memory()?;
        memory.downcast_ref()
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Copies the contents to another device, after they are computed.
    pub fn copy_to(&self, device: &Arc<Device>) -> Result<Memory> {
        device.context.activate()?;
        let stream = &device.copies;
        let copy = Memory::new(device, self.len, stream, self.holder())?;
        if self.len == 0 {
            return Ok(copy);
        }
        self.before_reading(stream)?;
        let (to, from) = (device.context.handle.0, self.device.context.handle.0);
        let (target, source, len) = (copy.address(), self.address(), self.len);
        // SAFETY: both blocks have this number of bytes on the devices of these contexts, and are freed after this
        // use of them. Devices without access to each other copy through the host.
        unsafe {
            let stream = stream.handle();
            call!(cuMemcpyPeerAsync(target, to, source, from, len, stream))
        }?;
        let done = stream.event()?;
        copy.record_use(&done, true);
        self.record_use(&done, false);
        Ok(copy)
    }

    /// Copies one storage to another of the same size on a device, before later work of the stream.
    pub(super) fn copy(from: &Storage, to: &Storage, stream: &Arc<Stream>) -> Result<()> {
        let (source, target, len) = (from.ptr() as Address, to.ptr() as Address, to.len());
        assert_eq!(from.len(), len, "a copy to another size");
        let (Some(from), Some(to)) = (Memory::of(from), Memory::of(to)) else {
            return Err(Error::Internal("a copy of what is not on a device".into()));
        };
        if len == 0 {
            return Ok(());
        }
        from.before_reading(stream)?;
        to.before_writing(stream)?;
        // SAFETY: both have this number of bytes on this device, and are freed after this use of them.
        unsafe { call!(cuMemcpyDtoDAsync_v2(target, source, len, stream.handle())) }?;
        let done = stream.event()?;
        from.record_use(&done, false);
        to.record_use(&done, true);
        Ok(())
    }
}

impl DeviceMemory for Memory {
    fn ptr(&self) -> *mut u8 {
        self.block.ptr()
    }

    fn holder(&self) -> Holder {
        self.block.holder()
    }

    fn set_holder(&self, holder: Holder) {
        self.block.set_holder(holder);
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} bytes on {})", self.len, self.device)
    }
}

impl Device {
    /// A staging buffer that no copy uses.
    fn take_staging(&self) -> Result<Pinned> {
        let mut list = lock(&self.staging);
        let is_free = |s: &Staging| s.done.as_ref().is_none_or(|e| e.has_happened());
        if let Some(index) = list.iter().position(is_free) {
            return Ok(list.swap_remove(index).memory);
        }
        if list.len() >= MAX_STAGINGS {
            let oldest = list.remove(0);
            drop(list);
            oldest.done.map_or(Ok(()), |e| e.synchronize())?;
            return Ok(oldest.memory);
        }
        Pinned::new(STAGING_BYTES)
    }

    /// Copies the bytes to this device's memory.
    pub fn upload(self: &Arc<Device>, bytes: &[u8]) -> Result<Memory> {
        self.context.activate()?;
        let stream = &self.copies;
        let memory = Memory::new(
            self,
            bytes.len(),
            stream,
            Holder::named(Category::Data, "data from the host"),
        )?;
        for (i, chunk) in bytes.chunks(STAGING_BYTES).enumerate() {
            let staging = self.take_staging()?;
            let to = memory.address() + (i * STAGING_BYTES) as u64;
            // SAFETY: the staging buffer has room for a chunk and nothing else uses it until the copy is done; the
            // block has this number of bytes after the address.
            let status = unsafe {
                let (from, len) = (staging.ptr, chunk.len());
                std::ptr::copy_nonoverlapping(chunk.as_ptr(), from.cast(), len);
                call!(cuMemcpyHtoDAsync_v2(to, from, len, stream.handle()))
            };
            let done = stream.event();
            if status.is_err() || done.is_err() {
                std::mem::forget(staging); // a copy may still read it
                status?;
                return done.map(|_| memory);
            }
            let done = done?;
            memory.record_use(&done, true);
            let done = Some(done);
            lock(&self.staging).push(Staging {
                memory: staging,
                done,
            });
        }
        Ok(memory)
    }

    /// Waits for a block's contents and copies them from `offset` on.
    pub fn download(
        self: &Arc<Device>,
        memory: &Memory,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<()> {
        let lane = self.lane()?;
        memory.before_reading(&lane.stream)?;
        for (i, chunk) in bytes.chunks_mut(STAGING_BYTES).enumerate() {
            let staging = self.take_staging()?;
            let from = memory.address() + (offset + i * STAGING_BYTES) as u64;
            // SAFETY: the staging buffer has room for a chunk, the block has this number of bytes after the address,
            // and the copy is waited for before the bytes are read.
            unsafe {
                let (to, len, stream) = (staging.ptr, chunk.len(), lane.stream.handle());
                let status = call!(cuMemcpyDtoHAsync_v2(to, from, len, stream));
                let done = lane.stream.synchronize();
                status?;
                done?;
                std::ptr::copy_nonoverlapping(to.cast(), chunk.as_mut_ptr(), len);
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
