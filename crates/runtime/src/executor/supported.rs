//! Which kernels there is code for on the CPU.

use crate::custom::registered;
use crate::error::{Result, damaged};
use kiln_base::DType;
use kiln_base::prim::{ScanKind, ScatterKind};
use kiln_plan::Kernel;

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
        Kernel::Custom(c) => return registered(&c.name).map(|_| ()),
        Kernel::Tile(_) | Kernel::Loop(_) | Kernel::If(_) | Kernel::Cuda(_) => return Ok(()),
    };
    match there_is {
        true => Ok(()),
        false => Err(damaged!("a {} of {dtype}", kernel.name())),
    }
}
