//! Communication between processes.

use super::prelude::*;
use kiln_base::collective::{Kind, Reducer};
use std::sync::Arc;

/// A collective operation of a process group on the first operand; see [`kiln_base::collective`].
///
/// The second operand is a token, i64\[1\]: the number of collective operations that this process has begun. The
/// second result is the token of the next one. So the order of these operations is a dependence, which every pass, the
/// order of launches and memory planning keep. As no two have the same token, none is merged with another; as the last
/// token is stored, none is dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Collective {
    /// The name of the group.
    pub group: Arc<str>,
    /// The number of its ranks.
    pub ranks: u32,
    /// The operation.
    pub kind: Kind,
}

impl Collective {
    fn check(&self, x: &Fact) -> Result<(), OpError> {
        if let Some(rank) = self.kind.peer() {
            ensure!(
                rank < self.ranks,
                "rank {rank} is not one of the {} ranks of the group",
                self.ranks
            );
        }
        let (dtype, reducer) = (x.dtype, self.kind.reducer());
        if let Some(reducer) = reducer {
            check_computes(dtype)?;
            let defined = match reducer {
                Reducer::Max | Reducer::Min => true,
                Reducer::Mean => dtype.is_float(),
                Reducer::Sum | Reducer::Product => dtype != DType::Bool,
            };
            ensure!(
                defined,
                "{reducer:?} is not defined for {dtype}; cast it to {}",
                if reducer == Reducer::Mean {
                    "f32"
                } else {
                    "i64"
                }
            );
        }
        Ok(())
    }

    /// Returns the size of the n-th part of an axis.
    fn part_size(&self, x: &Fact) -> Result<Dim, OpError> {
        let part = x.shape[0].div_exact(&Dim::from(self.ranks as usize));
        part.map_err(|_| {
            OpError::new(format!(
                "{} parts of equal size can't be made of the first dim of {x}",
                self.ranks
            ))
        })
    }
}

impl OpDef for Collective {
    const NAME: &'static str = "collective";
    const ARITY: RangeInclusive<usize> = 2..=2;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let (x, token) = (inputs[0], inputs[1]);
        self.check(x)?;
        ensure!(
            token.dtype == DType::I64 && token.rank() == 1 && token.shape[0].is(1),
            "the token must be i64[1], not {token}"
        );
        let mut out = x.clone();
        let keeps_shape = matches!(
            self.kind,
            Kind::AllReduce(_)
                | Kind::Reduce(..)
                | Kind::Broadcast(_)
                | Kind::Receive(_)
                | Kind::Barrier
        );
        ensure!(keeps_shape || x.rank() > 0, "{x} has no first dim");
        match self.kind {
            Kind::AllGather | Kind::Gather { here: true, .. } => {
                out.shape[0] = &x.shape[0] * &Dim::from(self.ranks as usize);
            }
            Kind::Gather { here: false, .. } | Kind::Send(_) => out.shape[0] = Dim::ZERO,
            Kind::ReduceScatter(_) | Kind::Scatter { here: true, .. } => {
                out.shape[0] = self.part_size(x)?;
            }
            Kind::AllToAll => {
                self.part_size(x)?;
            }
            _ => {}
        }
        Ok(Facts::from_iter([out, token.clone()]))
    }
}
