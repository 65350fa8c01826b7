//! Temporary values of a thread.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::thread::LocalKey;

/// The contents of a `thread_local!` of a [`Scoped`] value.
pub trait Slot: 'static {
    /// The value.
    type Value;

    /// Replaces the value, and returns the previous one.
    fn replace(&self, value: Self::Value) -> Self::Value;
}

impl<T: 'static> Slot for Cell<T> {
    type Value = T;

    #[inline]
    fn replace(&self, value: T) -> T {
        self.replace(value)
    }
}

impl<T: 'static> Slot for RefCell<T> {
    type Value = T;

    #[inline]
    fn replace(&self, value: T) -> T {
        self.replace(value)
    }
}

/// A guard of a value of this thread. When it is dropped, also by a panic, the thread gets its previous value back.
///
/// ```
/// use kiln_base::Scoped;
/// use std::cell::Cell;
///
/// thread_local! {
///     static DEPTH: Cell<usize> = const { Cell::new(0) };
/// }
/// {
///     let _inside = Scoped::new(&DEPTH, 1);
///     assert_eq!(DEPTH.get(), 1);
/// }
/// assert_eq!(DEPTH.get(), 0);
/// ```
#[must_use = "the value before is restored when this is dropped"]
pub struct Scoped<S: Slot> {
    slot: &'static LocalKey<S>,
    previous: Option<S::Value>,
    /// Ties it to its thread.
    here: PhantomData<*const ()>,
}

impl<S: Slot> Scoped<S> {
    /// Sets the value of this thread until the returned guard is dropped.
    #[inline]
    pub fn new(slot: &'static LocalKey<S>, value: S::Value) -> Scoped<S> {
        Scoped {
            slot,
            previous: Some(slot.with(|s| s.replace(value))),
            here: PhantomData,
        }
    }
}

impl<S: Slot> Drop for Scoped<S> {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.previous.take() {
            drop(self.slot.with(|s| s.replace(before)));
        }
    }
}
