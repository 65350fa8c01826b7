//! The roles of a program's inputs.

use serde::{Deserialize, Serialize};

/// The role of an input.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Data that differs from run to run.
    Data,
    /// A parameter: results that depend only on parameters are computed once, in *prepare*.
    Parameter,
    /// An i64 pair (seed, offset) of random numbers.
    RandomKey,
}
