//! Slots on the host for copies of records of data errors.

use super::context::Context;
use super::stream::{Event, Pinned};
use kiln_kernel::error::Result;
use kiln_kernel::lock::lock;
use kiln_plan::cuda::ErrorRecord;
use std::sync::{Arc, Mutex};

/// A slot for one record in page-locked memory.
pub(super) struct Slot {
    page: Arc<Pinned>,
    index: usize,
}

impl Slot {
    pub(super) fn ptr(&self) -> *mut ErrorRecord {
        let first = self.page.ptr.cast::<ErrorRecord>();
        first.wrapping_add(self.index)
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
        let free = |(_, until): &(Slot, Option<Arc<Event>>)| {
            until.as_ref().is_none_or(|event| event.happened())
        };
        if let Some(at) = slots.iter().position(free) {
            return Ok(slots.swap_remove(at).0);
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
    pub(super) fn give(&self, slot: Slot, until: Option<Arc<Event>>) {
        lock(&self.free).push((slot, until));
    }
}
