//! Inputs of a graph.

use super::prelude::*;
use crate::Role;

/// An input of the graph, identified by its position.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Input {
    /// The position among the graph's inputs.
    pub index: u32,
    /// The dtype and shape.
    pub fact: Fact,
    /// The kind of value that the caller passes: data, a parameter or a random key.
    pub role: Role,
}

impl OpDef for Input {
    const NAME: &'static str = "input";
    const ARITY: RangeInclusive<usize> = 0..=0;
    const HAS_SIZES: bool = true;

    fn infer(&self, _: &[&Fact]) -> Result<Facts, OpError> {
        Ok(Facts::from_buf([self.fact.clone()]))
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.fact.shape.iter_mut().for_each(f);
    }
}
