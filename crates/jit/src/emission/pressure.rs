//! The register pressure of vector code.

use super::ir::{Do, Ir, Src, Step, Virt};

/// The steps that use each value, the last first.
pub(super) fn uses(ir: &Ir) -> Vec<Vec<u32>> {
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
/// number of values that may be spilled.
pub(super) fn pressure(ir: &Ir) -> (usize, usize) {
    let uses = uses(ir);
    let is_mask = |v: Virt| ir.masks[v.0 as usize];
    let (mut live, mut masks, mut most, mut all) = (0usize, 0usize, 0, 0);
    for (i, step) in ir.steps.iter().enumerate() {
        let constants = step.from.iter().flatten();
        let constants = constants.filter(|s| matches!(s, Src::Const(_))).count();
        most = most.max(live + constants + temporaries(step));
        // One more is needed where an operand is overwritten that is still live.
        if step.to.is_some_and(|v| !is_mask(v)) {
            most = most.max(live + constants + 1);
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
        all = all.max(live + masks);
    }
    (most + 1, all + 1)
}

/// Returns the number of registers that a step needs besides those of its values.
fn temporaries(step: &Step) -> usize {
    match step.what {
        Do::Store { .. } | Do::Load { .. } | Do::Neutral { .. } | Do::Gather { .. } => 2,
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
