//! Overrides of the values of cells on a thread.

use crate::Handle;
use kiln_base::Scoped;
use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    /// The values, by the cells' ids.
    static OVERRIDES: RefCell<BTreeMap<u64, Handle>> = const { RefCell::new(BTreeMap::new()) };
}

/// Runs `f`, in which the cells with these ids have other values on this thread, with their gradients. Assignments
/// replace these values, and the cells keep theirs.
pub fn with_values<T>(values: impl IntoIterator<Item = (u64, Handle)>, f: impl FnOnce() -> T) -> T {
    let mut overrides = OVERRIDES.with_borrow(Clone::clone);
    overrides.extend(values);
    let _inside = Scoped::new(&OVERRIDES, overrides);
    f()
}

/// Returns the value that overrides a cell's, if there is one.
pub fn value(id: u64) -> Option<Handle> {
    OVERRIDES.with_borrow(|overrides| overrides.get(&id).cloned())
}

/// Replaces the value that overrides a cell's.
pub fn replace(id: u64, value: Handle) {
    OVERRIDES.with_borrow_mut(|overrides| overrides.insert(id, value));
}
