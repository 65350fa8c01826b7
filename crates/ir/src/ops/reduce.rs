//! Sums, products and extremes over axes.

use super::prelude::*;
use kiln_base::prim::Reduction;

/// Combines the elements along some axes, which disappear. The result has the operand's dtype: to sum in a wider
/// type, cast first. Sum and product of floats narrower than f32 are accumulated in f32 and rounded once. The maximum
/// and minimum of no elements are not defined.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reduce {
    /// The function that combines two elements.
    pub kind: Reduction,
    /// The axes, ascending.
    pub axes: Axes,
}

impl OpDef for Reduce {
    const NAME: &'static str = "reduce";
    const ARITY: RangeInclusive<usize> = 1..=1;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        check_computes(x.dtype)?;
        let is_extreme = matches!(self.kind, Reduction::Max | Reduction::Min);
        ensure!(
            x.dtype != DType::Bool || is_extreme,
            "{} is not defined on bool; cast it to i64 first",
            self.kind.name()
        );
        for (i, &a) in self.axes.iter().enumerate() {
            check_axis(a, x.rank())?;
            ensure!(
                i == 0 || self.axes[i - 1] < a,
                "axes must ascend, not {:?}",
                self.axes
            );
            ensure!(
                !is_extreme || !x.shape[a].is(0),
                "{} of {x} over axis {a} has no elements",
                self.kind.name()
            );
        }
        let kept_axes = (0..x.rank()).filter(|a| !self.axes.contains(a));
        one_output(x.dtype, kept_axes.map(|a| x.shape[a].clone()).collect())
    }
}
