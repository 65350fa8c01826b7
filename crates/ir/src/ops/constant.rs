//! Data of the program.

use super::prelude::*;
use std::sync::Arc;

/// Data of the program: the result of constant folding.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Constant {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<usize>,
    /// Little-endian elements, row-major.
    pub bytes: Arc<[u8]>,
}

impl OpDef for Constant {
    const NAME: &'static str = "constant";
    const ARITY: RangeInclusive<usize> = 0..=0;
    const COST: Cost = Cost::Generated;

    fn infer(&self, _: &[&Fact]) -> Result<Facts, OpError> {
        let expected = self
            .shape
            .iter()
            .try_fold(self.dtype.size(), |a, d| a.checked_mul(*d));
        ensure!(
            expected == Some(self.bytes.len()),
            "{} bytes do not make a constant {}{:?}",
            self.bytes.len(),
            self.dtype,
            self.shape
        );
        one_output(
            self.dtype,
            self.shape.iter().map(|d| Dim::from(*d)).collect(),
        )
    }
}
