//! Software prefetches of emitted code, which overlap memory accesses with computation.

use super::cost::estimate_stage_cost;
use super::walk::{Shape, Walk};
use kiln_kernel::bound::Bound;
use kiln_plan::tile::{Schedule, SerialPoints};

/// The size in bytes from which the loads of an argument are prefetched.
const MIN_ARGUMENT_BYTES: i64 = 4 << 20;
/// The maximum size in bytes of a row that is prefetched while the previous row is processed. A few rows must fit the
/// cache.
const MAX_ROW_BYTES: i64 = 128 << 10;

/// Returns the costliest stage over the lanes of a row, if there are several such stages. It prefetches the next row
/// while it computes.
pub(super) fn costliest_stage(bound: &Bound) -> Option<usize> {
    let stages = &bound.program.stages;
    let mut candidates: Vec<usize> = (0..stages.len())
        .filter(|i| stages[*i].over_inner && stages[*i].serial_points == SerialPoints::Every)
        .collect();
    if bound.program.schedule != Schedule::Rows || candidates.len() < 2 {
        return None;
    }
    candidates.sort_by(|a, b| {
        let cost = |i: &usize| estimate_stage_cost(bound, *i);
        cost(b).total_cmp(&cost(a))
    });
    Some(candidates[0])
}

/// Returns the distance in elements from a row to the next, if the rows of a walk are prefetched.
pub(super) fn prefetch_distance(bound: &Bound, walk: &Walk) -> Option<u32> {
    let arg = bound.program.args[walk.arg];
    let size = arg.dtype.size() as i64;
    let row_bytes = bound.lane.iter().product::<i64>().saturating_mul(size);
    let step = *walk.address.outer.last()?;
    (step > 0 && row_bytes <= MAX_ROW_BYTES && is_prefetched(bound, walk))
        .then(|| u32::try_from(step).ok())?
}

/// True if a walk reads a large argument contiguously.
fn is_prefetched(bound: &Bound, walk: &Walk) -> bool {
    let arg = bound.program.args[walk.arg];
    let bytes = bound.lens[walk.arg].saturating_mul(arg.dtype.size() as i64);
    let contiguous = walk.reads_memory && walk.shape == Shape::Contiguous;
    contiguous && !arg.written && bytes >= MIN_ARGUMENT_BYTES
}
