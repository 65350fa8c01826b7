//! A row of the pointwise table.

use super::prelude::*;
use crate::Pw;

/// A row of the pointwise table applied element by element. Operands have one shape and one dtype
/// (but for the mask of `select`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pointwise(pub Pw);

impl OpDef for Pointwise {
    const NAME: &'static str = "pointwise";
    const ARITY: RangeInclusive<usize> = 1..=3;
    const COST: Cost = Cost::Little;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn arity(&self) -> RangeInclusive<usize> {
        let n = self.0.row().arity;
        n..=n
    }

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let dtype = self.0.infer_dtype(inputs)?;
        for f in &inputs[1..] {
            ensure!(
                f.shape == inputs[0].shape,
                "operands must have one shape, not {} and {f}",
                inputs[0]
            );
        }
        one_output(dtype, inputs[0].shape.clone())
    }
}
