//! Cancellation of runs that take too long.

use crate::error::{Error, Result};
use kiln_base::Scoped;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A switch that cancels runs: reads of lazy values and compiled functions alike. Clones are one switch. Any thread may
/// throw it, and it stays thrown.
///
/// ```
/// use kiln_kernel::cancel::Cancel;
///
/// let cancel = Cancel::new();
/// let watcher = cancel.clone();
/// std::thread::spawn(move || watcher.cancel());
/// // Runs that begin in here end with an error soon after the switch was thrown.
/// let done = cancel.watch(|| 1 + 1);
/// assert_eq!(done, 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

thread_local! {
    /// The switch that runs of this thread check.
    static WATCHED: RefCell<Option<Cancel>> = const { RefCell::new(None) };
}

impl Cancel {
    /// Returns a switch that is not thrown.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends the runs that check the switch, now and later, with [`Error::Cancelled`]. On the CPU they check it between
    /// steps, loops in each of their steps, and kernels from tile to tile. A GPU finishes the work that it was given. A
    /// run that has begun to write over donated memory is not interrupted.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// True if it was thrown.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Calls `f`; runs that this thread begins meanwhile check this switch, and no other.
    pub fn watch<R>(&self, f: impl FnOnce() -> R) -> R {
        let _restore = Scoped::new(&WATCHED, Some(self.clone()));
        f()
    }

    /// Returns the switch that runs of this thread check.
    pub fn current() -> Option<Cancel> {
        WATCHED.with_borrow(Option::clone)
    }
}

/// Returns an error if the switch of this thread was thrown.
pub fn check() -> Result<()> {
    match WATCHED.with_borrow(|w| w.as_ref().is_some_and(Cancel::is_cancelled)) {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
}

/// Calls `f` without a switch.
pub fn unwatched<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Scoped::new(&WATCHED, None);
    f()
}
