//! One file a pass: its equation, what must hold, what it costs.

pub mod branch_values;
pub mod broadcasts;
pub mod centring;
pub mod common_subexpressions;
pub mod constant_fold;
pub mod dead_code;
pub mod decompose;
pub mod emptiness;
pub mod folding;
pub mod gathers;
pub mod identities;
pub mod loop_values;
pub mod merging;
pub mod padding;
pub mod products;
pub mod reductions;
pub mod scatters;
pub mod slices;
pub mod stacking;
pub mod views;
