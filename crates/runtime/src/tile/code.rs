//! What instructions are, and what they see while a program runs.

use super::bound::BoundDynamic;
use super::call::Printed;
use super::walk::Walk;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::lock::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// What an instruction is called with.
pub(crate) type Call = (*mut Ctx, *const Code);
/// A compiled instruction.
///
/// # Safety
/// The context is that of a runner of the linked program that the code belongs to.
pub(crate) type Op = unsafe fn(Call);

/// An instruction with its operands.
#[derive(Copy, Clone)]
pub(crate) struct Code {
    pub f: Op,
    /// Physical registers.
    pub dst: u32,
    pub a: u32,
    pub b: u32,
    pub c: u32,
    /// A walk, slot, state, site or printed function, as the instruction has it.
    pub x: u32,
    /// Whether it calls a printed function, whose number is `x`.
    pub is_call: bool,
}

/// What instructions see while a program runs.
pub(crate) struct Ctx {
    /// Where each physical register's elements are.
    pub homes: *const *mut u8,
    pub args: *const *mut u8,
    pub walks: *const Walk,
    pub bases: *mut i64,
    pub coords: *mut i64,
    pub dynamics: *const Vec<BoundDynamic>,
    pub printed: *const Printed,
    pub slots: *const *mut u8,
    pub states: *mut [u64; 2],
    /// Lanes of this tile.
    pub n: usize,
    /// The linear lane index of the first.
    pub start: i64,
    /// The linear index of the outer point.
    pub outer: i64,
    /// The first element of this tile in each slot.
    pub slot_at: usize,
    /// The place of a lane in the linear iteration space is `outer · outer_step + lane · lane_step`.
    pub outer_step: i64,
    pub lane_step: i64,
    pub failures: *const Failures,
}

impl Ctx {
    /// A register's elements.
    ///
    /// # Safety
    /// `reg` is a register of the program whose elements are `T`.
    #[inline(always)]
    pub(crate) unsafe fn reg<T>(&self, reg: u32) -> *mut T {
        // SAFETY: there is a pointer for each register of the program.
        unsafe { (*self.homes.add(reg as usize)).cast() }
    }

    /// Reports a data error of a lane.
    #[cold]
    pub(crate) fn fail(&self, site: u32, lane: usize, index: i64, bound: i64) {
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
pub(crate) struct Failure {
    pub place: i64,
    /// The kernel's site.
    pub site: u32,
    pub index: i64,
    pub bound: i64,
}

/// The first data error of one step, whatever the order in which threads meet them.
#[derive(Default)]
pub(crate) struct Failures {
    /// What ends the step early.
    cancel: Option<Cancel>,
    any: AtomicBool,
    first: Mutex<Option<Failure>>,
    error: Mutex<Option<Error>>,
}

impl Failures {
    /// Those of steps that end when a switch is thrown.
    pub(crate) fn of(cancel: Option<Cancel>) -> Failures {
        Failures {
            cancel,
            ..Failures::default()
        }
    }

    /// Whether what is computed is of no use any more.
    #[inline]
    pub(crate) fn cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    pub(crate) fn report(&self, failure: Failure) {
        let mut first = lock(&self.first);
        if first.is_none_or(|f| failure < f) {
            *first = Some(failure);
        }
        self.any.store(true, Ordering::Release);
    }

    /// Notes that a part could not run at all.
    pub(crate) fn broken(&self, error: Error) {
        *lock(&self.error) = Some(error);
        self.any.store(true, Ordering::Release);
    }

    /// What was reported since the last call.
    pub(crate) fn take(&self) -> Result<Option<Failure>> {
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
