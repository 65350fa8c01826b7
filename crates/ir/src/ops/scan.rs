//! Running sums, products and extremes.

use super::prelude::*;
use kiln_base::prim::ScanKind;

/// `out[i] = x[0] ∘ … ∘ x[i]` along an axis, or from the end with `reverse`. The result has the
/// operand's dtype and shape; f16 and bf16 accumulate in f32, integers wrap.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scan {
    /// The function that combines elements. `LogSumExp` needs floats.
    pub kind: ScanKind,
    /// The axis.
    pub axis: usize,
    /// True if the last element comes first.
    pub reverse: bool,
}

impl OpDef for Scan {
    const NAME: &'static str = "scan";
    const ARITY: RangeInclusive<usize> = 1..=1;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        check_computes(x.dtype)?;
        check_axis(self.axis, x.rank())?;
        ensure!(
            x.dtype != DType::Bool,
            "a scan needs numbers, not {}; cast it first",
            x.dtype
        );
        ensure!(
            self.kind != ScanKind::LogSumExp || x.dtype.is_float(),
            "needs a float tensor, not {}",
            x.dtype
        );
        one_output(x.dtype, x.shape.clone())
    }
}
