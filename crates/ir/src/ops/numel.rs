//! The number of elements.

use super::prelude::*;

/// The number of elements of a tensor of this shape, an i64 of rank 0. The divisor of a mean is computed by this op,
/// so that programs for other sizes differ in sizes alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Numel {
    /// The shape.
    pub shape: Shape,
}

impl OpDef for Numel {
    fn name(&self) -> &'static str {
        "numel"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        0..=0
    }

    fn infer(&self, _: &[&Fact]) -> Result<Facts, OpError> {
        one(DType::I64, Shape::new())
    }

    fn cost(&self) -> Cost {
        Cost::Generated
    }

    fn has_sizes(&self) -> bool {
        true
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.shape.iter_mut().for_each(f);
    }
}
