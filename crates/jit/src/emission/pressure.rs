//! The register pressure of vector code.

use super::ir::{Action, Ir, Src, Step, Virt};

/// Returns the steps that use each value, in descending order.
pub(super) fn uses_by_value(ir: &Ir) -> Vec<Vec<u32>> {
    let mut uses = vec![vec![]; ir.masks.len()];
    for (i, step) in ir.steps.iter().enumerate().rev() {
        for s in step.from.iter().flatten() {
            if let Src::Virt(v) = s
                && uses[v.0 as usize].last() != Some(&(i as u32))
            {
                uses[v.0 as usize].push(i as u32);
            }
        }
    }
    uses
}

/// Returns the maximum number of vector registers that are live at once, without pinned constants, and the maximum
/// number of live values, which may be spilled.
pub(super) fn pressure(ir: &Ir) -> (usize, usize) {
    let uses = uses_by_value(ir);
    let is_mask = |v: Virt| ir.masks[v.0 as usize];
    let (mut live, mut masks, mut max_vectors, mut max_values) = (0usize, 0usize, 0, 0);
    for (i, step) in ir.steps.iter().enumerate() {
        let constants = step.from.iter().flatten();
        let constants = constants.filter(|s| matches!(s, Src::Const(_))).count();
        max_vectors = max_vectors.max(live + constants + temporaries(step));
        // Overwriting a live operand takes another register.
        if step.to.is_some_and(|v| !is_mask(v)) {
            max_vectors = max_vectors.max(live + constants + 1);
        }
        for (k, s) in step.from.iter().enumerate() {
            if let Some(Src::Virt(v)) = s
                && uses[v.0 as usize][0] == i as u32
                && !step.from[..k].contains(s)
            {
                *(if is_mask(*v) { &mut masks } else { &mut live }) -= 1;
            }
        }
        if let Some(to) = step.to
            && !uses[to.0 as usize].is_empty()
        {
            *(if is_mask(to) { &mut masks } else { &mut live }) += 1;
        }
        max_values = max_values.max(live + masks);
    }
    (max_vectors + 1, max_values + 1)
}

/// Returns the number of temporary registers of a step.
fn temporaries(step: &Step) -> usize {
    match step.action {
        Action::Store { .. }
        | Action::Load { .. }
        | Action::Fill { .. }
        | Action::Gather { .. } => 2,
        _ => 0,
    }
}

/// Returns the number of reads of each constant.
pub(super) fn constant_uses(ir: &Ir) -> Vec<usize> {
    let mut count = vec![0; ir.constants.len()];
    for s in ir.steps.iter().flat_map(|s| s.from).flatten() {
        if let Src::Const(c) = s {
            count[c as usize] += 1;
        }
    }
    count
}
