//! Linking: each kernel of a plan becomes work of its engine.

use super::control::{If, Loop};
use super::link::Link;
use kiln_cpu as cpu;
use kiln_cuda as cuda;
use kiln_kernel::custom::Custom;
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::footprint;
use kiln_kernel::simd::Features;
use kiln_kernel::work::{LinkedKernel, Sizes};
use kiln_plan::{Contract, Kernel};
use std::sync::Arc;

/// Links for a level of the CPU, or for a GPU.
pub(super) struct Linker<'a> {
    pub level: Features,
    pub gpu: Option<&'a cuda::Loader>,
}

impl Link for Linker<'_> {
    fn gpu(&self) -> Option<&cuda::Loader> {
        self.gpu
    }

    fn link(
        &self,
        kernel: &Kernel,
        contract: &Contract,
        sizes: Sizes<'_>,
        launch: Option<&Arc<cuda::Launch>>,
    ) -> Result<Arc<dyn LinkedKernel>> {
        let Sizes { values, lens } = sizes;
        for footprint in kernel.footprints() {
            footprint::check(kernel.name(), &footprint, values, lens)?;
        }
        let bytes = || -> Vec<usize> {
            let sizes = contract.args.iter().map(|a| a.dtype.size());
            lens.iter()
                .zip(sizes)
                .map(|(n, s)| *n as usize * s)
                .collect()
        };
        let name = kernel.name();
        Ok(match (kernel, self.gpu) {
            (Kernel::Cuda(_), _) => match launch {
                Some(launch) => launch.clone(),
                None => return Err(damaged!("{name} is a GPU kernel in a plan for the CPU")),
            },
            (Kernel::Loop(l), _) => Arc::new(Loop::new(l, values, &bytes(), self)?),
            (Kernel::If(i), _) => Arc::new(If::new(i, values, &bytes(), self)?),
            (Kernel::Custom(c), Some(loader)) => {
                cuda::Launch::custom(loader, &Custom::new(c, values, lens)?)?
            }
            (Kernel::Library(product), Some(loader)) => {
                Arc::new(cuda::LibraryLaunch::new(loader, product)?)
            }
            (Kernel::Collective(c), Some(loader)) => {
                Arc::new(cuda::Collective::new(loader, c, values, lens)?)
            }
            (_, Some(_)) => return Err(damaged!("{name} is a CPU kernel in a plan for a GPU")),
            (_, None) => {
                let work = cpu::link(kernel, sizes, self.level)?;
                work.ok_or_else(|| damaged!("{name} is not a kernel of a CPU"))?
            }
        })
    }
}
