//! The ways of a task that may be chosen.

use super::key;
use super::search::Candidate;
use super::settings::Precision;
use kiln_base::numel;
use kiln_codegen::{Body, Schedule, Way};
use kiln_plan::Images;
use kiln_plan::tile::Cut;

/// Leaves the ways of a task, the default first, that may be chosen: those that are not too inaccurate, and differ.
pub(super) fn limit(ways: &mut Vec<Way>, symbols: usize, precision: Precision) {
    if ways.len() < 2 {
        return;
    }
    // Of that size the default's tiles are anyway.
    let default = &ways[0].printed.steps[0].kernel;
    let tile = kiln_runtime::tile_elements(default, &key::typical(symbols));
    ways.retain(|way| {
        let allowed = way.approximation.is_none_or(|a| precision.allows(a));
        let alike = match way.schedule {
            Schedule::Cut(Cut { tile: Some(t), .. }) => tile == Ok(Some(t.into())),
            _ => false,
        };
        allowed && !alike
    });
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

/// Whether some work is a convolution with channels last.
pub(super) fn is_last(body: &Body) -> bool {
    matches!(body, Body::Conv(c) if c.images != Images::ChannelsFirst)
}
