//! Arguments that steps write whole. Other elements of a buffer would show earlier contents of the memory, so such a
//! buffer begins as zeros.

use super::binder::Binder;
use kiln_base::Dim;
use kiln_kernel::work::LinkedKernel;
use kiln_plan::{Kernel, Step};
use smallvec::SmallVec;
use std::sync::Arc;

impl Binder<'_> {
    /// Finds the buffers whose first writer may not write all of them. Also returns true if bodies have such buffers.
    pub fn uncovered(&self, steps: &[Step], works: &[Arc<dyn LinkedKernel>]) -> (Vec<usize>, bool) {
        let mut bare = Vec::new();
        let mut bare_bodies = false;
        if self.gpu.is_some() {
            return (bare, false); // kernels of the compiler are trusted
        }
        let mut written = vec![false; self.lens.len()];
        for (step, work) in steps.iter().zip(works) {
            let args = &self.contract(step).args;
            let covered = self.covered(step, &**work, self.values);
            bare_bodies |= work.may_be_uninitialized();
            for (arg, id) in step
                .args
                .iter()
                .enumerate()
                .filter(|(arg, _)| args[*arg].writes)
            {
                let buffer = id.0 as usize;
                let is_first_write = !std::mem::replace(&mut written[buffer], true);
                if is_first_write && !covered[arg] {
                    bare.push(buffer);
                }
            }
        }
        (bare, bare_bodies)
    }

    /// For each argument of a step, true if the step writes all of it and does not read it before.
    pub fn covered(
        &self,
        step: &Step,
        work: &dyn LinkedKernel,
        values: &[i64],
    ) -> SmallVec<[bool; 6]> {
        let kernel = &self.plan.kernels[step.kernel as usize];
        let lens = step.args.iter().map(|id| self.lens[id.0 as usize]);
        let args = lens.enumerate();
        args.map(|(arg, len)| covers(work, kernel, values, arg, len))
            .collect()
    }
}

/// True if a step writes all of an argument of `len` elements, and does not read it before.
fn covers(work: &dyn LinkedKernel, kernel: &Kernel, values: &[i64], arg: usize, len: i64) -> bool {
    if work.has_bodies() {
        return !work.may_be_uninitialized();
    }
    match work.program() {
        Some(program) => program.covers(arg),
        None => kernel.results().is_some_and(|dims| {
            let size = |n: i64, d: &Dim| n.checked_mul(d.eval_checked(values)?);
            dims.into_iter().try_fold(1, size) == Some(len)
        }),
    }
}
