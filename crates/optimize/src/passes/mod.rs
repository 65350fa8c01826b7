//! One file a pass: its equation, what must hold, what it costs.

pub mod centring;
pub mod common_subexpressions;
pub mod constant_fold;
pub mod conv_batch_norm;
pub mod dead_code;
pub mod decompose;
pub mod loop_values;
pub mod products;
pub mod views;
