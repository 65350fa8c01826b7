//! One number everywhere.

use super::prelude::*;

/// A uniform tensor. Plans may promote its number to an input.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Full {
    /// The number, already a value of `dtype`.
    pub value: Scalar,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Shape,
}

impl OpDef for Full {
    const NAME: &'static str = "full";
    const ARITY: RangeInclusive<usize> = 0..=0;
    const COST: Cost = Cost::Generated;
    const HAS_SIZES: bool = true;

    fn infer(&self, _: &[&Fact]) -> Result<Facts, OpError> {
        one_output(self.dtype, self.shape.clone())
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.shape.iter_mut().for_each(f);
    }
}
