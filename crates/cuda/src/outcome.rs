//! How a run that may have a data error ended, for those who depend on it.

use super::slot::{Slot, Slots};
use super::stream::Event;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use kiln_plan::cuda::ErrorRecord;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// How a run ends that a GPU was given and that may have a data error. Buffers that
/// would then be wrong hold it; whoever depends on one waits for the run.
pub struct Outcome {
    event: Arc<Event>,
    slot: Mutex<Option<Slot>>,
    slots: Arc<Slots>,
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
        slots: &Arc<Slots>,
        event: Arc<Event>,
        slot: Slot,
        explain: Box<dyn Fn(ErrorRecord) -> Error + Send + Sync>,
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
        let result = self.slots.context.activate().and_then(|()| {
            self.event.synchronize()?;
            let slot = lock(&self.slot).take();
            let record = slot.map_or(ErrorRecord::default(), |slot| {
                let record = slot.read();
                self.slots.give(slot, None);
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
            self.slots.give(slot, Some(self.event.clone()));
        }
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Outcome({:?})", lock(&self.ended))
    }
}

/// Runs of a device of which nobody has waited for the end.
#[derive(Default)]
pub(super) struct Outcomes(Mutex<Vec<Arc<Outcome>>>);

impl Outcomes {
    pub(super) fn add(&self, outcome: Outcome) -> Arc<Outcome> {
        let made = Arc::new(outcome);
        let mut open = lock(&self.0);
        // Those that went well are of no interest, those that failed are until somebody was told.
        open.retain(|o| !o.event.happened() || o.ended().is_err() && !o.reported());
        open.push(made.clone());
        made
    }

    /// Those of which nobody was told, oldest first.
    pub(super) fn unreported(&self) -> Vec<Arc<Outcome>> {
        let open = lock(&self.0);
        open.iter().filter(|o| !o.reported()).cloned().collect()
    }
}
