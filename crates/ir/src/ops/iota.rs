//! 0, 1, 2, ….

use super::prelude::*;

/// The i64 vector 0, 1, …, len − 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Iota {
    /// Number of elements.
    pub len: Dim,
}

impl OpDef for Iota {
    fn name(&self) -> &'static str {
        "iota"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        0..=0
    }

    fn infer(&self, _: &[&Fact]) -> Result<Facts, OpError> {
        one(DType::I64, Shape::from_elem(self.len.clone(), 1))
    }

    fn cost(&self) -> Cost {
        Cost::Generated
    }

    fn has_sizes(&self) -> bool {
        true
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        f(&mut self.len);
    }
}
