//! Child processes that train shared parameters.
//!
//! Children are forks of this program's only thread, which the standard harness would not be.

#[cfg(unix)]
mod cases;

fn main() {
    #[cfg(unix)]
    cases::run();
}
