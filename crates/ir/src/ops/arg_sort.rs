//! The order of elements.

use super::prelude::*;

/// The i64 indices that sort an axis, stable: equal elements keep their order. NaN counts as larger
/// than everything, equal to NaN; −0 and 0 are equal. With `first`, only the indices of that many
/// leading elements of the sorted axis. Sorted values are a gather by these indices.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArgSort {
    /// The axis.
    pub axis: usize,
    /// Whether the largest element comes first.
    pub descending: bool,
    /// How many indices of each lane to give; all where `None`.
    pub first: Option<usize>,
}

impl OpDef for ArgSort {
    fn name(&self) -> &'static str {
        "arg_sort"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        check_computes(x.dtype)?;
        check_axis(self.axis, x.rank())?;
        let mut shape = x.shape.clone();
        if let Some(first) = self.first {
            let extent = &shape[self.axis];
            let fits = extent.as_const().map_or(first <= 2, |n| first as i64 <= n);
            ensure!(
                fits,
                "the first {first} of axis {} are more than {x} has",
                self.axis
            );
            shape[self.axis] = Dim::from(first);
        }
        one(DType::I64, shape)
    }
}
