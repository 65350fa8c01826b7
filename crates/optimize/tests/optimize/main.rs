//! The passes against the reference evaluation.

mod branches;
mod bugs;
mod centring;
mod compare;
mod driver;
mod folding;
mod generate;
mod merging;
mod norms;
mod planted;
mod random;
mod rng;
mod snapshots;
mod stacking;
mod wrong_rules;
