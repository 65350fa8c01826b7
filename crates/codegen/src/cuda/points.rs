//! Kernels without reductions: one thread per point, or per vector of points.

use super::job::Job;
use super::source::Index;
use super::values::Values;
use super::vector::Vector;
use super::walk;
use crate::kir::Kernel;
use kiln_base::numel;
use kiln_plan::cuda::{Blocks, CudaKernel};

/// The number of threads of a block.
const THREADS: u32 = 256;

/// The maximum number of values that a thread defines if its points exceed 16 bytes.
const MAX_DEFINED_VALUES: usize = 256;

/// Returns the default vector of points per thread; with `all` also each other width, up to two vectors of 16 bytes.
pub(super) fn shapes(kernel: &Kernel, all: bool) -> Vec<Vector> {
    let default = match kernel.axes.len() {
        0 => Vector::scalar(kernel),
        n => Vector::along(kernel, n - 1),
    };
    let width = default.width;
    let mut shapes = vec![default];
    if all && let Some(axis) = kernel.axes.len().checked_sub(1) {
        let vector = |width| Vector::of_width(kernel, axis, width);
        let wider =
            Some(2 * width).filter(|w| *w as usize * kernel.body.len() <= MAX_DEFINED_VALUES);
        shapes.extend(wider.and_then(vector));
        let narrower = (1..width.ilog2()).map(|halved| width >> halved);
        shapes.extend(narrower.filter_map(vector));
        shapes.extend((width > 1).then(|| Vector::scalar(kernel)));
    }
    shapes
}

/// Emits the kernel, with fast math if `fast`.
pub(super) fn emit(job: Job, kernel: &Kernel, vector: &Vector, fast: bool) -> CudaKernel {
    let mut source = job.source(kernel, &job.in_place);
    let index = source.index;
    let mut values = Values::new(kernel);
    values.fast = fast;
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
    walk::emit(&mut source, &mut values, kernel, vector);
    let grid = Blocks {
        points,
        each: THREADS * vector.width,
    };
    source.finish([grid, Blocks::one(), Blocks::one()], [THREADS, 1, 1])
}
