//! Lanes: the stream and error record of a run, and slots on the host for copies of the records.

use super::context::Context;
use super::driver::{Address, call};
use super::pool::{DeviceBlock, Pool};
use super::stream::{Event, Pinned, Stream};
use kiln_kernel::error::Result;
use kiln_kernel::lock::lock;
use kiln_kernel::memory::{Category, Holder};
use kiln_plan::cuda::ErrorRecord;
use std::sync::{Arc, Mutex};

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
        let (address, len) = (self.record(), size_of::<ErrorRecord>());
        // SAFETY: the record has this number of bytes.
        Ok(unsafe { call!(cuMemsetD8Async(address, 0, len, self.stream.handle())) }?)
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
    pub(super) fn move_record(&self, slot: &Slot) -> Result<()> {
        let (address, len) = (self.record(), size_of::<ErrorRecord>());
        let (to, stream) = (slot.ptr(), self.stream.handle());
        // SAFETY: both sides have this number of bytes, and nobody else uses the slot until the copy is done.
        unsafe { call!(cuMemcpyDtoHAsync_v2(to.cast(), address, len, stream)) }?;
        self.clear()
    }
}

/// A slot for one record in page-locked memory.
pub(super) struct Slot {
    page: Arc<Pinned>,
    index: usize,
}

impl Slot {
    pub(super) fn ptr(&self) -> *mut ErrorRecord {
        let first_record = self.page.ptr.cast::<ErrorRecord>();
        first_record.wrapping_add(self.index)
    }

    pub(super) fn read(&self) -> ErrorRecord {
        // SAFETY: the page is aligned and has room for this record of plain numbers, which the device has finished
        // writing.
        unsafe { self.ptr().read() }
    }
}

/// The number of slots of a page.
const PAGE: usize = 128;

/// The slots that no run uses.
pub(super) struct Slots {
    pub(super) context: Context,
    /// Each slot with the event up to which the device uses it.
    free: Mutex<Vec<(Slot, Option<Arc<Event>>)>>,
}

impl Slots {
    pub(super) fn new(context: Context) -> Slots {
        let free = Mutex::default();
        Slots { context, free }
    }

    /// A slot that the device does not use. The context must be current.
    pub(super) fn take(&self) -> Result<Slot> {
        let mut slots = lock(&self.free);
        let is_free = |(_, until): &(Slot, Option<Arc<Event>>)| {
            until.as_ref().is_none_or(|event| event.has_happened())
        };
        if let Some(free_index) = slots.iter().position(is_free) {
            return Ok(slots.swap_remove(free_index).0);
        }
        let bytes = PAGE * size_of::<ErrorRecord>();
        let page = Arc::new(Pinned::new(bytes)?);
        let slot = |index| Slot {
            page: page.clone(),
            index,
        };
        slots.extend((1..PAGE).map(|i| (slot(i), None)));
        Ok(slot(0))
    }

    /// Returns a slot that the device uses up to an event.
    pub(super) fn give_back(&self, slot: Slot, until: Option<Arc<Event>>) {
        lock(&self.free).push((slot, until));
    }
}
