//! Memory: limits and figures, the holders by category and line, timelines as pages, and the leak finder.
//!
//! [`Device::memory_summary`](crate::Device::memory_summary) is the table of a device; `Compiled::memory_timeline` is
//! what a run will need, and [`record`] what a program did need.

pub use kiln_lazy::memory::{Leak, Timeline, TimelineBlock, find_leaks, record};
pub use kiln_runtime::memory::*;
