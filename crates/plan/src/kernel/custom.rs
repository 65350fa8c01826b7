//! Calls of registered operators.

use crate::contract::{Contract, Contradiction, Described, Draft, Reads};
use crate::dims::dims;
use crate::{Array, Footprint};
use kiln_base::{Dim, numel};
use serde::{Deserialize, Serialize};

/// A call of a registered operator; see [`kiln_base::custom`]. Its failure is reported at the kernel's one
/// site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Custom {
    /// The name that it is registered under.
    pub name: String,
    /// The name of the kernel, if it is not the operator's own.
    pub kernel: Option<String>,
    /// The operands, in order.
    pub operands: Vec<Array>,
    /// The result.
    pub out: Array,
}

dims!(Custom: operands, out; name, kernel);

impl Described for Custom {
    fn name(&self) -> &str {
        &self.name
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        for x in &self.operands {
            draft.reads(x.arg, x.dtype, Reads::Throughout)?;
        }
        draft.writes(self.out.arg, self.out.dtype)?;
        draft.finish(1)
    }

    fn results(&self) -> Option<Vec<&Dim>> {
        Some(self.out.shape.iter().collect())
    }

    fn operations(&self) -> Dim {
        let first = self.operands.first();
        first.map_or(Dim::ZERO, |x| numel(&x.shape))
    }

    fn footprints(&self) -> Vec<Footprint> {
        let arrays = self.operands.iter().chain([&self.out]);
        arrays.map(|a| Footprint::whole(a.arg, &a.shape)).collect()
    }
}
