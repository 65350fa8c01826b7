//! The candidates of a task that may be chosen.

use super::key;
use super::search::Candidate;
use super::settings::Precision;
use kiln_base::numel;
use kiln_codegen::{Body, Schedule, Way};
use kiln_plan::Images;
use kiln_plan::schedule::Cpu;
use kiln_plan::tile::Cut;

/// Removes the candidates of a task that are too inaccurate or the same as another one. The first is the default.
pub(super) fn limit(ways: &mut Vec<Way>, symbols: usize, precision: Precision) {
    if ways.len() < 2 {
        return;
    }
    // The default's tiles have this size anyway.
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

/// The candidates in the form that the search takes.
pub(super) fn candidates(ways: &[Way], values: &[i64]) -> Vec<Candidate> {
    // The threads of the machine: how many of them are in use must not affect the candidates that may be chosen.
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let candidate = |way: &Way| {
        let scratch = way.printed.scratch.iter();
        let scratch = scratch.map(|(dtype, shape)| key::bytes(*dtype, numel(shape).eval(values)));
        // A kernel that is not possible fails when it is tried.
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

/// The candidate that is the same as this one except for the sizes of its schedule.
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

/// True if some work is a convolution with channels last.
pub(super) fn is_last(body: &Body) -> bool {
    matches!(body, Body::Conv(c) if c.images != Images::ChannelsFirst)
}
