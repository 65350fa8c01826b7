//! Random numbers.

use super::prelude::*;
use kiln_base::prim::RandomKind;

/// Counter-based random numbers. The operand is an i64 pair (seed, offset); the element at row-major index i is
/// computed from the words at position offset + i, see [`kiln_base::prim::random_words`]. Bits and uniform numbers are
/// the same on every engine; normal numbers follow from the same words, and from its logarithm and cosine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Random {
    /// The kind of numbers that the words become.
    pub kind: RandomKind,
    /// i64 for bits, a float for the others. Floats narrower than f64 round an f32.
    pub dtype: DType,
    /// Shape.
    pub shape: Shape,
}

impl OpDef for Random {
    const NAME: &'static str = "random";
    const ARITY: RangeInclusive<usize> = 1..=1;
    const COST: Cost = Cost::Generated;
    const HAS_SIZES: bool = true;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let key = inputs[0];
        ensure!(
            key.dtype == DType::I64 && key.rank() == 1 && key.shape[0].is(2),
            "the key must be i64[2] (seed, offset), not {key}"
        );
        let is_legal = match self.kind {
            RandomKind::Bits => self.dtype == DType::I64,
            _ => self.dtype.is_float() && self.dtype.computes(),
        };
        ensure!(
            is_legal,
            "{} numbers can't have dtype {}",
            self.kind.name(),
            self.dtype
        );
        one_output(self.dtype, self.shape.clone())
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.shape.iter_mut().for_each(f);
    }
}
