//! Elements chosen by index along one axis.

use super::prelude::*;

/// `out[.., i, ..] = x[.., index[.., i, ..], ..]` along an axis (`torch.gather`). Operands are x and
/// an i64 index of the same rank, no larger than x off the axis; the result has the index's shape.
/// An index outside `0..x.shape[axis]` is a data error.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gather {
    /// The axis.
    pub axis: usize,
}

impl OpDef for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let (x, index) = (inputs[0], inputs[1]);
        ensure!(
            index.dtype == DType::I64,
            "the index must be i64, not {}",
            index.dtype
        );
        ensure!(
            x.rank() == index.rank(),
            "the index {index} must have the rank of {x}"
        );
        check_axis(self.axis, x.rank())?;
        check_off_axis(x, index, self.axis)?;
        one(x.dtype, index.shape.clone())
    }
}

/// Errs unless the index is no larger than x on every axis but one.
pub(super) fn check_off_axis(x: &Fact, index: &Fact, axis: usize) -> Result<(), OpError> {
    for a in (0..x.rank()).filter(|a| *a != axis) {
        let (i, d) = (&index.shape[a], &x.shape[a]);
        let fits = match (i.as_const(), d.as_const()) {
            (Some(i), Some(d)) => i <= d,
            (Some(i), None) => i <= 2,
            _ => i == d,
        };
        ensure!(
            fits,
            "the index {index} is larger than {x} on axis {a}, which is not the indexed axis {axis}"
        );
    }
    Ok(())
}
