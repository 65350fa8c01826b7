//! Type promotion: PyTorch's rules, with Rust numbers as weak scalars.

use crate::Tensor;
use kiln_base::{DType, Kind, Scalar};
use kiln_ir::OpError;

/// The dtype that tensors promote to. Tensors of rank 0 count only where their kind is more general
/// than that of every tensor with dims (PyTorch's "dimensioned" rule).
pub(crate) fn common_dtype(tensors: &[&Tensor]) -> Result<DType, OpError> {
    let fold = |dimensioned: bool| {
        tensors
            .iter()
            .filter(|t| (t.ndim() > 0) == dimensioned)
            .map(|t| t.dtype())
            .try_fold(None, |a: Option<DType>, d| match a {
                None => Ok(Some(d)),
                Some(a) => promote(a, d).map(Some),
            })
    };
    match (fold(true)?, fold(false)?) {
        (Some(d), Some(z)) if z.kind() > d.kind() => promote(d, z),
        (Some(d), _) => Ok(d),
        (None, Some(z)) => Ok(z),
        (None, None) => Ok(DType::F32),
    }
}

fn promote(a: DType, b: DType) -> Result<DType, OpError> {
    a.promote(b).ok_or_else(|| {
        OpError::new(format!(
            "{a} and {b} do not promote to a common dtype; cast one of them"
        ))
    })
}

/// The dtype of an operation on a tensor and a number: only the kind of the number counts.
pub(crate) fn with_scalar(tensor: DType, number: Scalar) -> DType {
    if number.kind() <= tensor.kind() {
        return tensor;
    }
    match number.kind() {
        Kind::Bool => DType::Bool,
        Kind::Int => DType::I64,
        Kind::Float => DType::F32,
    }
}

/// The dtype that a function on floats computes in: integers and bool become f32.
pub(crate) fn float_dtype(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F32 }
}
