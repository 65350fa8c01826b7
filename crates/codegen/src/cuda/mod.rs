//! Kernel IR and library kernels printed in CUDA C++.
//!
//! What the CPU runs as one launch may be several here, with memory between them (partial results of a
//! split reduction, passes of a sort).

use crate::program::Launch;
use kiln_base::cuda::CudaKernel;
use kiln_base::plan::Kernel;
use kiln_base::{DType, Dim};

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
    #[expect(dead_code, reason = "no printed launch needs scratch memory yet")]
    Scratch(usize),
}

/// A launch that was made for the CPU, in CUDA C++.
///
/// # Errors
/// What is not supported.
pub(crate) fn print(launch: &Launch) -> Result<Printed, String> {
    match &launch.kernel {
        Kernel::Tile(_) => Err("fused kernels have no CUDA printer yet".into()),
        other => Err(format!("{} has no CUDA kernel yet", other.name())),
    }
}
