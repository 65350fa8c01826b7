//! Places of the host that records of data errors are copied to.

use super::context::Context;
use super::stream::{Event, Pinned};
use kiln_kernel::error::Result;
use kiln_kernel::lock::lock;
use kiln_plan::cuda::ErrorRecord;
use std::sync::{Arc, Mutex};

/// A place in page-locked memory for one record.
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
        // SAFETY: the page is aligned and has room for this record of plain numbers, which the device
        // has finished to write.
        unsafe { self.ptr().read() }
    }
}

/// Places of a page.
const PAGE: usize = 128;

/// The places that no run uses.
pub(super) struct Slots {
    pub(super) context: Context,
    /// With the event up to which the device uses them.
    free: Mutex<Vec<(Slot, Option<Arc<Event>>)>>,
}

impl Slots {
    pub(super) fn new(context: Context) -> Slots {
        let free = Mutex::default();
        Slots { context, free }
    }

    /// A place that the device does not use, with the context current.
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

    /// Gives a place back that the device uses up to an event.
    pub(super) fn give(&self, slot: Slot, until: Option<Arc<Event>>) {
        lock(&self.free).push((slot, until));
    }
}
