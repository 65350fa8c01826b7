//! Data errors of steps.

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::lock::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The position of a tile's lanes in the iteration space, and the sink of their data errors.
pub struct Position {
    /// The linear lane index of the first lane.
    pub start: i64,
    /// The linear index of the outer point.
    pub outer: i64,
    /// The linear position of a lane in the iteration space is `outer · outer_step + lane · lane_step`.
    pub outer_step: i64,
    pub lane_step: i64,
    /// The sink, which outlives the run of the position.
    pub failures: *const Failures,
}

impl Position {
    /// Returns the data error of a lane.
    #[cold]
    pub fn failure(&self, site: u32, lane: usize, index: i64, bound: i64) -> Failure {
        Failure {
            position: self.outer * self.outer_step + (self.start + lane as i64) * self.lane_step,
            site,
            index,
            bound,
        }
    }
}

/// A data error, ordered by its position in the iteration space.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure {
    pub position: i64,
    /// The kernel's site.
    pub site: u32,
    pub index: i64,
    pub bound: i64,
}

/// The data error of one step with the lowest position, independent of the order in which threads report errors.
#[derive(Default)]
pub struct Failures {
    /// The switch that cancels the step.
    cancel: Option<Cancel>,
    is_set: AtomicBool,
    first: Mutex<Option<Failure>>,
    error: Mutex<Option<Error>>,
}

impl Failures {
    /// Returns an empty sink for a step that a switch may cancel.
    pub fn with_cancel(cancel: Option<Cancel>) -> Failures {
        Failures {
            cancel,
            ..Failures::default()
        }
    }

    /// True if the step was cancelled.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    /// Records a data error.
    pub fn report(&self, failure: Failure) {
        let mut first = lock(&self.first);
        if first.is_none_or(|f| failure < f) {
            *first = Some(failure);
        }
        self.is_set.store(true, Ordering::Release);
    }

    /// Records the error of a part that could not run.
    pub fn report_error(&self, error: Error) {
        *lock(&self.error) = Some(error);
        self.is_set.store(true, Ordering::Release);
    }

    /// Takes the first data error reported since the last call; returns an error if a part could not run or was
    /// cancelled.
    pub fn take(&self) -> Result<Option<Failure>> {
        if self.is_cancelled() {
            return Err(Error::Cancelled);
        }
        if !self.is_set.swap(false, Ordering::Acquire) {
            return Ok(None);
        }
        let error = lock(&self.error).take();
        match error {
            Some(e) => Err(e),
            None => Ok(lock(&self.first).take()),
        }
    }
}
