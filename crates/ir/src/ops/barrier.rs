//! Order without data.

use super::prelude::*;

/// Its operands, once all of them are computed. Users of an output are computed after every operand, and are never
/// merged with users of the operand itself, so a recomputation after a barrier with a cotangent is not merged away.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Barrier {
    /// True if gradients end here (PyTorch's `detach`, inside the body of an op).
    pub detach: bool,
}

impl OpDef for Barrier {
    const NAME: &'static str = "barrier";
    const ARITY: RangeInclusive<usize> = 1..=usize::MAX;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        Ok(inputs.iter().map(|f| (*f).clone()).collect())
    }
}
