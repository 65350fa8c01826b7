//! Cancellation of runs that take too long.

use crate::error::{Error, Result};
use kiln_base::Scoped;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A switch that cancels runs, of lazy values and of compiled functions. Clones share one state. Any thread may cancel,
/// and a cancelled switch can't be reset.
///
/// ```
/// use kiln_kernel::cancel::Cancel;
///
/// let cancel = Cancel::new();
/// let watcher = cancel.clone();
/// std::thread::spawn(move || watcher.cancel());
/// // Runs that start in here end with an error soon after the cancellation.
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
    /// Returns a switch that is not cancelled.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends current and later runs that check the switch, with [`Error::Cancelled`]. On the CPU, runs check it between
    /// steps, in each iteration of loops, and between tiles of kernels. A GPU completes launched kernels. A run is not
    /// interrupted after its first write to donated memory.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// True if the switch was cancelled.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Calls `f`. Runs that this thread starts in it check this switch alone.
    pub fn watch<R>(&self, f: impl FnOnce() -> R) -> R {
        let _restore = Scoped::new(&WATCHED, Some(self.clone()));
        f()
    }

    /// Returns the switch that runs of this thread check.
    pub fn current() -> Option<Cancel> {
        WATCHED.with_borrow(Option::clone)
    }
}

/// Returns an error if the switch of this thread was cancelled.
pub fn check() -> Result<()> {
    match WATCHED.with_borrow(|w| w.as_ref().is_some_and(Cancel::is_cancelled)) {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
}

/// Calls `f`. Runs that this thread starts in it check no switch.
pub fn unwatched<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Scoped::new(&WATCHED, None);
    f()
}
