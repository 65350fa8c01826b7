//! Lanes: the stream and error record of a run.

use super::driver::{Address, call};
use super::pool::{DeviceBlock, Pool};
use super::slot::Slot;
use super::stream::Stream;
use kiln_kernel::error::Result;
use kiln_kernel::memory::{Category, Holder};
use kiln_plan::cuda::ErrorRecord;
use std::sync::Arc;

/// The resources of a run: a stream, and the record of data errors that its kernels write to. The record is zero
/// while no run holds the lane.
pub(super) struct Lane {
    pub(super) stream: Arc<Stream>,
    record: DeviceBlock,
}

impl Lane {
    /// Creates a lane. The context must be current.
    pub(super) fn new(pool: &Arc<Pool>) -> Result<Lane> {
        let stream = Arc::new(Stream::new(pool.context)?);
        let size = size_of::<ErrorRecord>();
        let record = DeviceBlock::new(
            pool,
            size,
            &stream,
            Holder::named(Category::Workspaces, "an error record"),
        )?;
        let lane = Lane { stream, record };
        lane.clear()?;
        Ok(lane)
    }

    pub(super) fn record(&self) -> Address {
        self.record.address()
    }

    /// Sets the record to zero.
    pub(super) fn clear(&self) -> Result<()> {
        let (at, len) = (self.record(), size_of::<ErrorRecord>());
        // SAFETY: the record has this number of bytes.
        Ok(unsafe { call!(cuMemsetD8Async(at, 0, len, self.stream.handle())) }?)
    }

    /// Writes an error at a site to the record, on a stream that waits for nothing.
    pub(super) fn mark(&self, site: u32, stream: &Stream) -> Result<()> {
        let record = ErrorRecord {
            state: site + 1,
            ..ErrorRecord::default()
        };
        let (to, from) = (
            self.record(),
            (&raw const record).cast::<std::ffi::c_void>(),
        );
        // SAFETY: both sides have this number of bytes, and the copy is waited for.
        unsafe {
            let len = size_of::<ErrorRecord>();
            call!(cuMemcpyHtoDAsync_v2(to, from, len, stream.handle()))
        }?;
        stream.synchronize()
    }

    /// Copies the record to a slot on the host, and sets it to zero.
    pub(super) fn hand_over(&self, slot: &Slot) -> Result<()> {
        let (at, len) = (self.record(), size_of::<ErrorRecord>());
        let (to, stream) = (slot.ptr(), self.stream.handle());
        // SAFETY: both sides have this number of bytes, and nobody else uses the slot until the copy is done.
        unsafe { call!(cuMemcpyDtoHAsync_v2(to.cast(), at, len, stream)) }?;
        self.clear()
    }
}
