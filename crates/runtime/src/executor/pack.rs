//! Weights that are packed once.

use super::binder::Binder;
use super::loc::Loc;
use super::step::BoundStep;
use super::work::{Call, Packs, Work};
use crate::error::Result;
use crate::tile::Failure;
use kiln_plan::Role;
use smallvec::smallvec;
use std::sync::Arc;

/// The step of *prepare* that packs weights for another.
struct Pack(Arc<dyn Work>);

impl Work for Pack {
    unsafe fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        // SAFETY: the arguments are the weights and what was allocated for them as packed.
        unsafe { self.0.pack(call) };
        Ok(None)
    }
}

impl Binder<'_> {
    /// Lets a convolution or a product read weights that depend on parameters alone, and that the run does not
    /// write over, from a packed copy; gives the step of *prepare* that makes it.
    pub fn pack(
        &self,
        step: &mut BoundStep,
        prepare: &[BoundStep],
        prepared: &mut Vec<usize>,
    ) -> Option<BoundStep> {
        let Packs { weights, bytes } = step.work.packs()?;
        let weights = step.args[weights];
        let known = match weights {
            Loc::Input(i) => {
                let parameter = self.plan.inputs[i].role == Role::Parameter;
                parameter && !self.facts.donors.contains(&Some(i))
            }
            Loc::Constant(_) | Loc::Prepared(_) => true,
            Loc::Slot(_) | Loc::Arena(_) => false,
        };
        if !known {
            return None;
        }
        let to = Loc::Prepared(prepared.len());
        prepared.push(bytes);
        step.args.push(to);
        step.packed = true;
        let makes = |s: &BoundStep| {
            let mut args = s.args.iter().zip(&s.writes);
            args.any(|(arg, writes)| *writes && *arg == weights)
        };
        let makers = prepare.iter().enumerate().filter(|(_, s)| makes(s));
        Some(BoundStep {
            work: Arc::new(Pack(step.work.clone())),
            args: smallvec![weights, to],
            packed: false,
            writes: smallvec![false, true],
            guard: None,
            scratch: 0,
            step: self.plan.prepare.len(),
            sites: smallvec![],
            parallel: true,
            joined: false,
            after: makers.map(|(i, _)| i as u32).collect(),
        })
    }
}
