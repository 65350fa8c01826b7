//! Kernels of a plan, linked for known sizes: the one place that tells their kinds apart.

use super::control::{If, Loop};
use super::work::{Link, Sizes, Work};
use crate::attention::Attention;
use crate::conv::Conv;
use crate::cuda;
use crate::custom::Custom;
use crate::error::{Result, damaged};
use crate::matmul::MatMul;
use crate::scan::Scan;
use crate::scatter::Scatter;
use crate::simd::Level;
use crate::sort::ArgSort;
use crate::tile;
use crate::tile::affine::{Affine, Limit, Proof, extent, prove};
use kiln_plan::{Contract, Kernel, Reach};
use std::sync::Arc;

/// What kernels are linked for.
pub(super) struct Linker<'a> {
    pub level: Level,
    pub gpu: Option<&'a Arc<cuda::Device>>,
}

impl Link for Linker<'_> {
    fn gpu(&self) -> Option<&Arc<cuda::Device>> {
        self.gpu
    }

    fn link(
        &self,
        kernel: &Kernel,
        contract: &Contract,
        sizes: Sizes<'_>,
        launch: Option<&Arc<cuda::Launch>>,
    ) -> Result<Arc<dyn Work>> {
        let (Sizes { values, lens }, level) = (sizes, self.level);
        for reach in kernel.reaches() {
            within(kernel.name(), &reach, values, lens)?;
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
            (Kernel::Custom(c), None) => Arc::new(Custom::new(c, values, lens)?),
            (Kernel::Custom(c), Some(device)) => Custom::new(c, values, lens)?.on_gpu(device)?,
            (_, Some(_)) => return Err(damaged!("{name} is a CPU kernel in a plan for a GPU")),
            (Kernel::Tile(p), None) => {
                let bound = tile::bind(p, values, lens)?;
                Arc::new(tile::link(&bound, level)?)
            }
            (Kernel::MatMul(m), None) => Arc::new(MatMul::new(m, values, lens, level)?),
            (Kernel::Conv(c), None) => Arc::new(Conv::new(c, values, lens, level)?),
            (Kernel::Attention(a), None) => Arc::new(Attention::new(a, values, lens, level)?),
            (Kernel::Scan(s), None) => Arc::new(Scan::new(s, values, level)?),
            (Kernel::ArgSort(s), None) => Arc::new(ArgSort::new(s, values, level)?),
            (Kernel::Scatter(s), None) => Arc::new(Scatter::new(s, values, level)?),
        })
    }
}

/// Errs unless all that a kernel touches of an argument is there.
fn within(name: &str, reach: &Reach, values: &[i64], lens: &[i64]) -> Result<()> {
    let extents = reach.extents.iter().map(|d| extent(d, values));
    let extents: Vec<i64> = extents.collect::<Result<_>>()?;
    let rank = extents.len();
    let address = Affine::new(&reach.offset, &reach.strides, rank, values)?;
    let limits = reach.bounds.iter().map(|b| Limit::new(b, rank, values));
    let limits: Vec<Limit> = limits.collect::<Result<_>>()?;
    let len = lens.get(usize::from(reach.arg)).copied().unwrap_or(0);
    match prove(&address, &limits, &extents, len) {
        Proof::Inside => Ok(()),
        // What conditions leave of an access is not always known: these are the code's to hold.
        Proof::Unknown if !limits.is_empty() => Ok(()),
        Proof::Unknown => Err(damaged!("{name} is larger than argument {}", reach.arg)),
    }
}
