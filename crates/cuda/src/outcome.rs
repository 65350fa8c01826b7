//! The end of a run that may have a data error, for its dependents.

use super::lane::{Slot, Slots};
use super::stream::Event;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use kiln_plan::cuda::ErrorRecord;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The end of a run on a GPU that may have a data error. Buffers that would then be wrong hold it; their readers wait
/// for the run.
pub struct Outcome {
    event: Arc<Event>,
    slot: Mutex<Option<Slot>>,
    slots: Arc<Slots>,
    explain: Box<Explain>,
    ended: Mutex<Option<Result<()>>>,
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
            ended: Mutex::default(),
            reported: AtomicBool::new(false),
            note: Mutex::default(),
        }
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

    /// True if the error was reported.
    pub fn reported(&self) -> bool {
        self.reported.load(Ordering::Relaxed)
    }

    /// Keeps an object until the run has succeeded.
    pub fn keep(&self, note: Note) {
        let ended = lock(&self.ended);
        if *ended != Some(Ok(())) {
            *lock(&self.note) = Some(note);
        }
    }

    /// The object that was kept.
    pub fn note(&self) -> Option<Note> {
        lock(&self.note).clone()
    }

    fn ended(&self) -> Result<()> {
        let mut ended = lock(&self.ended);
        if let Some(ended) = &*ended {
            return ended.clone();
        }
        let result = self.slots.context.activate().and_then(|()| {
            self.event.synchronize()?;
            let slot = lock(&self.slot).take();
            let record = slot.map_or(ErrorRecord::default(), |slot| {
                let record = slot.read();
                self.slots.give(slot, None);
                record
            });
            (self.explain)(record).map_or(Ok(()), Err)
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
            // The device may still write to the slot.
            self.slots.give(slot, Some(self.event.clone()));
        }
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Outcome({:?})", lock(&self.ended))
    }
}

/// Runs of a device for whose end nobody has waited.
#[derive(Default)]
pub(super) struct Outcomes(Mutex<Vec<Arc<Outcome>>>);

impl Outcomes {
    pub(super) fn add(&self, outcome: Outcome) -> Arc<Outcome> {
        let shared = Arc::new(outcome);
        let mut open = lock(&self.0);
        // Streams whose oldest open run goes on: their later ones need not be asked for.
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
            o.ended().is_err() && !o.reported()
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
