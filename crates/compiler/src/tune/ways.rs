//! The ways of a task that may be chosen.

use super::key;
use super::search::Candidate;
use super::settings::Precision;
use kiln_base::numel;
use kiln_codegen::{Body, Schedule, Task, Way};
use kiln_plan::Images;
use kiln_plan::tile::Cut;

/// The ways to compute a task, the default first. Those that are too inaccurate are not among them.
pub(super) fn ways(task: &Task, symbols: usize, precision: Precision) -> Vec<Way> {
    let allowed = |w: &&Way| w.approximation.is_none_or(|a| precision.allows(a));
    let differs = |w: &&Way| !is_cut_alike(w, &task.ways[0], symbols);
    let ways = task.ways.iter().filter(allowed).filter(differs);
    ways.cloned().collect()
}

/// The ways for whoever tries them.
pub(super) fn candidates(ways: &[Way], values: &[i64]) -> Vec<Candidate> {
    // Of the machine's threads: how many of them are in use must not decide what may be chosen.
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let candidate = |way: &Way| {
        let scratch = way.printed.scratch.iter();
        let scratch = scratch.map(|(dtype, shape)| key::bytes(*dtype, numel(shape).eval(values)));
        // What is impossible fails when it is tried.
        let own = way.printed.steps.iter().filter_map(|s| {
            let bytes = kiln_runtime::workspace(&s.kernel, values, threads);
            bytes.ok().flatten()
        });
        Candidate {
            name: way.name(),
            workspace: scratch.chain(own).sum::<usize>() as u64,
            predicted: way.predicted,
        }
    };
    ways.iter().map(candidate).collect()
}

/// Whether tiles of the size that a way asks for are what the default has anyway.
fn is_cut_alike(way: &Way, default: &Way, symbols: usize) -> bool {
    let Schedule::Cut(Cut { tile: Some(t), .. }) = way.schedule else {
        return false;
    };
    let kernel = &default.printed.steps[0].kernel;
    kiln_runtime::tile_elements(kernel, &key::typical(symbols)) == Ok(Some(t.into()))
}

/// Whether some work is a convolution with channels last.
pub(super) fn is_last(body: &Body) -> bool {
    matches!(body, Body::Conv(c) if c.images != Images::ChannelsFirst)
}
