//! Kernel IR and library kernels printed in CUDA C++.
//!
//! What the CPU runs as one launch may be several here, with memory between them (partial results of a
//! split reduction, passes of a sort).

use crate::kir;
use crate::program::Launch;
use kiln_base::cuda::CudaKernel;
use kiln_base::plan::Kernel;
use kiln_base::{DType, Dim};

mod beside;
mod families;
mod parts;
mod points;
mod rows;
mod rows_shape;
mod scalar;
mod source;
mod values;
mod vector;
mod walk;

pub use beside::{fit_in_a_launch, shares_a_launch, side_by_side};

/// A launch in CUDA C++.
#[derive(Debug, Default)]
pub(crate) struct Printed {
    /// What runs, in order.
    pub steps: Vec<Step>,
    /// Memory that only these steps use: dtype and shape.
    pub scratch: Vec<(DType, Vec<Dim>)>,
    /// Pairs (read argument, written argument) of the launch that may share memory.
    pub in_place: Vec<(usize, usize)>,
}

/// One kernel call.
#[derive(Debug)]
pub(crate) struct Step {
    pub kernel: CudaKernel,
    /// One for each of the kernel's arguments.
    pub args: Vec<Slot>,
    /// For each of the kernel's sites its position among the launch's.
    pub sites: Vec<usize>,
}

/// What a kernel argument is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// An argument of the launch.
    Arg(usize),
    /// One of [`Printed::scratch`].
    Scratch(usize),
}

/// A launch that was made for the CPU, in CUDA C++.
///
/// # Errors
/// What is not supported.
pub(crate) fn print(launch: &Launch) -> Result<Printed, String> {
    match (&launch.kernel, &launch.kir) {
        (Kernel::Tile(_), Some(kernel)) => fused(kernel, &launch.in_place),
        _ => families::print(launch),
    }
}

/// A kernel that the Kernel IR says everything about.
fn fused(kernel: &kir::Kernel, in_place: &[(usize, usize)]) -> Result<Printed, String> {
    let (kernel, in_place) = match kernel.inner.is_empty() {
        true => (points::print(kernel, in_place), in_place.to_vec()),
        false => rows::print(kernel, in_place),
    };
    Ok(Printed {
        steps: vec![whole(kernel)],
        scratch: Vec::new(),
        in_place,
    })
}

/// A step that takes what the launch takes.
fn whole(kernel: CudaKernel) -> Step {
    Step {
        args: (0..kernel.args.len()).map(Slot::Arg).collect(),
        sites: (0..kernel.sites as usize).collect(),
        kernel,
    }
}
