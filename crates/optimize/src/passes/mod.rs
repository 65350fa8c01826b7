//! The list of passes, and one file a pass: its equation, its conditions, its cost.

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

use crate::Pass;

/// The passes, in the order in which they run. The list is walked again until nothing changes.
pub fn passes() -> &'static [Pass] {
    &[
        dead_code::PASS,
        emptiness::PASS,
        loop_values::PASS,
        branch_values::PASS,
        views::PASS,
        identities::PASS,
        slices::PASS,
        padding::PASS,
        broadcasts::PASS,
        gathers::PASS,
        scatters::PASS,
        products::PASS,
        constant_fold::PASS,
        common_subexpressions::PASS,
        folding::PASS,
        merging::PASS,
        stacking::PASS,
        reductions::PASS,
        centring::PASS,
    ]
}
