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
    const NAME: &'static str = "gather";
    const ARITY: RangeInclusive<usize> = 2..=2;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let (x, index) = (inputs[0], inputs[1]);
        check_index(x, index, self.axis)?;
        one_output(x.dtype, index.shape.clone())
    }
}

/// Errs unless `index` can index x along an axis: it is i64, of the same rank, and no larger on the other axes.
pub(super) fn check_index(x: &Fact, index: &Fact, axis: usize) -> Result<(), OpError> {
    ensure!(
        index.dtype == DType::I64,
        "the index must be i64, not {}",
        index.dtype
    );
    ensure!(
        x.rank() == index.rank(),
        "the index {index} must have the rank of {x}"
    );
    check_axis(axis, x.rank())?;
    for a in (0..x.rank()).filter(|a| *a != axis) {
        let (i, d) = (&index.shape[a], &x.shape[a]);
        let is_within = match (i.as_const(), d.as_const()) {
            (Some(i), Some(d)) => i <= d,
            (Some(i), None) => i <= 2,
            _ => i == d,
        };
        ensure!(
            is_within,
            "the index {index} is larger than {x} on axis {a}, which is not the indexed axis {axis}"
        );
    }
    Ok(())
}
