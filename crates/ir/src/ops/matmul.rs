//! Batched matrix products.

use super::prelude::*;

/// `[batch.., m, k] · [batch.., k, n] → [batch.., m, n]` with equal batch dims. Sums of floats narrower than f32 are
/// accumulated in f32 and rounded once.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MatMul {}

impl OpDef for MatMul {
    const NAME: &'static str = "matmul";
    const ARITY: RangeInclusive<usize> = 2..=2;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let (a, b) = (inputs[0], inputs[1]);
        check_computes(a.dtype)?;
        ensure!(
            a.dtype == b.dtype,
            "operands have dtypes {} and {}",
            a.dtype,
            b.dtype
        );
        ensure!(a.dtype != DType::Bool, "bool matrices can't be multiplied");
        let r = a.rank();
        ensure!(
            r >= 2 && r == b.rank() && a.shape[..r - 2] == b.shape[..r - 2],
            "{a} and {b} must have the same rank (at least 2) and batch dims"
        );
        ensure!(
            a.shape[r - 1] == b.shape[r - 2],
            "{a} has {} columns but {b} has {} rows",
            a.shape[r - 1],
            b.shape[r - 2]
        );
        let mut shape = a.shape.clone();
        shape[r - 1] = b.shape[r - 1].clone();
        one_output(a.dtype, shape)
    }
}
