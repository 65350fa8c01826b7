//! Another order of the dims.

use super::prelude::*;

/// A view whose dim i is the operand's dim `perm[i]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Permute {
    /// A permutation of the axes.
    pub perm: Axes,
}

impl OpDef for Permute {
    const NAME: &'static str = "permute";
    const ARITY: RangeInclusive<usize> = 1..=1;
    const COST: Cost = Cost::View;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        let mut is_used = vec![false; x.rank()];
        for &p in &self.perm {
            check_axis(p, x.rank())?;
            ensure!(
                !std::mem::replace(&mut is_used[p], true),
                "axis {p} appears twice in {:?}",
                self.perm
            );
        }
        ensure!(
            self.perm.len() == x.rank(),
            "{:?} names {} axes, but {x} has {}",
            self.perm,
            self.perm.len(),
            x.rank()
        );
        one_output(
            x.dtype,
            self.perm.iter().map(|&p| x.shape[p].clone()).collect(),
        )
    }
}
