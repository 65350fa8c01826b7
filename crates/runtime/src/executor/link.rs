//! Linking, as those see it who bind plans.

use kiln_cuda as cuda;
use kiln_kernel::error::Result;
use kiln_kernel::work::{Sizes, Work};
use kiln_plan::{Contract, Kernel};
use std::sync::Arc;

/// What makes work of kernels, for a CPU or a GPU. A program that a step runs is given what its own kernels are
/// linked by.
pub(super) trait Link {
    /// The GPU.
    fn gpu(&self) -> Option<&cuda::Loader>;

    /// Links a kernel; `launch` is a CUDA kernel's.
    fn link(
        &self,
        kernel: &Kernel,
        contract: &Contract,
        sizes: Sizes<'_>,
        launch: Option<&Arc<cuda::Launch>>,
    ) -> Result<Arc<dyn Work>>;
}
