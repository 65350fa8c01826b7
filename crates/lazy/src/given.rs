//! Values that a thread reads in place of those that cells hold.

use crate::Handle;
use kiln_base::Scoped;
use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    /// The values, by the cells' ids.
    static GIVEN: RefCell<BTreeMap<u64, Handle>> = const { RefCell::new(BTreeMap::new()) };
}

/// Runs `f`, for which the cells of these ids have the given values on this thread, with their gradients. Assignments
/// replace these; the cells keep their own.
pub fn with_values<T>(values: impl IntoIterator<Item = (u64, Handle)>, f: impl FnOnce() -> T) -> T {
    let mut given = GIVEN.with_borrow(Clone::clone);
    given.extend(values);
    let _inside = Scoped::new(&GIVEN, given);
    f()
}

/// The value in place of the one that a cell holds.
pub fn value(id: u64) -> Option<Handle> {
    GIVEN.with_borrow(|given| given.get(&id).cloned())
}

/// Replaces the value that a cell was given.
pub fn replace(id: u64, value: Handle) {
    GIVEN.with_borrow_mut(|given| given.insert(id, value));
}
