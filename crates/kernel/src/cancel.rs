//! Ending runs that take too long.

use crate::error::{Error, Result};
use kiln_base::Scoped;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A switch that ends runs early: reads of lazy values and compiled functions alike. Clones are one switch; any
/// thread may throw it, once and for all.
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
    /// The switch that runs of this thread look at.
    static WATCHED: RefCell<Option<Cancel>> = const { RefCell::new(None) };
}

impl Cancel {
    /// A switch that was not thrown.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends the runs that look at the switch, and those that will, with [`Error::Cancelled`]. On the CPU they
    /// look at it between steps, loops in every step of theirs, and kernels from tile to tile; a GPU
    /// finishes what it was given. A run that has begun to write over donated memory is not interrupted.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was thrown.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Calls `f`; runs that this thread begins meanwhile look at the switch, and at no other.
    pub fn watch<R>(&self, f: impl FnOnce() -> R) -> R {
        let _restore = Scoped::new(&WATCHED, Some(self.clone()));
        f()
    }

    /// The switch that runs of this thread look at.
    pub fn current() -> Option<Cancel> {
        WATCHED.with_borrow(Option::clone)
    }
}

/// Errs if the switch of this thread was thrown.
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
