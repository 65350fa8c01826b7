//! Stretching dims of size 1.

use super::prelude::*;

/// A view that stretches dims of size 1 and adds dims in front.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Broadcast {
    /// The new shape.
    pub shape: Shape,
}

impl OpDef for Broadcast {
    const NAME: &'static str = "broadcast";
    const ARITY: RangeInclusive<usize> = 1..=1;
    const COST: Cost = Cost::View;
    const HAS_SIZES: bool = true;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        let result = Fact {
            dtype: x.dtype,
            shape: self.shape.clone(),
        };
        let is_legal = x.rank() <= result.rank()
            && x.shape
                .iter()
                .rev()
                .zip(result.shape.iter().rev())
                .all(|(a, b)| a == b || a.is(1));
        ensure!(is_legal, "{x} does not broadcast to {result}");
        Ok(Facts::from_buf([result]))
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.shape.iter_mut().for_each(f);
    }
}
