//! Custom operators of a program.

use super::prelude::*;
use std::sync::Arc;

/// The registered operator of this name; see [`kiln_base::custom`]. Its result's fact is recorded with it, since only
/// the user knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Custom {
    /// The name.
    pub name: Arc<str>,
    /// The result's dtype and shape.
    pub output: Fact,
}

impl OpDef for Custom {
    const NAME: &'static str = "custom";
    const ARITY: RangeInclusive<usize> = 1..=usize::MAX;
    const HAS_SIZES: bool = true;

    fn infer(&self, _: &[&Fact]) -> Result<Facts, OpError> {
        Ok(Facts::from_buf([self.output.clone()]))
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.output.shape.iter_mut().for_each(f);
    }
}
