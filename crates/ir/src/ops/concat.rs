//! Concatenation along an axis.

use super::prelude::*;

/// The operands concatenated along an axis; their other dims agree.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Concat {
    /// The axis.
    pub axis: usize,
}

impl OpDef for Concat {
    const NAME: &'static str = "concat";
    const ARITY: RangeInclusive<usize> = 1..=usize::MAX;
    const COST: Cost = Cost::Little;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let first = inputs[0];
        ensure!(
            first.rank() > 0,
            "rank-0 tensors can't be concatenated; stack them"
        );
        check_axis(self.axis, first.rank())?;
        let mut total = Dim::ZERO;
        for f in inputs {
            ensure!(
                f.dtype == first.dtype,
                "operands have dtypes {} and {}",
                first.dtype,
                f.dtype
            );
            let fits = f.rank() == first.rank()
                && (0..f.rank()).all(|a| a == self.axis || f.shape[a] == first.shape[a]);
            ensure!(fits, "{first} and {f} differ outside axis {}", self.axis);
            total = &total + &f.shape[self.axis];
        }
        let mut shape = first.shape.clone();
        shape[self.axis] = total;
        one_output(first.dtype, shape)
    }
}
