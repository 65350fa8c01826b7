//! The candidates of a kernel, and what the cost model makes of them.

use super::search::Candidate;
use super::settings::Precision;
use kiln_base::{Dim, custom, numel};
use kiln_codegen::Launch;
use kiln_plan::{Algorithm, Conv, Images, Kernel, MatMul};

/// A size that stands for every large one.
const LARGE: i64 = 1 << 20;

/// The ways to compute a launch, each as a kernel with the same arguments; the first is the default, whatever
/// the kernel is computed by now. Those that need a size that is not known, or are too inaccurate, are not
/// among them. Empty if there is no choice, but for a convolution with channels last: how long it takes is for
/// the layout to know.
///
/// `fixed` says of each argument whether it depends on parameters alone: such weights are packed once.
pub fn candidates(
    launch: &Launch,
    symbols: usize,
    fixed: &[bool],
    precision: Precision,
    gpu: bool,
) -> Vec<(Candidate, Kernel)> {
    let values = super::key::typical(symbols);
    let kernel = &by_default(&launch.kernel, symbols, fixed);
    let mut list = vec![(candidate(kernel, &values, fixed), kernel.clone())];
    let tile = (launch.variants.first())
        .and_then(|_| kiln_runtime::tile_elements(kernel, &values).ok().flatten());
    for (name, other) in &launch.variants {
        // Of that size the tiles are anyway.
        if matches!(other, Kernel::Tile(p) if p.cut.tile.is_some_and(|t| Some(t.into()) == tile)) {
            continue;
        }
        let candidate = candidate(other, &values, fixed);
        let name = name.clone();
        list.push((Candidate { name, ..candidate }, other.clone()));
    }
    // Which sizes they can compute only the operator knows.
    if let (Kernel::Custom(c), 0) = (kernel, symbols) {
        for name in alternatives(&c.name, gpu) {
            let other = Kernel::Custom(kiln_plan::Custom {
                kernel: Some(name.clone()),
                ..c.clone()
            });
            list.push((candidate(&other, &values, fixed), other));
        }
    }
    for algorithm in algorithms(kernel, symbols, &values, fixed) {
        if algorithm.error_growth() > precision.growth() || kernel.algorithm() == Some(algorithm) {
            continue;
        }
        let other = with(kernel, algorithm);
        list.push((candidate(&other, &values, fixed), other));
    }
    if list.len() == 1 && !is_last(kernel) {
        list.clear();
    }
    list
}

/// Whether a kernel is a convolution with channels last.
pub(super) fn is_last(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Conv(c) if c.images != Images::ChannelsFirst)
}

/// The kernel by an algorithm, where it has several.
pub(super) fn with(kernel: &Kernel, by: Algorithm) -> Kernel {
    let mut kernel = kernel.clone();
    if let Some(algorithm) = kernel.algorithm_mut() {
        *algorithm = by;
    }
    kernel
}

/// The default, by its own name where sizes are known.
fn by_default(kernel: &Kernel, symbols: usize, fixed: &[bool]) -> Kernel {
    let mut kernel = with(kernel, Algorithm::Auto);
    if symbols == 0
        && let Some(named) = named(&kernel, &[], fixed)
    {
        kernel = with(&kernel, named);
    }
    if let Kernel::Custom(c) = &mut kernel {
        c.kernel = None;
    }
    kernel
}

/// Whether the weights of a convolution, or the right matrix of a product, depend on parameters alone.
pub(super) fn fixed_weights(kernel: &Kernel, fixed: &[bool]) -> bool {
    let arg = match kernel {
        Kernel::MatMul(m) => m.rhs.arg,
        Kernel::Conv(c) => c.operands[1],
        _ => return false,
    };
    fixed.get(usize::from(arg)) == Some(&true)
}

/// What a kernel is computed by: one name for algorithms that do the same.
pub(super) fn named(kernel: &Kernel, values: &[i64], fixed: &[bool]) -> Option<Algorithm> {
    let named = kiln_runtime::computed_by(kernel, values, fixed_weights(kernel, fixed));
    named.ok().flatten()
}

/// The names of the further kernels of a custom op.
fn alternatives(op: &str, gpu: bool) -> Vec<String> {
    custom::find(op).map_or_else(|_| Vec::new(), |kernels| kernels.alternatives(gpu))
}

/// The algorithms that are legal whatever values symbols have, and differ.
fn algorithms(kernel: &Kernel, symbols: usize, values: &[i64], fixed: &[bool]) -> Vec<Algorithm> {
    let mut legal = kernel.algorithms(values);
    if symbols > 0 {
        for extreme in [2, LARGE] {
            let also = kernel.algorithms(&vec![extreme; symbols]);
            legal.retain(|a| also.contains(a));
        }
    }
    legal.retain(|a| named(&with(kernel, *a), values, fixed).is_none_or(|name| name == *a));
    legal
}

fn candidate(kernel: &Kernel, values: &[i64], fixed: &[bool]) -> Candidate {
    let (name, predicted) = match kernel {
        Kernel::MatMul(m) => {
            let cost = matmul_cost(m, values, fixed_weights(kernel, fixed));
            (m.algorithm.to_string(), cost)
        }
        Kernel::Conv(_) if is_last(kernel) => ("channels_last".into(), None),
        Kernel::Conv(c) => (c.algorithm.to_string(), conv_cost(c, values)),
        Kernel::Custom(c) => (c.kernel.clone().unwrap_or_else(|| "default".into()), None),
        _ => ("default".into(), None),
    };
    // Of the machine's threads: how many of them are in use must not decide what may be chosen.
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    // What is impossible fails when it is tried.
    let workspace = kiln_runtime::workspace(kernel, values, threads);
    Candidate {
        name,
        workspace: workspace.ok().flatten().unwrap_or(0) as u64,
        predicted,
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
