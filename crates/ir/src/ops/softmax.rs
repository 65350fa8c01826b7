//! Softmax and its logarithm.

use super::prelude::*;
use crate::Pw;
use kiln_base::prim::Reduction;

/// `exp(x) / Σ exp(x)` along an axis, or its logarithm. A composite, kept whole for pattern matching.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Softmax {
    /// The axis that is normalised.
    pub axis: usize,
    /// True for the logarithm.
    pub log: bool,
}

impl OpDef for Softmax {
    const NAME: &'static str = "softmax";
    const ARITY: RangeInclusive<usize> = 1..=1;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        ensure!(x.dtype.is_float(), "needs a float tensor, not {}", x.dtype);
        check_computes(x.dtype)?;
        check_axis(self.axis, x.rank())?;
        one_output(x.dtype, x.shape.clone())
    }
}

impl Softmax {
    // exp(x - max) · (1 / sum), or (x - max) - log(sum). The maximum keeps exp from overflowing. The reciprocal needs
    // one division per row in place of one per element; as the sum is at least 1, it costs half a unit in the last
    // place.
    pub(crate) fn decompose<B: Builder>(
        &self,
        b: &mut B,
        x: &B::Value,
    ) -> Result<B::Value, OpError> {
        if b.fact(x).shape[self.axis].is(0) {
            return Ok(x.clone());
        }
        let dtype = b.fact(x).dtype;
        let x = b.cast(x, dtype.compute().dtype())?;
        let max = b.reduce_keepdim(Reduction::Max, &x, &[self.axis])?;
        let shifted = b.pointwise(Pw::Sub, &[x, max])?;
        let exp = b.pointwise(Pw::Exp, std::slice::from_ref(&shifted))?;
        let sum = b.reduce_keepdim(Reduction::Sum, &exp, &[self.axis])?;
        let y = if self.log {
            let log = b.pointwise(Pw::Log, &[sum])?;
            b.pointwise(Pw::Sub, &[shifted, log])?
        } else {
            let reciprocal = b.pointwise(Pw::Reciprocal, &[sum])?;
            b.pointwise(Pw::Mul, &[exp, reciprocal])?
        };
        b.cast(&y, dtype)
    }
}
