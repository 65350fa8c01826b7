//! The number of elements.

use super::prelude::*;

/// The number of elements of a tensor of this shape, an i64 of rank 0. The divisor of a mean is computed by this op:
/// programs for other sizes differ in sizes alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Numel {
    /// The shape.
    pub shape: Shape,
}

impl OpDef for Numel {
    const NAME: &'static str = "numel";
    const ARITY: RangeInclusive<usize> = 0..=0;
    const COST: Cost = Cost::Generated;
    const HAS_SIZES: bool = true;

    fn infer(&self, _: &[&Fact]) -> Result<Facts, OpError> {
        one_output(DType::I64, Shape::new())
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.shape.iter_mut().for_each(f);
    }
}
