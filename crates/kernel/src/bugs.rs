//! Seeded bugs: places in printers and schedules that are wrong where a test says so. Each is found by tests of programs.

#[cfg(feature = "testing")]
thread_local! {
    /// The bug of this thread.
    static BUG: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Makes what this thread does have a bug, or none.
#[cfg(feature = "testing")]
pub fn seed(bug: Option<&'static str>) {
    BUG.set(bug);
}

/// The bug that this thread has.
#[cfg(feature = "testing")]
pub fn seeded() -> Option<&'static str> {
    BUG.get()
}

/// What is right, or in a test that asks for this bug what is wrong.
#[inline(always)]
pub fn bug<T>(name: &'static str, right: T, wrong: impl FnOnce(T) -> T) -> T {
    #[cfg(feature = "testing")]
    if seeded() == Some(name) {
        return wrong(right);
    }
    let _ = (name, wrong);
    right
}
