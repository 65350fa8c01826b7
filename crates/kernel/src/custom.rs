//! Calls of registered operators with known sizes.

use crate::damaged;
use crate::error::{Error, Result};
use kiln_base::DType;
use kiln_base::custom::{CustomKernels, find};
use kiln_plan as plan;
use std::sync::Arc;

/// A call with known sizes.
pub struct Custom {
    pub name: String,
    /// The name of the kernel, if it is not the operator's own.
    pub kernel: Option<String>,
    pub kernels: Arc<CustomKernels>,
    pub operands: Vec<Array>,
    pub out: Array,
}

/// An array argument.
pub struct Array {
    pub arg: usize,
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: usize,
}

/// Finds the kernels of an operator by name.
///
/// # Errors
/// [`Error::NotRegistered`].
pub fn find_registered(name: &str) -> Result<Arc<CustomKernels>> {
    find(name).map_err(Error::NotRegistered)
}

impl Custom {
    /// Binds a call; `lens` are the lengths of the arguments.
    pub fn new(p: &plan::Custom, values: &[i64], lens: &[i64]) -> Result<Custom> {
        let array = |a: &plan::Array| {
            let dims = a.shape.iter().map(|d| d.eval_checked(values));
            let shape: Option<Vec<i64>> = dims.map(|d| d.filter(|d| *d >= 0)).collect();
            let shape = shape.ok_or_else(|| damaged!("{} has a dim without a size", p.name))?;
            let len = shape.iter().try_fold(1i64, |n, d| n.checked_mul(*d));
            if len.is_none() || len != lens.get(a.arg as usize).copied() {
                return Err(damaged!(
                    "{} takes {shape:?} in a buffer of another size",
                    p.name
                ));
            }
            Ok(Array {
                arg: a.arg as usize,
                dtype: a.dtype,
                bytes: len.unwrap_or(0) as usize * a.dtype.size(),
                shape: shape.into_iter().map(|d| d as usize).collect(),
            })
        };
        Ok(Custom {
            name: p.name.clone(),
            kernel: p.kernel.clone(),
            kernels: find_registered(&p.name)?,
            operands: p.operands.iter().map(array).collect::<Result<_>>()?,
            out: array(&p.out)?,
        })
    }
}
