//! Seeded bugs: faults in emitters and schedules that tests enable. Tests of programs find each of
//! them.

#[cfg(feature = "testing")]
thread_local! {
    /// The bug of this thread.
    static BUG: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Seeds a bug for this thread, or none.
#[cfg(feature = "testing")]
pub fn seed(bug: Option<&'static str>) {
    BUG.set(bug);
}

/// Returns the bug of this thread.
#[cfg(feature = "testing")]
pub fn seeded() -> Option<&'static str> {
    BUG.get()
}

/// Returns the right value, or in a test that seeds this bug the wrong one.
#[inline(always)]
pub fn bug<T>(name: &'static str, right: T, wrong: impl FnOnce(T) -> T) -> T {
    #[cfg(feature = "testing")]
    if seeded() == Some(name) {
        return wrong(right);
    }
    let _ = (name, wrong);
    right
}
