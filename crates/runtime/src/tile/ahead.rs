//! Requests for what comes next, spread over code that computes, so that memory works meanwhile.

use super::bound::Bound;
use super::code::Code;
use super::inst::stage_cost;
use super::linked::Stage;
use super::load;
use super::lower::plain;
use super::walk::{Shape, Walk};
use kiln_plan::tile::{Schedule, TILE, Turn};

/// A load from an argument of at least this many bytes fetches ahead.
const FETCH_BYTES: i64 = 4 << 20;
/// Lines that one instruction fetches.
const FETCH_LINES: u32 = 8;
/// Instructions of a stage of lanes from which on fetching ahead pays.
const FETCH_GAPS: usize = 6;
/// The longest row that is fetched while the one before it is worked on: a few must fit the cache.
const FETCH_ROW: i64 = 128 << 10;

/// Adds the requests to the stages of a program.
pub(super) fn fetch(bound: &Bound, walks: &[Walk], stages: &mut [Stage]) {
    match bound.program.schedule {
        Schedule::Lanes => {
            for stage in stages.iter_mut().filter(|s| !s.over_inner) {
                // The code before the last instruction, a store, is where there is something to
                // overlap.
                if stage.body.len() > FETCH_GAPS {
                    let requests = requests(bound, walks, &stage.walks, |_| Some(0));
                    spread(requests, &mut stage.body);
                }
            }
        }
        Schedule::Rows => next_row(bound, walks, stages),
    }
}

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

/// What an interpreted stage of rows fetches.
fn next_row(bound: &Bound, walks: &[Walk], stages: &mut [Stage]) {
    let Some(costliest) = costliest(bound) else {
        return;
    };
    // One that is printed does so itself.
    if stages[costliest].body.iter().any(|c| c.is_call) {
        return;
    }
    let mut read: Vec<u32> = stages
        .iter()
        .filter(|s| s.over_inner && s.turn == Turn::Every)
        .flat_map(|s| s.walks.clone())
        .collect();
    read.sort();
    read.dedup();
    let requests = requests(bound, walks, &read, |w| distance(bound, w));
    spread(requests, &mut stages[costliest].body);
}

/// Requests for a tile of each of these walks that reads a large argument line by line, as many
/// elements ahead as `distance` says.
fn requests(
    bound: &Bound,
    walks: &[Walk],
    which: &[u32],
    distance: impl Fn(&Walk) -> Option<u32>,
) -> Vec<Code> {
    let tile = bound.lane.iter().product::<i64>().min(TILE as i64) as usize;
    let mut out = Vec::new();
    for &x in which {
        let walk = &walks[x as usize];
        let arg = bound.program.args[walk.arg];
        let Some(distance) = distance(walk).filter(|_| is_fetched(bound, walk)) else {
            continue;
        };
        let lines = (tile * arg.dtype.size()).div_ceil(load::LINE) as u32;
        out.extend((0..lines).step_by(FETCH_LINES as usize).map(|from| Code {
            a: from,
            b: lines.min(from + FETCH_LINES),
            c: distance,
            ..plain(load::prefetch(arg.dtype), 0, x)
        }));
    }
    out
}

/// Puts the requests evenly between the instructions of `body`.
fn spread(requests: Vec<Code>, body: &mut Vec<Code>) {
    let gaps = body.len().saturating_sub(1).max(1);
    let old = std::mem::take(body);
    let mut given = 0;
    for (i, code) in old.into_iter().enumerate() {
        body.push(code);
        let due = (requests.len() * (i + 1) / gaps).min(requests.len());
        body.extend(&requests[given..due.max(given)]);
        given = due.max(given);
    }
}
