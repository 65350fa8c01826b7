//! The order of elements.

use super::prelude::*;

/// The i64 indices that sort an axis, stable: equal elements keep their order. NaN counts as larger than everything,
/// equal to NaN; −0 and 0 are equal. With `first`, only that number of leading indices of the sorted axis. Sorted
/// values are a gather by these indices.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArgSort {
    /// The axis.
    pub axis: usize,
    /// True if the largest element comes first.
    pub descending: bool,
    /// The number of indices for each lane; `None` for all.
    pub first: Option<Dim>,
}

impl OpDef for ArgSort {
    const NAME: &'static str = "arg_sort";
    const ARITY: RangeInclusive<usize> = 1..=1;
    const HAS_SIZES: bool = true;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        check_computes(x.dtype)?;
        check_axis(self.axis, x.rank())?;
        let mut shape = x.shape.clone();
        if let Some(first) = &self.first {
            let is_legal = match (first.as_const(), shape[self.axis].as_const()) {
                (Some(first), Some(n)) => (0..=n).contains(&first),
                // A program that was recorded with known sizes is right for them.
                _ => true,
            };
            ensure!(
                is_legal,
                "the first {first} of axis {} are more than {x} has",
                self.axis
            );
            shape[self.axis] = first.clone();
        }
        one_output(DType::I64, shape)
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.first.iter_mut().for_each(f);
    }
}
