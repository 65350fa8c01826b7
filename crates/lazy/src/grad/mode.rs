//! The per-thread mode in which operations are recorded for gradients.

use kiln_base::Scoped;
use std::cell::Cell;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// True if operations on this thread are recorded for gradients.
#[inline]
pub fn is_grad_enabled() -> bool {
    ENABLED.get()
}

/// Runs `f` without recording for gradients: values that it computes from parameters are like data. This differs from
/// `eval`, which is about the behaviour of dropout and batch norm; usually both are wanted.
pub fn no_grad<T>(f: impl FnOnce() -> T) -> T {
    let _guard = set_grad_enabled(false);
    f()
}

/// Runs `f` with recording for gradients, inside [`no_grad`] too.
pub fn enable_grad<T>(f: impl FnOnce() -> T) -> T {
    let _guard = set_grad_enabled(true);
    f()
}

/// Switches recording for gradients on or off until the guard is dropped.
pub fn set_grad_enabled(enabled: bool) -> Scoped<Cell<bool>> {
    Scoped::new(&ENABLED, enabled)
}
