//! Collective operations of processes.

use crate::contract::{Contract, Contradiction, Described, Draft, Reads};
use crate::dims::dims;
use crate::{Array, Footprint};
use kiln_base::collective::Kind;
use kiln_base::{DType, Dim, numel};
use serde::{Deserialize, Serialize};

/// A collective operation; see [`kiln_base::collective`]. Its failure is reported at the kernel's one site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collective {
    /// The name of the group.
    pub group: String,
    /// The number of its ranks.
    pub ranks: u32,
    /// The operation.
    pub kind: Kind,
    /// The operand.
    pub x: Array,
    /// The argument that holds the number of operations before it, an i64.
    pub token: u16,
    /// The result.
    pub out: Array,
    /// The argument that gets the number of operations with it.
    pub next: u16,
}

dims!(Collective: x, out; group, ranks, kind, token, next);

impl Collective {
    /// True if the result may take the operand's memory.
    pub fn is_in_place(&self) -> bool {
        matches!(
            self.kind,
            Kind::AllReduce(_) | Kind::Reduce(..) | Kind::Broadcast(_)
        )
    }
}

impl Described for Collective {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        let reads = match self.is_in_place() {
            true => Reads::First,
            false => Reads::Throughout,
        };
        draft.reads(self.x.arg, self.x.dtype, reads)?;
        draft.reads(self.token, DType::I64, Reads::Throughout)?;
        draft.writes(self.out.arg, self.out.dtype)?;
        draft.writes(self.next, DType::I64)?;
        draft.finish(1)
    }

    fn operations(&self) -> Dim {
        numel(&self.x.shape)
    }

    fn footprints(&self) -> Vec<Footprint> {
        let shape = [Dim::ONE];
        vec![
            Footprint::whole(self.x.arg, &self.x.shape),
            Footprint::whole(self.token, &shape),
            Footprint::whole(self.out.arg, &self.out.shape),
            Footprint::whole(self.next, &shape),
        ]
    }
}
