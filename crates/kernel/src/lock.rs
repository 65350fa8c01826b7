//! Locks, whose data is whole whoever panicked while holding one.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub fn lock<T: ?Sized>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
