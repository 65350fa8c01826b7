//! What an input of a program is.

use serde::{Deserialize, Serialize};

/// What an input is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Data that differs from run to run.
    Data,
    /// A parameter: what depends only on these is computed once, in *prepare*.
    Parameter,
    /// An i64 pair (seed, offset) of random numbers.
    RandomKey,
}
