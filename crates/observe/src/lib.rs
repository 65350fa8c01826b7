//! Tables of a model's layers and work.
//!
//! Figures come from the operations that a function records, so they hold for code without modules too.

mod flops;
mod module_calls;
mod summary;
mod work;

pub use flops::{Call, Convention, Flops, flops};
pub use module_calls::{ModuleCall, innermost, watch_modules};
pub use summary::{Column, Layer, Summary, summary};
