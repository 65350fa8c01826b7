//! Lanes: what runs work through.

use super::driver::{Address, Driver};
use super::pool::{Block, Pool};
use super::slot::Slot;
use super::stream::Stream;
use crate::error::Result;
use kiln_plan::cuda::ErrorRecord;
use std::sync::Arc;

/// What a run works through: a stream, and the record of data errors that its kernels write to. The
/// record is zero while no run holds the lane.
pub(super) struct Lane {
    pub(super) stream: Arc<Stream>,
    record: Block,
}

impl Lane {
    /// With the context current.
    pub(super) fn new(pool: &Arc<Pool>) -> Result<Lane> {
        let stream = Arc::new(Stream::new(pool.context)?);
        let size = size_of::<ErrorRecord>();
        let record = Block::new(pool, size, &stream, &"an error record".into())?;
        let lane = Lane { stream, record };
        lane.clear()?;
        Ok(lane)
    }

    fn driver(&self) -> &'static Driver {
        self.stream.context().driver
    }

    pub(super) fn record(&self) -> Address {
        self.record.address()
    }

    /// Makes the record zero again.
    pub(super) fn clear(&self) -> Result<()> {
        let driver = self.driver();
        let (at, len) = (self.record(), size_of::<ErrorRecord>());
        // SAFETY: the record has that many bytes.
        let status = unsafe { (driver.functions.fill)(at, 0, len, self.stream.handle()) };
        driver.check("cuMemsetD8Async", status)
    }

    /// Copies what was recorded so far to a place of the host, and makes the record zero again.
    pub(super) fn hand_over(&self, slot: &Slot) -> Result<()> {
        let (at, len) = (self.record(), size_of::<ErrorRecord>());
        let (driver, stream) = (self.driver(), self.stream.handle());
        // SAFETY: both sides have that many bytes, and the place is nobody else's until the copy is done.
        let status = unsafe { (driver.functions.download)(slot.ptr().cast(), at, len, stream) };
        driver.check("cuMemcpyDtoHAsync", status)?;
        self.clear()
    }
}
