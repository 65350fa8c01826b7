//! The passes against the reference evaluation.

mod bugs;
mod centring;
mod compare;
mod driver;
mod generate;
mod norms;
mod random;
mod rng;
mod snapshots;
