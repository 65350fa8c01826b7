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
    fn name(&self) -> &'static str {
        "custom"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=usize::MAX
    }

    fn infer(&self, _: &[&Fact]) -> Result<Facts, OpError> {
        let negative = |d: &Dim| d.as_const().is_some_and(|d| d < 0);
        ensure!(
            !self.output.shape.iter().any(negative),
            "{} is not a shape",
            self.output
        );
        Ok(Facts::from_buf([self.output.clone()]))
    }

    fn has_sizes(&self) -> bool {
        true
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.output.shape.iter_mut().for_each(f);
    }
}
