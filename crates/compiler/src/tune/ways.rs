//! The ways of a task that may be chosen.

use super::key;
use super::search::Candidate;
use super::settings::Precision;
use kiln_base::numel;
use kiln_codegen::{Body, Schedule, Way};
use kiln_plan::Images;
use kiln_plan::schedule::Cpu;
use kiln_plan::tile::Cut;

/// Leaves the ways of a task, the default first, that may be chosen: those that are not too inaccurate, and differ.
pub(super) fn limit(ways: &mut Vec<Way>, symbols: usize, precision: Precision) {
    if ways.len() < 2 {
        return;
    }
    // Of that size the default's tiles are anyway.
    let values = key::typical(symbols);
    let default = &ways[0].printed.steps[0].kernel;
    let tile = kiln_runtime::tile_elements(default, &values);
    let mut resolved = Vec::new();
    ways.retain(|way| {
        let allowed = way.approximation.is_none_or(|a| precision.allows(a));
        let alike = match way.schedule {
            Schedule::Cut(Cut { tile: Some(t), .. }) => tile == Ok(Some(t.into())),
            Schedule::Algorithm(_) => {
                let kernel = &way.printed.steps[0].kernel;
                let found = kiln_runtime::schedule(kernel, &values).ok().flatten();
                let known = found.is_some_and(|found| resolved.contains(&found));
                resolved.extend(found);
                known
            }
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
            base: base(ways, way),
            name: way.name(),
            workspace: scratch.chain(own).sum::<usize>() as u64,
            predicted: way.predicted,
        }
    };
    ways.iter().map(candidate).collect()
}

/// The way that is as this one, but for the sizes of its schedule.
fn base(ways: &[Way], way: &Way) -> Option<usize> {
    let of = |way: &Way| match &way.schedule {
        Schedule::Algorithm(decision) => decision.one(),
        _ => None,
    };
    let own = of(way)?;
    let plain = Cpu::from(own.algorithm);
    let found = ways.iter().position(|other| of(other) == Some(plain))?;
    (own != plain).then_some(found)
}

/// Whether some work is a convolution with channels last.
pub(super) fn is_last(body: &Body) -> bool {
    matches!(body, Body::Conv(c) if c.images != Images::ChannelsFirst)
}
