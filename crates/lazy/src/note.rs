//! A further line for the errors of what is recorded.

use kiln_base::Scoped;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static NOTE: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Runs `f`. Data errors of what is recorded in it, such as an index out of range, carry this note
/// whenever they come up: for layers, which name themselves so.
pub fn with_error_note<T>(note: impl Into<Arc<str>>, f: impl FnOnce() -> T) -> T {
    let _inside = Scoped::new(&NOTE, Some(note.into()));
    f()
}

/// The note now.
pub(crate) fn current() -> Option<Arc<str>> {
    NOTE.with_borrow(Clone::clone)
}
