//! The ways of a task that may be chosen, and what the cost model makes of them.

use super::key;
use super::search::Candidate;
use super::settings::Precision;
use kiln_base::{Dim, custom, numel};
use kiln_codegen::{Approximation, Body, Printed, Schedule, Task, Way, Work};
use kiln_plan::tile::Cut;
use kiln_plan::{Algorithm, Conv, Images, Kernel, MatMul};

/// A size that stands for every large one.
const LARGE: i64 = 1 << 20;

/// The ways to compute a task, the default first. Those that need a size that is not known, or are too inaccurate,
/// are not among them.
pub(super) fn ways(task: &Task, symbols: usize, precision: Precision, gpu: bool) -> Vec<Way> {
    let own = task.ways.iter().cloned();
    let mut ways = match &task.ways[0].printed.steps[..] {
        [step] if !matches!(step.kernel, Kernel::Cuda(_)) => {
            let default = by_default(&step.kernel, symbols, &task.work);
            let mut ways = vec![way(default.clone(), symbols, &task.work)];
            ways.extend(own.skip(1).filter(|w| !is_cut_alike(w, &default, symbols)));
            let others = others(&default, symbols, &task.work, gpu);
            ways.extend(others.into_iter().map(|k| way(k, symbols, &task.work)));
            ways
        }
        _ => own.collect(),
    };
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
fn others(kernel: &Kernel, symbols: usize, work: &Work, gpu: bool) -> Vec<Kernel> {
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
    let algorithms = algorithms(kernel, symbols, &key::typical(symbols), work);
    let differ = algorithms.into_iter();
    let differ = differ.filter(|a| kernel.algorithm() != Some(*a));
    differ.map(|a| with(kernel, a)).collect()
}

/// Whether some work is a convolution with channels last.
pub(super) fn is_last(body: &Body) -> bool {
    matches!(body, Body::Conv(c) if c.images != Images::ChannelsFirst)
}

/// The kernel by an algorithm, where it has several.
fn with(kernel: &Kernel, by: Algorithm) -> Kernel {
    let mut kernel = kernel.clone();
    if let Some(algorithm) = kernel.algorithm_mut() {
        *algorithm = by;
    }
    kernel
}

/// The default, by its own name where sizes are known.
fn by_default(kernel: &Kernel, symbols: usize, work: &Work) -> Kernel {
    match named(kernel, &[], work).filter(|_| symbols == 0) {
        Some(algorithm) => with(kernel, algorithm),
        None => kernel.clone(),
    }
}

/// Whether the weights of a convolution, or the right matrix of a product, depend on parameters alone.
pub(super) fn fixed_weights(work: &Work) -> bool {
    let arg = match &work.body {
        Body::MatMul(m) => m.rhs.arg,
        Body::Conv(c) => c.operands[1],
        _ => return false,
    };
    work.args.get(usize::from(arg)).is_some_and(|a| a.fixed)
}

/// What a kernel is computed by: one name for algorithms that do the same.
pub(super) fn named(kernel: &Kernel, values: &[i64], work: &Work) -> Option<Algorithm> {
    let named = kiln_runtime::computed_by(kernel, values, fixed_weights(work));
    named.ok().flatten()
}

/// The algorithms that are legal whatever values symbols have, and differ.
fn algorithms(kernel: &Kernel, symbols: usize, values: &[i64], work: &Work) -> Vec<Algorithm> {
    let mut legal = kernel.algorithms(values);
    if symbols > 0 {
        for extreme in [2, LARGE] {
            let also = kernel.algorithms(&vec![extreme; symbols]);
            legal.retain(|a| also.contains(a));
        }
    }
    legal.retain(|a| named(&with(kernel, *a), values, work).is_none_or(|name| name == *a));
    legal
}

/// A kernel of the CPU engine as a way to compute some work.
fn way(kernel: Kernel, symbols: usize, work: &Work) -> Way {
    let values = key::typical(symbols);
    let (schedule, predicted) = match &kernel {
        Kernel::MatMul(m) => {
            let cost = matmul_cost(m, &values, fixed_weights(work));
            (Schedule::Algorithm(m.algorithm), cost)
        }
        Kernel::Conv(_) if is_last(&work.body) => (Schedule::ChannelsLast, None),
        Kernel::Conv(c) => (Schedule::Algorithm(c.algorithm), conv_cost(c, &values)),
        Kernel::Custom(c) => {
            let named = c.kernel.clone().map(Schedule::Custom);
            (named.unwrap_or(Schedule::Default), None)
        }
        _ => (Schedule::Default, None),
    };
    let algorithm = kernel.algorithm().filter(|a| !a.only_sums());
    Way {
        schedule,
        predicted,
        approximation: algorithm.map(Approximation::Algorithm),
        printed: Printed::one(kernel, work),
    }
}

fn product(values: &[i64], dims: &[&Dim]) -> f64 {
    let size = |d: &&Dim| d.eval_checked(values).unwrap_or(1) as f64;
    dims.iter().map(size).product()
}

/// Multiply-adds that take as long as packing or gathering an element does.
const MOVE: f64 = 8.0;

/// The cost of a product in multiply-adds; `None` where it is left open how it is computed.
fn matmul_cost(m: &MatMul, values: &[i64], fixed: bool) -> Option<f64> {
    let [work, lhs, rhs] = [
        product(values, &[&m.m, &m.k, &m.n]),
        product(values, &[&m.m, &m.k]),
        product(values, &[&m.k, &m.n]),
    ];
    match m.algorithm {
        Algorithm::Panels(_) | Algorithm::Parts => Some(work + MOVE * (lhs + rhs)),
        // Memory is what it waits for, and nothing is used twice.
        Algorithm::Vector => Some(4.0 * work),
        Algorithm::Small => Some(work),
        Algorithm::Packed if fixed => Some(work),
        Algorithm::Packed => Some(work + MOVE * rhs),
        _ => None,
    }
}

/// The cost of a convolution in multiply-adds; `None` where it is left open how it is computed.
fn conv_cost(c: &Conv, values: &[i64]) -> Option<f64> {
    let (outputs, taps) = (numel(&c.output), numel(&c.kernel));
    let images = [&c.batch, &c.groups];
    let columns = product(
        values,
        &[images[0], images[1], &c.in_channels, &taps, &outputs],
    );
    let work = columns * product(values, &[&c.out_channels]);
    // Additions of the transforms of a tile with so many results, an input and an output channel.
    let tiles = |results: f64, x: f64, y: f64| {
        let tiles = product(values, &[images[0], images[1], &outputs]) / results;
        tiles * (x * product(values, &[&c.in_channels]) + y * product(values, &[&c.out_channels]))
    };
    match c.algorithm {
        Algorithm::Columns => Some(work + MOVE * columns),
        Algorithm::Direct | Algorithm::Depthwise => Some(work),
        Algorithm::Winograd2 => Some(work * 16.0 / 36.0 + tiles(4.0, 32.0, 24.0)),
        Algorithm::Winograd4 => Some(work * 36.0 / 144.0 + tiles(16.0, 156.0, 100.0)),
        Algorithm::Fft => {
            let channels = [&c.in_channels, &c.out_channels].map(|d| product(values, &[d]) as i64);
            let image = c.fft_tile(values)?.cost(channels);
            Some(image * product(values, &images))
        }
        _ => None,
    }
}
