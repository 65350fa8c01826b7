//! How a run that may have a data error ended, for those who depend on it.

use super::device::Device;
use super::stream::{Event, Pinned};
use crate::error::{Error, Result};
use crate::lock::lock;
use kiln_plan::cuda::ErrorRecord;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// How a run ends that a GPU was given and that may have a data error. [`Buffer`](crate::Buffer)s that
/// would then be wrong hold it; whoever depends on one waits for the run.
pub struct Outcome {
    event: Arc<Event>,
    slot: Mutex<Option<Slot>>,
    device: Arc<Device>,
    /// The error of a record.
    explain: Box<dyn Fn(ErrorRecord) -> Error + Send + Sync>,
    ended: Mutex<Option<Result<()>>>,
    reported: AtomicBool,
    note: Mutex<Option<Note>>,
}

/// What a caller keeps with an outcome.
pub type Note = Arc<dyn Any + Send + Sync>;

impl Outcome {
    pub(super) fn new(
        device: &Arc<Device>,
        event: Arc<Event>,
        slot: Slot,
        explain: Box<dyn Fn(ErrorRecord) -> Error + Send + Sync>,
    ) -> Arc<Outcome> {
        let made = Arc::new(Outcome {
            event,
            slot: Mutex::new(Some(slot)),
            device: device.clone(),
            explain,
            ended: Mutex::default(),
            reported: AtomicBool::new(false),
            note: Mutex::default(),
        });
        let mut open = lock(&device.outcomes);
        // Those that went well are of no interest, those that failed are until somebody was told.
        open.retain(|o| !o.event.happened() || o.ended().is_err() && !o.reported());
        open.push(made.clone());
        made
    }

    /// Waits for the run.
    ///
    /// # Errors
    /// Its data error, every time, or the device's failure.
    pub fn wait(&self) -> Result<()> {
        let ended = self.ended();
        if ended.is_err() {
            self.reported.store(true, Ordering::Relaxed);
        }
        ended
    }

    /// Whether somebody was told of the error.
    pub fn reported(&self) -> bool {
        self.reported.load(Ordering::Relaxed)
    }

    /// Keeps something until the run has turned out well.
    pub fn keep(&self, note: Note) {
        let ended = lock(&self.ended);
        if *ended != Some(Ok(())) {
            *lock(&self.note) = Some(note);
        }
    }

    /// What was kept.
    pub fn note(&self) -> Option<Note> {
        lock(&self.note).clone()
    }

    fn ended(&self) -> Result<()> {
        let mut ended = lock(&self.ended);
        if let Some(ended) = &*ended {
            return ended.clone();
        }
        let result = self.device.activate().and_then(|()| {
            self.event.synchronize()?;
            let slot = lock(&self.slot).take();
            let record = slot.map_or(ErrorRecord::default(), |slot| {
                let record = slot.read();
                lock(&self.device.slots).push((slot, None));
                record
            });
            match record.state {
                0 => Ok(()),
                _ => Err((self.explain)(record)),
            }
        });
        *ended = Some(result.clone());
        drop(ended);
        let done = result.is_ok().then(|| lock(&self.note).take());
        drop(done); // what it holds may be much
        result
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        if let Some(slot) = lock(&self.slot).take() {
            // The device may still write there.
            lock(&self.device.slots).push((slot, Some(self.event.clone())));
        }
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Outcome({:?})", lock(&self.ended))
    }
}

/// A place in page-locked memory for one record.
pub(super) struct Slot {
    page: Arc<Pinned>,
    index: usize,
}

/// Places, with the event up to which the device uses them.
pub(super) type Slots = Vec<(Slot, Option<Arc<Event>>)>;

/// Places of a page.
const PAGE: usize = 128;

impl Slot {
    pub(super) fn ptr(&self) -> *mut ErrorRecord {
        let first = self.page.ptr.cast::<ErrorRecord>();
        first.wrapping_add(self.index)
    }

    fn read(&self) -> ErrorRecord {
        // SAFETY: the page is aligned and has room for this record of plain numbers, which the device
        // has finished to write.
        unsafe { self.ptr().read() }
    }
}

impl Device {
    /// Runs of this device that may have a data error of which nobody was told, oldest first. Those that
    /// went well are forgotten in time.
    pub fn outcomes(&self) -> Vec<Arc<Outcome>> {
        let open = lock(&self.outcomes);
        open.iter().filter(|o| !o.reported()).cloned().collect()
    }

    /// A place that the device does not use.
    pub(super) fn slot(&self) -> Result<Slot> {
        let mut slots = lock(&self.slots);
        let free = |(_, until): &(Slot, Option<Arc<Event>>)| {
            until.as_ref().is_none_or(|event| event.happened())
        };
        if let Some(at) = slots.iter().position(free) {
            return Ok(slots.swap_remove(at).0);
        }
        let page = Arc::new(Pinned::new(self.driver, PAGE * size_of::<ErrorRecord>())?);
        let slot = |index| Slot {
            page: page.clone(),
            index,
        };
        slots.extend((1..PAGE).map(|i| (slot(i), None)));
        Ok(slot(0))
    }
}
