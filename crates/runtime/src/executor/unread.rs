//! The inputs and results of *prepare* that a run touches: it does not read weights that were packed.

use super::bound::Bound;
use super::loc::Loc;
use super::phases::PreparePhases;
use hashbrown::HashSet;

impl Bound {
    /// Completes the bound plan by the results that its run steps touch. On a GPU all results of *prepare* stay.
    pub(super) fn with_touched(mut self, on_gpu: bool) -> Bound {
        let touched = self.touched_by_run();
        let prepared = 0..self.prepared.len();
        let is_kept = |p| on_gpu || touched.contains(&Loc::Prepared(p));
        self.touched = prepared.map(is_kept).collect();
        let bytes = self.prepared.iter().zip(&self.touched);
        let bytes: usize = bytes.map(|(n, touched)| n * usize::from(*touched)).sum();
        if !on_gpu {
            self.phases = PreparePhases::new(&self, &touched);
        }
        self.report.prepared = bytes;
        self.report.prepare_peak = self.prepare_arena + self.phases.spare_bytes;
        self
    }

    /// The locations that the run part touches or returns.
    fn touched_by_run(&self) -> HashSet<Loc> {
        let mut touched = HashSet::new();
        for step in &self.run {
            let packs = step.work.packs();
            let forgotten = packs.filter(|_| step.packed && step.work.ignores_packed());
            let forgotten = forgotten.map(|packs| packs.weights);
            let args = step.args.iter().enumerate();
            let read = args.filter(|(arg, _)| Some(*arg) != forgotten);
            touched.extend(read.map(|(_, loc)| *loc));
            touched.extend(step.guard.iter().map(|guard| guard.loc));
        }
        touched.extend(self.outputs.iter().map(|(loc, _)| *loc));
        touched.extend(
            self.initial_inputs
                .iter()
                .map(|(input, _)| Loc::Input(*input)),
        );
        touched
    }
}
