//! Kernels that run programs.

use crate::contract::{Contract, Contradiction, Described, Draft, Reads, contradiction};
use crate::dims::dims;
use crate::{Input, Plan, depth};
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};

/// A program run for each step 0, 1, …, or from the last step to the first.
///
/// The body is a plan without symbols of its own (sizes use those of the plan around it), parameters and *prepare*. A
/// donor in it only defines the initial contents of an output; its memory is not donated. Its inputs are the rank-0 i64
/// number of the step, the carried values, one slice of each scanned argument, and the inputs that are the same for all
/// steps. Its outputs are the next carried values, then one slice of each stacked argument. The kernel's sites are the
/// body's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loop {
    /// The number of steps.
    pub trips: Dim,
    /// True if the last step comes first.
    pub reverse: bool,
    /// True if a step runs only while the first carried value, a bool, holds; nothing is scanned or stacked.
    pub conditional: bool,
    /// The arguments of the first carried values.
    pub first: Vec<u16>,
    /// The arguments that are read slice by slice.
    pub scanned: Vec<u16>,
    /// The arguments that every step reads as a whole.
    pub alike: Vec<u16>,
    /// The arguments of the carried values after the last step.
    pub last: Vec<u16>,
    /// The arguments that are written slice by slice.
    pub stacked: Vec<u16>,
    /// The program of one step.
    #[serde(deserialize_with = "depth::read")]
    pub body: Box<Plan>,
}

dims!(Loop: trips, body; reverse, conditional, first, scanned, alike, last, stacked);

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
    /// The programs for a true and for a false condition.
    #[serde(deserialize_with = "depth::read")]
    pub branches: Box<[Plan; 2]>,
}

dims!(If: branches; condition, inputs, outputs);

/// Adds the uses of arguments by bodies. `inputs` are the inputs after the first `own`, and `outputs` the outputs, of
/// each body.
fn bodies(
    draft: &mut Draft,
    bodies: &[Plan],
    own: usize,
    inputs: &[u16],
    outputs: &[u16],
) -> Result<(), Contradiction> {
    let alike = |b: &Plan| b.inputs.len() == own + inputs.len() && b.outputs.len() == outputs.len();
    if !bodies.iter().all(alike) {
        return Err(contradiction!(
            "the inputs or outputs of a body are not those of its kernel"
        ));
    }
    for (i, body) in bodies.iter().enumerate() {
        for (arg, input) in inputs.iter().zip(&body.inputs[own..]) {
            draft.reads(*arg, input.dtype, Reads::Throughout)?;
        }
        for (arg, output) in outputs.iter().zip(&body.outputs) {
            match i {
                0 => draft.writes(*arg, output.dtype)?,
                _ => draft.reads(*arg, output.dtype, Reads::Never)?,
            }
        }
    }
    Ok(())
}

fn sites(bodies: &[Plan]) -> u32 {
    bodies.iter().map(|b| b.sites.len() as u32).sum()
}

impl Described for Loop {
    fn name(&self) -> &str {
        "loop"
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let number = self.body.inputs.first().map(|i| i.dtype);
        if number != Some(DType::I64) || self.first.len() != self.last.len() {
            return Err(contradiction!(
                "a loop whose first input is no i64, or whose carried values differ in number"
            ));
        }
        let mut carried = self.body.inputs[1..].iter().take(self.first.len());
        let stacks = !self.scanned.is_empty() || !self.stacked.is_empty();
        let holds = |c: &Input| c.dtype == DType::Bool && c.shape.is_empty();
        if self.conditional && (stacks || !carried.next().is_some_and(holds)) {
            return Err(contradiction!(
                "a conditional loop that does not carry a bool first, or scans or stacks"
            ));
        }
        let mut draft = Draft::new(self.name());
        let inputs = [&self.first[..], &self.scanned, &self.alike].concat();
        let outputs = [&self.last[..], &self.stacked].concat();
        bodies(&mut draft, self.bodies(), 1, &inputs, &outputs)?;
        draft.finish(sites(self.bodies()))
    }

    fn bodies(&self) -> &[Plan] {
        std::slice::from_ref(&self.body)
    }
}

impl Described for If {
    fn name(&self) -> &str {
        "if"
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        draft.reads(self.condition, DType::Bool, Reads::Throughout)?;
        bodies(&mut draft, self.bodies(), 0, &self.inputs, &self.outputs)?;
        draft.finish(sites(self.bodies()))
    }

    fn bodies(&self) -> &[Plan] {
        &self.branches[..]
    }
}
