//! A further line for the errors of recorded operations.

use kiln_base::Scoped;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static NOTE: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Runs `f`. Data errors of the operations that it records, such as an index out of range, carry this note whenever
/// they come up. Layers name themselves in this way.
pub fn with_error_note<T>(note: impl Into<Arc<str>>, f: impl FnOnce() -> T) -> T {
    let _inside = Scoped::new(&NOTE, Some(note.into()));
    f()
}

/// The current note.
pub(crate) fn current() -> Option<Arc<str>> {
    NOTE.with_borrow(Clone::clone)
}
