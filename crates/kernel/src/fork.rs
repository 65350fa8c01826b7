//! Forks of the process.
//!
//! A child has a copy of all memory, but only one thread: the one that forked. If no other thread used this crate, the
//! child continues with its own thread pool. Otherwise the child would inherit locks that nobody releases and work that
//! nobody finishes. Then every call of the child is an error.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The number of threads that use this crate.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// The number of forks of this process and its ancestors, since the first use.
static GENERATION: AtomicUsize = AtomicUsize::new(0);
/// True if there were other threads when this process began.
static CUT_OFF: AtomicBool = AtomicBool::new(false);

/// True if a thread has been counted, false if it is left out; `None` if it has not used this crate yet.
struct Counted(Cell<Option<bool>>);

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.get() == Some(true) {
            THREADS.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

thread_local! {
    static HERE: Counted = const { Counted(Cell::new(None)) };
}

/// Begins a call that may take locks or use the thread pool.
///
/// # Errors
/// [`Error::Forked`] in a child whose parent had other threads that used this crate.
pub fn check() -> Result<()> {
    count_thread();
    match CUT_OFF.load(Ordering::Relaxed) {
        true => Err(Error::Forked),
        false => Ok(()),
    }
}

/// Counts this thread.
pub fn count_thread() {
    static WATCH: Once = Once::new();
    // A thread that is about to end is not counted again.
    let _ = HERE.try_with(|here| {
        if here.0.get().is_none() {
            here.0.set(Some(true));
            WATCH.call_once(watch);
            THREADS.fetch_add(1, Ordering::SeqCst);
        }
    });
}

/// Leaves this thread out of the count: one of the pool, which works only while a thread that is counted waits for it.
pub(crate) fn leave_out() {
    let _ = HERE.try_with(|here| here.0.set(Some(false)));
}

/// Returns a number that differs between a child and its parent.
pub fn generation() -> usize {
    GENERATION.load(Ordering::Relaxed)
}

#[cfg(not(unix))]
fn watch() {}

#[cfg(unix)]
fn watch() {
    /// Runs in the child, before `fork` returns there.
    extern "C" fn in_child() {
        let ours = HERE
            .try_with(|here| here.0.get() == Some(true))
            .unwrap_or(false) as usize;
        let others = THREADS.swap(ours, Ordering::SeqCst) > ours;
        CUT_OFF.fetch_or(others, Ordering::Relaxed);
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    crate::system::in_children(in_child);
}
