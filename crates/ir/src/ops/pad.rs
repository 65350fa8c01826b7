//! Padding with a constant.

use super::prelude::*;

/// The operand, padded with one number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pad {
    /// Elements before each axis.
    pub low: Shape,
    /// Elements after each axis.
    pub high: Shape,
    /// The number, already a value of the operand's dtype.
    pub value: Scalar,
}

impl OpDef for Pad {
    const NAME: &'static str = "pad";
    const ARITY: RangeInclusive<usize> = 1..=1;
    const COST: Cost = Cost::Little;
    const HAS_SIZES: bool = true;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        ensure!(
            self.low.len() == x.rank() && self.high.len() == x.rank(),
            "pads {} axes, but {x} has {}",
            self.low.len(),
            x.rank()
        );
        for p in self.low.iter().chain(&self.high) {
            ensure!(
                p.as_const().is_none_or(|n| n >= 0),
                "a border can't be negative ({p}); slice instead"
            );
        }
        let shape = x.shape.iter().zip(&self.low).zip(&self.high);
        one_output(x.dtype, shape.map(|((d, l), h)| &(d + l) + h).collect())
    }

    fn needs(&self, _: &[&Fact]) -> Vec<Dim> {
        self.low.iter().chain(&self.high).cloned().collect()
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.low.iter_mut().chain(&mut self.high).for_each(f);
    }

    fn offsets_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.dims_mut(f);
    }
}
