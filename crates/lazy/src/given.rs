//! Values that a thread reads instead of those that cells hold.

use crate::Handle;
use kiln_base::Scoped;
use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    /// The values, by the cells' ids.
    static GIVEN: RefCell<BTreeMap<u64, Handle>> = const { RefCell::new(BTreeMap::new()) };
}

/// Runs `f`, for which the cells with these ids have the given values on this thread, with their gradients. Assignments
/// replace the given values; the cells keep their own.
pub fn with_values<T>(values: impl IntoIterator<Item = (u64, Handle)>, f: impl FnOnce() -> T) -> T {
    let mut given = GIVEN.with_borrow(Clone::clone);
    given.extend(values);
    let _inside = Scoped::new(&GIVEN, given);
    f()
}

/// Returns the given value of a cell.
pub fn value(id: u64) -> Option<Handle> {
    GIVEN.with_borrow(|given| given.get(&id).cloned())
}

/// Replaces the value that a cell was given.
pub fn replace(id: u64, value: Handle) {
    GIVEN.with_borrow_mut(|given| given.insert(id, value));
}
