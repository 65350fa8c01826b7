//! Estimates of the time that stages take.

use kiln_base::Compute;
use kiln_kernel::bound::Bound;
use kiln_plan::tile::{Inst, Schedule, TILE};

/// Estimates the nanoseconds per point of the parallel axes. The number of threads and the stage that prefetches depend
/// on it.
pub(super) fn estimate_cost(bound: &Bound) -> f64 {
    (0..bound.program.stages.len())
        .map(|i| estimate_stage_cost(bound, i))
        .sum()
}

/// Estimates the nanoseconds of one stage per point of the parallel axes.
pub(super) fn estimate_stage_cost(bound: &Bound, index: usize) -> f64 {
    let program = bound.program;
    let inst_cost = |inst: &Inst| match inst {
        Inst::Unary { op, a, .. } => {
            let is_emulated = program.registers[a.0 as usize] != Compute::F32;
            if !op.is_expensive() {
                0.04
            } else if is_emulated {
                10.0
            } else {
                0.3
            }
        }
        Inst::Binary { op, .. } if op.is_expensive() => 8.0,
        Inst::Random { .. } => 8.0,
        Inst::LoadAt { .. } => 1.0,
        Inst::Load { .. } | Inst::Store { .. } => 0.15,
        _ => 0.04,
    };
    let stage = &program.stages[index];
    let inner = match program.schedule {
        Schedule::Rows => &bound.lane,
        Schedule::Lanes => &bound.outer,
    };
    let points = if stage.over_inner {
        inner.iter().product::<i64>() as f64
    } else {
        1.0
    };
    let overhead = match program.schedule {
        Schedule::Rows => 10.0 * (points / TILE as f64).ceil(),
        Schedule::Lanes => 0.0,
    };
    stage.code.iter().map(inst_cost).sum::<f64>() * points + overhead * stage.code.len() as f64
}
