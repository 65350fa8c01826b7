//! Results of *prepare* that no run reads: weights that were made, and then packed.

use super::bound::Bound;
use super::loc::Loc;

impl Bound {
    /// The bound plan with what is found of its steps. On a GPU all results of *prepare* stay.
    pub(super) fn with_touched(mut self, on_gpu: bool) -> Bound {
        self.touched = match on_gpu {
            true => vec![true; self.prepared.len()],
            false => self.touched_by_run(),
        };
        let kept = self.prepared.iter().zip(&self.touched);
        let kept: usize = kept.map(|(n, touched)| n * usize::from(*touched)).sum();
        let dropped = self.prepared.iter().sum::<usize>() - kept;
        self.report.prepared = kept;
        self.report.prepare_peak = self.prepare_arena + dropped;
        self
    }

    /// For each result of *prepare* whether the run part touches it, or gives it out.
    fn touched_by_run(&self) -> Vec<bool> {
        let mut touched = vec![false; self.prepared.len()];
        let mut touch = |loc: &Loc| {
            if let Loc::Prepared(at) = loc {
                touched[*at] = true;
            }
        };
        for step in &self.run {
            let packs = step.work.packs();
            let forgotten = packs.filter(|_| step.packed && step.work.forgets_packed());
            let forgotten = forgotten.map(|packs| packs.weights);
            let args = step.args.iter().enumerate();
            let read = args.filter(|(arg, _)| Some(*arg) != forgotten);
            read.for_each(|(_, loc)| touch(loc));
            step.guard.iter().for_each(|guard| touch(&guard.loc));
        }
        self.outputs.iter().for_each(|(loc, _)| touch(loc));
        touched
    }
}
