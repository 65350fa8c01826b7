//! Normalisation with given statistics.

use super::prelude::*;
use crate::Pw;

/// `(x − mean) / √(variance + eps) · weight + bias` with one statistic per channel. Operands are x `[n, c, ..]`, mean
/// `[c]`, variance `[c]` and, with `affine`, weight `[c]` and bias `[c]`. Batch statistics are reductions of x in
/// front of it. A composite, kept whole for pattern matching.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BatchNorm {
    /// Added to the variance; a [`Scalar::Float`].
    pub eps: Scalar,
    /// True if weight and bias follow.
    pub affine: bool,
}

impl OpDef for BatchNorm {
    const NAME: &'static str = "batch_norm";
    const ARITY: RangeInclusive<usize> = 3..=5;
    const COST: Cost = Cost::Little;

    fn arity(&self) -> RangeInclusive<usize> {
        if self.affine { 5..=5 } else { 3..=3 }
    }

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        ensure!(x.dtype.is_float(), "needs a float tensor, not {}", x.dtype);
        check_computes(x.dtype)?;
        ensure!(x.rank() >= 2, "{x} has no channel axis (axis 1)");
        for (f, name) in inputs[1..]
            .iter()
            .zip(["mean", "variance", "weight", "bias"])
        {
            ensure!(
                f.dtype == x.dtype && f.rank() == 1 && f.shape[0] == x.shape[1],
                "the {name} must be {}[{}], not {f}",
                x.dtype,
                x.shape[1]
            );
        }
        one_output(x.dtype, x.shape.clone())
    }
}

impl BatchNorm {
    pub(crate) fn decompose<B: Builder>(
        &self,
        b: &mut B,
        inputs: &[B::Value],
    ) -> Result<B::Value, OpError> {
        let fact = b.fact(&inputs[0]);
        let wide = fact.dtype.compute().dtype();
        let mut column = Shape::from_elem(Dim::ONE, fact.rank() - 1);
        column[0] = fact.shape[1].clone();
        let mut operands = Vec::with_capacity(5);
        for (i, v) in inputs.iter().enumerate() {
            let v = b.cast(v, wide)?;
            operands.push(if i == 0 { v } else { b.reshape(&v, &column)? });
        }
        let eps = b.scalar_like(self.eps, &operands[2])?;
        let spread = b.pointwise(Pw::Add, &[operands[2].clone(), eps])?;
        let mut scale = b.pointwise(Pw::Rsqrt, &[spread])?;
        if self.affine {
            scale = b.pointwise(Pw::Mul, &[scale, operands[3].clone()])?;
        }
        let centred = b.pointwise(Pw::Sub, &[operands[0].clone(), operands[1].clone()])?;
        let mut y = b.pointwise(Pw::Mul, &[centred, scale])?;
        if self.affine {
            y = b.pointwise(Pw::Add, &[y, operands[4].clone()])?;
        }
        b.narrowed(&y, fact.dtype)
    }
}
