//! The index of the largest or smallest element.

use super::prelude::*;
use kiln_base::prim::Reduction;

/// The i64 index of the first largest or smallest element along an axis, which disappears. NaN counts
/// as larger and as smaller than everything.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArgReduce {
    /// `Max` or `Min`.
    pub kind: Reduction,
    /// The axis.
    pub axis: usize,
}

impl OpDef for ArgReduce {
    const NAME: &'static str = "arg_reduce";
    const ARITY: RangeInclusive<usize> = 1..=1;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        check_computes(x.dtype)?;
        ensure!(
            matches!(self.kind, Reduction::Max | Reduction::Min),
            "arg_reduce knows max and min, not {}",
            self.kind.name()
        );
        check_axis(self.axis, x.rank())?;
        ensure!(
            !x.shape[self.axis].is(0),
            "arg{} of {x} over axis {} has no elements",
            self.kind.name(),
            self.axis
        );
        let mut shape = x.shape.clone();
        shape.remove(self.axis);
        one_output(DType::I64, shape)
    }
}
