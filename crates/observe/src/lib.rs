//! Tables of a model's layers and work, values of a program, health of training, and metrics.
//!
//! Figures come from the operations that a function records, so they hold for code without modules too.

pub mod metrics;

mod flops;
mod health;
mod module_calls;
mod snoop;
mod summary;
mod work;

pub use flops::{Call, Convention, Flops, flops};
pub use health::{Figure, Health, HealthReport};
pub use module_calls::{ModuleCall, innermost, watch_modules};
pub use snoop::{TracedValue, TracedValues, trace_values};
pub use summary::{Column, Layer, Summary, summary};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The folder of this crate's source.
const SOURCE: &str = {
    let this = file!();
    this.split_at(this.len() - "lib.rs".len()).0
};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
