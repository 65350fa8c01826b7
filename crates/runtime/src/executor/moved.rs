//! Rebinding for symbols that only change offsets.

use super::binder::{Binder, Setting};
use super::bound::Bound;
use super::on_gpu::OnGpu;
use super::phases::PreparePhases;
use super::step::BoundStep;
use kiln_kernel::error::Result;
use kiln_plan::Step;

impl Bound {
    /// Binds the same plan to other values of symbols that no buffer's length uses. All locations stay, and only the
    /// kernels that use these symbols are linked again. `None` if that is not enough.
    pub(super) fn rebind(&self, setting: Setting<'_>, values: &[i64]) -> Result<Option<Bound>> {
        let facts = setting.facts;
        let differs: Vec<bool> = (self.values.iter().zip(values))
            .map(|(a, b)| a != b)
            .collect();
        let any_differs = |used: &[bool]| used.iter().zip(&differs).any(|(used, d)| *used && *d);
        let steps = || self.prepare.iter().chain(&self.run);
        let is_affected = |plan: &[Step], s: &BoundStep| {
            plan.get(s.step)
                .is_some_and(|s| any_differs(&facts.kernel_symbols[s.kernel as usize]))
        };
        let is_repacked = |s: &BoundStep| s.packed && is_affected(&setting.plan.run, s);
        if any_differs(&facts.size_symbols) || steps().any(is_repacked) {
            return Ok(None);
        }
        let mut binder = Binder::new(setting, values)?;
        let mut relink = |plan: &[Step], list: &[BoundStep]| -> Result<Option<Vec<BoundStep>>> {
            let mut list = list.to_vec();
            for s in list.iter_mut().filter(|s| is_affected(plan, s)) {
                let work = binder.link(&plan[s.step])?;
                let step = &plan[s.step];
                let covered_before = binder.covered(step, &*s.work, &self.values);
                if work.scratch() != s.work.scratch()
                    || covered_before != binder.covered(step, &*work, values)
                {
                    return Ok(None);
                }
                (s.parallel, s.writes) = binder.parallel(&plan[s.step], &*work)?;
                s.work = work;
            }
            Ok(Some(list))
        };
        let prepare = relink(&setting.plan.prepare, &self.prepare)?;
        let run = relink(&setting.plan.run, &self.run)?;
        let (Some(prepare), Some(run)) = (prepare, run) else {
            return Ok(None);
        };
        let bound = Bound {
            values: values.to_vec(),
            packs_from: self.packs_from,
            touched: Vec::new(),
            phases: PreparePhases::default(),
            prepare_on_gpu: OnGpu::new(&prepare),
            run_on_gpu: OnGpu::new(&run),
            prepare,
            run,
            slots: self.slots.clone(),
            initial_inputs: self.initial_inputs.clone(),
            prepared: self.prepared.clone(),
            outputs: self.outputs.clone(),
            arena: self.arena,
            prepare_arena: self.prepare_arena,
            report: self.report,
            clear: self.clear,
            prepare_clear: self.prepare_clear,
            blocks: self.blocks.clone(),
            holders: self.holders,
        };
        Ok(Some(bound.with_touched(binder.gpu.is_some())))
    }
}
