//! 0, 1, 2, ….

use super::prelude::*;

/// The i64 vector 0, 1, …, len − 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Iota {
    /// Number of elements.
    pub len: Dim,
}

impl OpDef for Iota {
    const NAME: &'static str = "iota";
    const ARITY: RangeInclusive<usize> = 0..=0;
    const COST: Cost = Cost::Generated;
    const HAS_SIZES: bool = true;

    fn infer(&self, _: &[&Fact]) -> Result<Facts, OpError> {
        one_output(DType::I64, Shape::from_elem(self.len.clone(), 1))
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        f(&mut self.len);
    }
}
