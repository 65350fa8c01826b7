//! Weights that are packed once.

use super::binder::{Binder, Owner};
use super::loc::Loc;
use super::step::{After, BoundStep};
use hashbrown::HashMap;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failure;
use kiln_kernel::work::{Call, LinkedKernel, Packs};
use kiln_plan::Role;
use smallvec::smallvec;
use std::sync::Arc;

/// The step of *prepare* that packs weights for another.
struct Pack(Arc<dyn LinkedKernel>);

impl LinkedKernel for Pack {
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        self.0.pack(call);
        Ok(None)
    }
}

/// The steps of *prepare*, with each packing step right after the steps that compute its weights. The weights are
/// then packed while they are in the caches, and need no memory afterwards.
pub(super) fn interleave_packs(steps: Vec<BoundStep>, packs: Vec<BoundStep>) -> Vec<BoundStep> {
    let slot = |pack: &BoundStep| {
        let ready = pack.after.iter().max().map_or(0, |last| *last as usize + 1);
        let starts = |i: &usize| steps.get(*i).is_none_or(|s| !s.concurrent);
        (ready..=steps.len()).find(starts).unwrap_or(steps.len())
    };
    let packs = packs.into_iter().map(|pack| ((slot(&pack), 0), pack));
    let mut list: Vec<((usize, u8), BoundStep)> = packs.collect();
    let steps = steps.into_iter().enumerate();
    list.extend(steps.map(|(i, step)| ((i, 1), step)));
    list.sort_by_key(|(key, _)| *key);
    let moved_to = list.iter().map(|(key, _)| *key).enumerate();
    let moved_to: HashMap<usize, u32> = moved_to
        .filter_map(|(new, (old, kind))| (kind == 1).then_some((old, new as u32)))
        .collect();
    let renumbered = list.into_iter().map(|(_, mut step)| {
        step.after
            .iter_mut()
            .for_each(|dependency| *dependency = moved_to[&(*dependency as usize)]);
        step
    });
    renumbered.collect()
}

impl Binder<'_> {
    /// Makes convolutions and products read weights from packed copies. The weights must depend on parameters alone,
    /// or in a loop on inputs that are the same for all of its steps, and the run must not write over them. Returns
    /// the steps of *prepare* that pack them.
    pub fn packs(
        &self,
        owner: Owner,
        run: &mut [BoundStep],
        prepare: &[BoundStep],
        prepared: &mut Vec<usize>,
    ) -> Vec<BoundStep> {
        let mut makers = vec![After::new(); prepared.len()];
        for (i, step) in prepare.iter().enumerate() {
            for (arg, writes) in step.args.iter().zip(&step.writes) {
                if let (Loc::Prepared(result), true) = (arg, writes)
                    && makers[*result].last() != Some(&(i as u32))
                {
                    makers[*result].push(i as u32);
                }
            }
        }
        let steps = run.iter_mut();
        steps
            .filter_map(|step| self.pack(owner, step, &makers, prepared))
            .collect()
    }

    /// Makes a step read its weights from a packed copy. `makers` are the steps that compute each buffer of *prepare*.
    fn pack(
        &self,
        owner: Owner,
        step: &mut BoundStep,
        makers: &[After],
        prepared: &mut Vec<usize>,
    ) -> Option<BoundStep> {
        let Packs { weights, bytes } = step.work.packs()?;
        let sizes = smallvec![step.sizes[weights], bytes];
        let weights = step.args[weights];
        let after = match weights {
            Loc::Input(i) => {
                let is_constant = match owner {
                    Owner::Executable => self.plan.inputs[i].role == Role::Parameter,
                    Owner::Loop { alike } => i >= alike,
                    Owner::Side => false,
                };
                let is_kept = is_constant && !self.facts.donors.contains(&Some(i));
                is_kept.then(After::new)?
            }
            Loc::Constant(_) => (owner != Owner::Side).then(After::new)?,
            Loc::Prepared(at) => makers[at].clone(),
            Loc::Slot(_) | Loc::Arena(_) => return None,
        };
        let to = Loc::Prepared(prepared.len());
        prepared.push(bytes);
        step.args.push(to);
        step.packed = true;
        step.sizes.push(bytes);
        Some(BoundStep {
            work: Arc::new(Pack(step.work.clone())),
            args: smallvec![weights, to],
            packed: false,
            sizes,
            writes: smallvec![false, true],
            guard: None,
            scratch: 0,
            step: self.plan.prepare.len(),
            sites: smallvec![],
            parallel: true,
            concurrent: false,
            after,
        })
    }
}
