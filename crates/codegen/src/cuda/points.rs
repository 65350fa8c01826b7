//! Kernels without reductions: a thread a point, or a vector of them.

use super::source::{Index, Source};
use super::values::Values;
use super::vector::Vector;
use super::walk::Walk;
use crate::kir::{Kernel, Val};
use crate::tile::Step;
use kiln_base::cuda::{Blocks, CudaKernel};
use kiln_base::numel;

/// Threads of a block.
const THREADS: u32 = 256;

/// The kernel, with pairs of arguments that may share memory.
pub(super) fn print(kernel: &Kernel, in_place: &[(usize, usize)]) -> CudaKernel {
    let vector = match kernel.axes.len() {
        0 => Vector::scalar(kernel),
        n => Vector::along(kernel, n - 1),
    };
    let index = Values::index_type(kernel);
    let mut source = Source::new(&kernel.name, &kernel.args, kernel.sites, index);
    for (a, b) in in_place {
        source.share(*a, *b);
    }
    let mut values = Values::new(kernel);
    let points = numel(&kernel.axes);
    let thread = match index {
        Index::Int => format!("(int)(blockIdx.x * {THREADS} + threadIdx.x)"),
        Index::Long => format!("(long long)blockIdx.x * {THREADS} + threadIdx.x"),
    };
    let step = match vector.width {
        1 => String::new(),
        w => format!(" * {w}"),
    };
    let thread = if step.is_empty() {
        thread
    } else {
        format!("({thread}){step}")
    };
    source.line(format!("const {} p = {thread};", index.name()));
    let end = source.dim(&points);
    source.line(format!("if (p >= {end}) return;"));
    values.decompose(&mut source, "p");
    let defs: Vec<Step> = (0..kernel.body.len() as u32)
        .map(|v| Step::Compute(Val(v)))
        .collect();
    let walk = Walk {
        kernel,
        vector: &vector,
        defs: &defs,
        stores: &kernel.stores,
        keeps: &vec![false; kernel.body.len()],
        live: false,
    };
    walk.print(&mut source, &mut values);
    let grid = Blocks {
        points,
        each: THREADS * vector.width,
    };
    source.finish([grid, Blocks::one(), Blocks::one()], [THREADS, 1, 1], 0)
}
