//! Conversion to another dtype.

use super::prelude::*;

/// Conversion to another dtype: floats round to nearest even, integers wrap, float to integer
/// truncates and saturates with NaN giving 0, and everything but zero is true.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cast {
    /// The new dtype.
    pub dtype: DType,
    /// True for the last step of an op that computes in more bits. Kernels then keep these bits until they store the
    /// value or compare it, as they do with values computed in f16 and bf16. A cast in the user's program always
    /// rounds.
    #[serde(default)]
    pub is_step: bool,
}

impl Cast {
    /// A conversion in the user's program.
    pub fn to(dtype: DType) -> Cast {
        Cast {
            dtype,
            is_step: false,
        }
    }
}

impl OpDef for Cast {
    const NAME: &'static str = "cast";
    const ARITY: RangeInclusive<usize> = 1..=1;
    const COST: Cost = Cost::Little;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        one_output(self.dtype, inputs[0].shape.clone())
    }
}
