//! The results of runs that may have a data error.

use super::lane::{Slot, Slots};
use super::stream::Event;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use kiln_plan::cuda::ErrorRecord;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The result of a run on a GPU that may have a data error. Buffers that an error would make wrong hold it; their
/// readers wait for the run.
pub struct Outcome {
    event: Arc<Event>,
    slot: Mutex<Option<Slot>>,
    slots: Arc<Slots>,
    explain: Box<Explain>,
    result: Mutex<Option<Result<()>>>,
    reported: AtomicBool,
    note: Mutex<Option<Note>>,
}

/// Returns the error of a run with this record, if it has one.
type Explain = dyn Fn(ErrorRecord) -> Option<Error> + Send + Sync;

/// An object that a caller keeps with an outcome.
pub type Note = Arc<dyn Any + Send + Sync>;

impl Outcome {
    pub(super) fn new(
        slots: &Arc<Slots>,
        event: Arc<Event>,
        slot: Slot,
        explain: Box<Explain>,
    ) -> Outcome {
        Outcome {
            event,
            slot: Mutex::new(Some(slot)),
            slots: slots.clone(),
            explain,
            result: Mutex::default(),
            reported: AtomicBool::new(false),
            note: Mutex::default(),
        }
    }

    /// Waits for the run.
    ///
    /// # Errors
    /// Its data error, every time, or the device's failure.
    pub fn wait(&self) -> Result<()> {
        let result = self.resolve();
        if result.is_err() {
            self.reported.store(true, Ordering::Relaxed);
        }
        result
    }

    /// True if the error was reported.
    pub fn reported(&self) -> bool {
        self.reported.load(Ordering::Relaxed)
    }

    /// Keeps an object until the run has succeeded.
    pub fn keep(&self, note: Note) {
        let result = lock(&self.result);
        if *result != Some(Ok(())) {
            *lock(&self.note) = Some(note);
        }
    }

    /// The object that was kept.
    pub fn note(&self) -> Option<Note> {
        lock(&self.note).clone()
    }

    /// Waits for the run, once, and returns its result.
    fn resolve(&self) -> Result<()> {
        let mut known = lock(&self.result);
        if let Some(result) = &*known {
            return result.clone();
        }
        let result = self.slots.context.activate().and_then(|()| {
            self.event.synchronize()?;
            let slot = lock(&self.slot).take();
            let record = slot.map_or(ErrorRecord::default(), |slot| {
                let record = slot.read();
                self.slots.give_back(slot, None);
                record
            });
            (self.explain)(record).map_or(Ok(()), Err)
        });
        *known = Some(result.clone());
        drop(known);
        let note = result.is_ok().then(|| lock(&self.note).take());
        drop(note); // without the lock, since it may hold much memory
        result
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        if let Some(slot) = lock(&self.slot).take() {
            // The device may still write to the slot.
            self.slots.give_back(slot, Some(self.event.clone()));
        }
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Outcome({:?})", lock(&self.result))
    }
}

/// Runs of a device with unreported results.
#[derive(Default)]
pub(super) struct Outcomes(Mutex<Vec<Arc<Outcome>>>);

impl Outcomes {
    pub(super) fn add(&self, outcome: Outcome) -> Arc<Outcome> {
        let shared = Arc::new(outcome);
        let mut open = lock(&self.0);
        // Streams whose oldest open run is in progress: their later runs are too.
        let mut busy: SmallVec<[u64; 4]> = SmallVec::new();
        // Successful runs are dropped, failed ones once they are reported.
        open.retain(|o| {
            let stream = o.event.stream.id();
            if busy.contains(&stream) {
                return true;
            }
            if !o.event.has_happened() {
                busy.push(stream);
                return true;
            }
            o.resolve().is_err() && !o.reported()
        });
        open.push(shared.clone());
        shared
    }

    /// Unreported outcomes, oldest first.
    pub(super) fn unreported(&self) -> Vec<Arc<Outcome>> {
        let open = lock(&self.0);
        open.iter().filter(|o| !o.reported()).cloned().collect()
    }
}
