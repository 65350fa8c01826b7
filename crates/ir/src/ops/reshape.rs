//! Another shape over the same row-major elements.

use super::prelude::*;

/// A view with another shape over the same elements in row-major order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reshape {
    /// The new shape.
    pub shape: Shape,
}

impl OpDef for Reshape {
    const NAME: &'static str = "reshape";
    const ARITY: RangeInclusive<usize> = 1..=1;
    const COST: Cost = Cost::View;
    const HAS_SIZES: bool = true;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        let result = Fact {
            dtype: x.dtype,
            shape: self.shape.clone(),
        };
        let (a, b) = (x.numel(), result.numel());
        ensure!(
            a == b,
            "{x} has {a} elements and can't become {result}, which has {b}"
        );
        Ok(Facts::from_buf([result]))
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.shape.iter_mut().for_each(f);
    }
}
