//! The ways of a task that may be chosen.

use super::key;
use super::search::Candidate;
use super::settings::Precision;
use kiln_base::{custom, numel};
use kiln_codegen::{Body, Schedule, Step, Task, Way, cpu_way};
use kiln_plan::tile::Cut;
use kiln_plan::{Algorithm, Decision, Images, Kernel};

/// A size that stands for every large one.
const LARGE: i64 = 1 << 20;

/// The ways to compute a task, the default first. Those that need a size that is not known, or are too inaccurate,
/// are not among them.
pub(super) fn ways(task: &Task, symbols: usize, precision: Precision, gpu: bool) -> Vec<Way> {
    let mut ways = task.ways.clone();
    if let [Step { kernel, .. }] = &task.ways[0].printed.steps[..]
        && !matches!(kernel, Kernel::Cuda(_))
    {
        ways.retain(|w| !is_cut_alike(w, kernel, symbols));
        let others = others(kernel, symbols, gpu).into_iter();
        let others = others.map(|k| cpu_way(k, &task.work));
        let known = |w: &Way| task.ways.iter().any(|other| other.schedule == w.schedule);
        ways.extend(others.filter(|w| !known(w)));
    }
    ways.retain(|w| w.approximation.is_none_or(|a| precision.allows(a)));
    ways
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
fn is_cut_alike(way: &Way, default: &Kernel, symbols: usize) -> bool {
    let Schedule::Cut(Cut { tile: Some(t), .. }) = way.schedule else {
        return false;
    };
    kiln_runtime::tile_elements(default, &key::typical(symbols)) == Ok(Some(t.into()))
}

/// Other kernels of the CPU engine, or of a custom operator, that compute the same.
fn others(kernel: &Kernel, symbols: usize, gpu: bool) -> Vec<Kernel> {
    // Which sizes they can compute only the operator knows.
    if let (Kernel::Custom(c), 0) = (kernel, symbols) {
        let by = |name| {
            Kernel::Custom(kiln_plan::Custom {
                kernel: Some(name),
                ..c.clone()
            })
        };
        let kernels = custom::find(&c.name);
        let names = kernels.map_or_else(|_| Vec::new(), |kernels| kernels.alternatives(gpu));
        return names.into_iter().map(by).collect();
    }
    let default = kernel.decision().and_then(Decision::one);
    let differ = algorithms(kernel, symbols).into_iter();
    let differ = differ.filter(|a| default != Some(*a));
    differ.map(|a| kernel.clone().by(a)).collect()
}

/// Whether some work is a convolution with channels last.
pub(super) fn is_last(body: &Body) -> bool {
    matches!(body, Body::Conv(c) if c.images != Images::ChannelsFirst)
}

/// The algorithms that are legal whatever values symbols have, and differ.
fn algorithms(kernel: &Kernel, symbols: usize) -> Vec<Algorithm> {
    let values = key::typical(symbols);
    let mut legal = kernel.algorithms(&values);
    if symbols > 0 {
        for extreme in [2, LARGE] {
            let also = kernel.algorithms(&vec![extreme; symbols]);
            legal.retain(|a| also.contains(a));
        }
    }
    legal.retain(|a| kernel.clone().by(*a).computed_by(&values) == Some(*a));
    legal
}
