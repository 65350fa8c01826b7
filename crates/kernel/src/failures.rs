//! Data errors of a step.

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::lock::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the lanes of a tile are in the iteration space, and where their data errors are reported.
pub struct Position {
    /// The linear lane index of the first.
    pub start: i64,
    /// The linear index of the outer point.
    pub outer: i64,
    /// The place of a lane in the linear iteration space is `outer · outer_step + lane · lane_step`.
    pub outer_step: i64,
    pub lane_step: i64,
    pub failures: *const Failures,
}

impl Position {
    /// Reports a data error of a lane.
    #[cold]
    pub fn fail(&self, site: u32, lane: usize, index: i64, bound: i64) {
        let place = self.outer * self.outer_step + (self.start + lane as i64) * self.lane_step;
        let failure = Failure {
            place,
            site,
            index,
            bound,
        };
        // SAFETY: the sink outlives the run that this context belongs to.
        unsafe { &*self.failures }.report(failure);
    }
}

/// A data error, ordered by where in the iteration space it happened.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure {
    pub place: i64,
    /// The kernel's site.
    pub site: u32,
    pub index: i64,
    pub bound: i64,
}

/// The first data error of one step, whatever the order in which threads meet them.
#[derive(Default)]
pub struct Failures {
    /// What ends the step early.
    cancel: Option<Cancel>,
    any: AtomicBool,
    first: Mutex<Option<Failure>>,
    error: Mutex<Option<Error>>,
}

impl Failures {
    /// Those of steps that end when a switch is thrown.
    pub fn of(cancel: Option<Cancel>) -> Failures {
        Failures {
            cancel,
            ..Failures::default()
        }
    }

    /// Whether what is computed is of no use any more.
    #[inline]
    pub fn cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    pub fn report(&self, failure: Failure) {
        let mut first = lock(&self.first);
        if first.is_none_or(|f| failure < f) {
            *first = Some(failure);
        }
        self.any.store(true, Ordering::Release);
    }

    /// Notes that a part could not run at all.
    pub fn broken(&self, error: Error) {
        *lock(&self.error) = Some(error);
        self.any.store(true, Ordering::Release);
    }

    /// What was reported since the last call.
    pub fn take(&self) -> Result<Option<Failure>> {
        if self.cancelled() {
            return Err(Error::Cancelled);
        }
        if !self.any.swap(false, Ordering::Acquire) {
            return Ok(None);
        }
        let error = lock(&self.error).take();
        match error {
            Some(e) => Err(e),
            None => Ok(lock(&self.first).take()),
        }
    }
}
