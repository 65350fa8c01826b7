//! Kernels of a plan, checked, and linked for known sizes: the one room that tells their kinds apart, a file each.

mod attention;
pub(crate) mod calls;
pub(crate) mod conv;
pub(crate) mod custom;
pub(crate) mod matmul;
mod reach;
mod scan;
mod scatter;
mod sort;
mod terms;
pub(crate) mod work;

use crate::cuda;
use crate::error::{Result, damaged};
use crate::executor::{If, Loop};
use crate::simd::Level;
use crate::tile;
use attention::{Attention, AttentionGrad};
use conv::Conv;
use custom::Custom;
use kiln_plan::{Contract, Kernel};
use matmul::MatMul;
use reach::within;
use scan::Scan;
use scatter::Scatter;
use sort::ArgSort;
use std::sync::Arc;
use work::{Link, Sizes, Work};

/// Errs unless there is code for a kernel of these dtypes on the CPU.
pub(crate) fn supported(kernel: &Kernel) -> Result<()> {
    let (dtype, computes) = match kernel {
        Kernel::MatMul(m) => (m.dtype(), MatMul::computes(m)),
        Kernel::Conv(c) => (c.dtype(), Conv::computes(c)),
        Kernel::Attention(a) => (a.scores.dtype, Attention::computes(a)),
        Kernel::AttentionGrad(a) => (a.scores.dtype, AttentionGrad::computes(a)),
        Kernel::Scan(s) => (s.dtype, Scan::computes(s)),
        Kernel::ArgSort(s) => (s.dtype, ArgSort::computes(s)),
        Kernel::Scatter(s) => (s.dtype, Scatter::computes(s)),
        Kernel::Custom(c) => return custom::registered(&c.name).map(|_| ()),
        Kernel::Tile(_) | Kernel::Loop(_) | Kernel::If(_) | Kernel::Cuda(_) => return Ok(()),
    };
    match computes {
        true => Ok(()),
        false => Err(damaged!("a {} of {dtype}", kernel.name())),
    }
}

/// What kernels are linked for.
pub(crate) struct Linker<'a> {
    pub level: Level,
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
                let mut linked = tile::link(&bound, level)?;
                let mut pieces = tile::pieces(p, values)?;
                if pieces.is_empty() {
                    pieces = tile::blocks(p, values)?;
                }
                linked.pieces = (pieces.iter())
                    .map(|piece| tile::link(&tile::bind(piece, values, lens)?, level))
                    .collect::<Result<_>>()?;
                Arc::new(linked)
            }
            (Kernel::MatMul(m), None) => Arc::new(MatMul::new(m, values, lens, level)?),
            (Kernel::Conv(c), None) => Arc::new(Conv::new(c, values, lens, level)?),
            (Kernel::Attention(a), None) => Arc::new(Attention::new(a, values, lens, level)?),
            (Kernel::AttentionGrad(a), None) => {
                Arc::new(AttentionGrad::new(a, values, lens, level)?)
            }
            (Kernel::Scan(s), None) => Arc::new(Scan::new(s, values, level)?),
            (Kernel::ArgSort(s), None) => Arc::new(ArgSort::new(s, values, level)?),
            (Kernel::Scatter(s), None) => Arc::new(Scatter::new(s, values, level)?),
        })
    }
}
