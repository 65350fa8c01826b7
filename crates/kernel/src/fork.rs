//! Forks of the process.
//!
//! A child has a copy of all memory, but only the thread that forked. If no other thread used this crate, the child
//! continues with a new thread pool. Otherwise the child could inherit locks that no thread releases, so every call in
//! the child is an error.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The number of threads that use this crate.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// The number of forks of this process and its ancestors, since the first use.
static GENERATION: AtomicUsize = AtomicUsize::new(0);
/// True if the parent had other threads when it forked this process.
static LOST_THREADS: AtomicBool = AtomicBool::new(false);

/// True if the thread is counted, false if it is excluded; `None` if it has not used this crate yet.
struct Counted(Cell<Option<bool>>);

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.get() == Some(true) {
            THREADS.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

thread_local! {
    static THIS_THREAD: Counted = const { Counted(Cell::new(None)) };
}

/// Begins a call that may take locks or use the thread pool.
///
/// # Errors
/// [`Error::Forked`] in a child whose parent had other threads that used this crate.
pub fn check() -> Result<()> {
    count_thread();
    match LOST_THREADS.load(Ordering::Relaxed) {
        true => Err(Error::Forked),
        false => Ok(()),
    }
}

/// Counts this thread.
pub fn count_thread() {
    static WATCH: Once = Once::new();
    // Thread-local state is gone while a thread ends; such a thread is not counted.
    let _ = THIS_THREAD.try_with(|here| {
        if here.0.get().is_none() {
            here.0.set(Some(true));
            WATCH.call_once(register_handler);
            THREADS.fetch_add(1, Ordering::SeqCst);
        }
    });
}

/// Excludes this thread from the count. Threads of the pool work only while a counted thread waits for them.
pub(crate) fn exclude_thread() {
    let _ = THIS_THREAD.try_with(|here| here.0.set(Some(false)));
}

/// Returns a number that differs between a child and its parent.
pub fn generation() -> usize {
    GENERATION.load(Ordering::Relaxed)
}

#[cfg(not(unix))]
fn register_handler() {}

#[cfg(unix)]
fn register_handler() {
    /// Runs in the child, before `fork` returns there.
    extern "C" fn in_child() {
        let own = THIS_THREAD
            .try_with(|here| here.0.get() == Some(true))
            .unwrap_or(false) as usize;
        let had_others = THREADS.swap(own, Ordering::SeqCst) > own;
        LOST_THREADS.fetch_or(had_others, Ordering::Relaxed);
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    crate::system::on_fork_in_child(in_child);
}
