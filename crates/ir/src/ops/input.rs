//! A value that the caller gives.

use super::prelude::*;
use crate::Role;

/// A value that the caller gives, by position.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Input {
    /// Position among the program's inputs.
    pub index: u32,
    /// Its dtype and shape.
    pub fact: Fact,
    /// The use of the input.
    pub role: Role,
}

impl OpDef for Input {
    fn name(&self) -> &'static str {
        "input"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        0..=0
    }

    fn infer(&self, _: &[&Fact]) -> Result<Facts, OpError> {
        Ok(Facts::from_buf([self.fact.clone()]))
    }

    fn has_sizes(&self) -> bool {
        true
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.fact.shape.iter_mut().for_each(f);
    }
}
