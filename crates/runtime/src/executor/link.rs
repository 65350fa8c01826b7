//! Kernels of a plan, linked for known sizes: the one place that tells their kinds apart.

use super::control::{If, Loop};
use super::work::Work;
use crate::attention::Attention;
use crate::conv::Conv;
use crate::cuda;
use crate::custom::Custom;
use crate::error::{Error, Result, damaged};
use crate::matmul::MatMul;
use crate::scan::Scan;
use crate::scatter::Scatter;
use crate::simd::Level;
use crate::sort::ArgSort;
use crate::tile;
use crate::tile::affine::{Affine, Limit, Proof, eval, extent, prove};
use kiln_base::DType;
use kiln_base::prim::{ScanKind, ScatterKind};
use kiln_plan::{Contract, Kernel, Reach};
use std::sync::Arc;

/// What kernels are linked with.
#[derive(Copy, Clone)]
pub(super) struct Linker<'a> {
    /// The values of symbols.
    pub values: &'a [i64],
    pub level: Level,
    pub gpu: Option<&'a Arc<cuda::Device>>,
}

impl Linker<'_> {
    /// Links a kernel whose arguments have these lengths in elements; `launch` is a CUDA kernel's.
    pub fn link(
        &self,
        kernel: &Kernel,
        contract: &Contract,
        lens: &[i64],
        launch: Option<&Arc<cuda::Launch>>,
    ) -> Result<Arc<dyn Work>> {
        let (values, level) = (self.values, self.level);
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
            (Kernel::Loop(l), _) => Arc::new(Loop::new(l, values, &bytes(), (level, self.gpu))?),
            (Kernel::If(i), _) => Arc::new(If::new(i, values, &bytes(), (level, self.gpu))?),
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
    let limits = reach.bounds.iter().map(|b| {
        Ok(Limit {
            value: Affine::new(&b.offset, &b.strides, rank, values)?,
            extent: eval(&b.extent, values)?,
        })
    });
    let limits: Vec<Limit> = limits.collect::<Result<_>>()?;
    let len = lens.get(usize::from(reach.arg)).copied().unwrap_or(0);
    match prove(&address, &limits, &extents, len) {
        Proof::Inside => Ok(()),
        // What conditions leave of an access is not always known: these are the code's to hold.
        Proof::Unknown if !limits.is_empty() => Ok(()),
        Proof::Unknown => Err(damaged!("{name} is larger than argument {}", reach.arg)),
    }
}

/// Errs unless there is code for a kernel of these dtypes.
pub(super) fn supported(kernel: &Kernel) -> Result<()> {
    let narrow = |d: DType| matches!(d, DType::Bool | DType::F16 | DType::BF16);
    let (dtype, there_is) = match kernel {
        Kernel::MatMul(m) => (m.dtype, matches!(m.dtype, DType::F32 | DType::F64)),
        Kernel::Conv(c) => (c.dtype, matches!(c.dtype, DType::F32 | DType::F64)),
        Kernel::Attention(a) => {
            let mask = a.mask.as_ref().map(|m| m.1);
            let mask = mask.is_none_or(|m| m == DType::F32 || m == DType::Bool);
            (a.dtype, a.dtype == DType::F32 && mask)
        }
        Kernel::Scan(s) => {
            let kind = s.dtype.is_float() || s.kind != ScanKind::LogSumExp;
            (
                s.dtype,
                s.dtype.computes() && s.dtype != DType::Bool && kind,
            )
        }
        Kernel::ArgSort(s) => (s.dtype, s.dtype.computes()),
        Kernel::Scatter(s) => {
            let adds = matches!(s.kind, ScatterKind::Sum | ScatterKind::Prod);
            let computes = s.dtype.computes() && !(adds && narrow(s.dtype));
            (s.dtype, s.kind == ScatterKind::Set || computes)
        }
        Kernel::Custom(c) => return crate::custom::registered(&c.name).map(|_| ()),
        Kernel::Tile(_) | Kernel::Loop(_) | Kernel::If(_) | Kernel::Cuda(_) => return Ok(()),
    };
    match there_is {
        true => Ok(()),
        false => Err(damaged!("a {} of {dtype}", kernel.name())),
    }
}

/// Why a custom op can't run, at its site.
pub(super) fn at_site(site: Option<&kiln_plan::Site>, e: Error) -> Error {
    match (site, e) {
        (Some(site), Error::Cuda(text)) => Error::Custom {
            op: site.op.clone(),
            text,
            node: site.node,
        },
        (_, e) => e,
    }
}
