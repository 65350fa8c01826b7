//! The interface of linking that binding uses.

use kiln_cuda as cuda;
use kiln_kernel::error::Result;
use kiln_kernel::work::{LinkedKernel, Sizes};
use kiln_plan::{Contract, Kernel};
use std::sync::Arc;

/// Links kernels to work, for a CPU or a GPU. The kernels of a program that a step runs are linked by the same
/// linker.
pub(super) trait Link {
    /// The GPU.
    fn gpu(&self) -> Option<&cuda::Loader>;

    /// Links a kernel; `launch` is given for a CUDA kernel.
    fn link(
        &self,
        kernel: &Kernel,
        contract: &Contract,
        sizes: Sizes<'_>,
        launch: Option<&Arc<cuda::Launch>>,
    ) -> Result<Arc<dyn LinkedKernel>>;
}
