//! What printed code asks for before it is wanted, so that memory works while it computes.

use super::inst::stage_cost;
use super::walk::{Shape, Walk};
use kiln_kernel::bound::Bound;
use kiln_plan::tile::{Schedule, Turn};

/// A load from an argument of at least this many bytes fetches ahead.
const FETCH_BYTES: i64 = 4 << 20;
/// The longest row that is fetched while the one before it is worked on: a few must fit the cache.
const FETCH_ROW: i64 = 128 << 10;

/// The costliest of the stages over the lanes of a row, where there are several: rows are read from memory by the first
/// stage, so this one asks for the next row.
pub(super) fn costliest(bound: &Bound) -> Option<usize> {
    let stages = &bound.program.stages;
    let mut inner: Vec<usize> = (0..stages.len())
        .filter(|i| stages[*i].over_inner && stages[*i].turn == Turn::Every)
        .collect();
    if bound.program.schedule != Schedule::Rows || inner.len() < 2 {
        return None;
    }
    inner.sort_by(|a, b| {
        let cost = |i: &usize| stage_cost(bound, *i);
        cost(b).total_cmp(&cost(a))
    });
    Some(inner[0])
}

/// How far ahead the next row of a walk is fetched.
pub(super) fn distance(bound: &Bound, walk: &Walk) -> Option<u32> {
    let arg = bound.program.args[walk.arg];
    let size = arg.dtype.size() as i64;
    let row_bytes = bound.lane.iter().product::<i64>().saturating_mul(size);
    let step = *walk.address.outer.last()?;
    (step > 0 && row_bytes <= FETCH_ROW && is_fetched(bound, walk))
        .then(|| u32::try_from(step).ok())?
}

/// Whether a walk reads a large argument line by line.
fn is_fetched(bound: &Bound, walk: &Walk) -> bool {
    let arg = bound.program.args[walk.arg];
    let bytes = bound.lens[walk.arg].saturating_mul(arg.dtype.size() as i64);
    let line = walk.reads_memory && walk.shape == Shape::Contiguous;
    line && !arg.written && bytes >= FETCH_BYTES
}
