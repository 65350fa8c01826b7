//! The candidates of a task that may be chosen.

use super::key;
use super::search::CandidateInfo;
use super::settings::Precision;
use kiln_base::numel;
use kiln_codegen::{Body, Candidate, Schedule};
use kiln_plan::Images;
use kiln_plan::schedule::Cpu;
use kiln_plan::tile::TileSizes;

/// Removes the candidates of a task that are too inaccurate or the same as another one. The first is the default.
pub(super) fn limit(candidates: &mut Vec<Candidate>, symbols: usize, precision: Precision) {
    if candidates.len() < 2 {
        return;
    }
    // The default's tiles have this size anyway.
    let values = key::typical(symbols);
    let default = &candidates[0].calls.steps[0].kernel;
    let tile = kiln_runtime::tile_elements(default, &values);
    let mut resolved = Vec::new();
    candidates.retain(|candidate| {
        let allowed = candidate.approximation.is_none_or(|a| precision.allows(a));
        let is_duplicate = match candidate.schedule {
            Schedule::Tiles(TileSizes { tile: Some(t), .. }) => tile == Ok(Some(t.into())),
            Schedule::Algorithm(_) => {
                let kernel = &candidate.calls.steps[0].kernel;
                let schedule = kiln_runtime::schedule(kernel, &values).ok().flatten();
                let is_known = schedule.is_some_and(|schedule| resolved.contains(&schedule));
                resolved.extend(schedule);
                is_known
            }
            _ => false,
        };
        allowed && !is_duplicate
    });
}

/// Returns the candidates in the form that the search takes.
pub(super) fn infos(candidates: &[Candidate], values: &[i64]) -> Vec<CandidateInfo> {
    // The threads of the machine: how many of them are in use must not affect the candidates that may be chosen.
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let info = |candidate: &Candidate| {
        let scratch = candidate.calls.scratch.iter();
        let scratch = scratch.map(|(dtype, shape)| key::bytes(*dtype, numel(shape).eval(values)));
        // A kernel that is not possible fails when it is tried.
        let workspaces = candidate.calls.steps.iter().filter_map(|s| {
            let bytes = kiln_runtime::workspace(&s.kernel, values, threads);
            bytes.ok().flatten()
        });
        CandidateInfo {
            base: base(candidates, candidate),
            name: candidate.name(),
            workspace: scratch.chain(workspaces).sum::<usize>() as u64,
            predicted: candidate.predicted,
        }
    };
    candidates.iter().map(info).collect()
}

/// Returns the candidate with the same algorithm and the default sizes of its schedule.
fn base(candidates: &[Candidate], candidate: &Candidate) -> Option<usize> {
    let schedule_of = |candidate: &Candidate| match &candidate.schedule {
        Schedule::Algorithm(decision) => decision.one(),
        _ => None,
    };
    let schedule = schedule_of(candidate)?;
    let default_schedule = Cpu::from(schedule.algorithm);
    let base = candidates
        .iter()
        .position(|other| schedule_of(other) == Some(default_schedule))?;
    (schedule != default_schedule).then_some(base)
}

/// True if some work is a convolution with channels last.
pub(super) fn is_last(body: &Body) -> bool {
    matches!(body, Body::Conv(c) if c.images != Images::ChannelsFirst)
}
