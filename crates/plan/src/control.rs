//! Kernels that run programs.

use crate::{Plan, depth};
use kiln_base::Dim;
use serde::{Deserialize, Serialize};

/// A program run for each step 0, 1, …, or from the last step to the first.
///
/// The body is a plan without symbols of its own (sizes use those of the plan around it), parameters,
/// *prepare* and donors. Its inputs are the rank-0 i64 number of the step, the carried values, one
/// slice of each scanned argument, and what all steps get alike. Its outputs are the next carried
/// values, then one slice of each stacked argument. The kernel's sites are the body's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loop {
    /// How many steps.
    pub trips: Dim,
    /// Whether the last step comes first.
    pub reverse: bool,
    /// The arguments of the first carried values.
    pub first: Vec<u16>,
    /// Those that are read slice by slice.
    pub scanned: Vec<u16>,
    /// Those that every step reads.
    pub alike: Vec<u16>,
    /// The arguments of the carried values after the last step.
    pub last: Vec<u16>,
    /// Those that are written slice by slice.
    pub stacked: Vec<u16>,
    /// One step.
    #[serde(deserialize_with = "depth::read")]
    pub body: Box<Plan>,
}

/// One of two programs, which are plans as in [`Loop`]. The kernel's sites are those of the first,
/// then those of the second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct If {
    /// The argument of one bool.
    pub condition: u16,
    /// The arguments of the inputs of both.
    pub inputs: Vec<u16>,
    /// The arguments of the outputs of both.
    pub outputs: Vec<u16>,
    /// Where the condition is true, and where it is not.
    #[serde(deserialize_with = "depth::read")]
    pub branches: Box<[Plan; 2]>,
}
