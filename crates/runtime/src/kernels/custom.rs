//! Calls of registered operators.

use super::work::{Call, Work};
use crate::cuda::{Launch, Loader};
use crate::error::{Error, Result, damaged};
use crate::tile::Failure;
use kiln_base::DType;
use kiln_base::custom::{self, ArrayView, ArrayViewMut, CustomKernels, find};
use kiln_plan as plan;
use std::sync::Arc;

/// A call with known sizes.
pub(crate) struct Custom {
    name: String,
    /// Which of the kernels, where it is not the operator's own.
    kernel: Option<String>,
    kernels: Arc<CustomKernels>,
    operands: Vec<Array>,
    out: Array,
}

impl Work for Custom {
    unsafe fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        // SAFETY: linked for arguments of these lengths, of which nobody else touches the result.
        let done = unsafe { self.run(call.args) };
        done.map_err(|text| {
            let site = call.step_sites.first();
            let site = site.and_then(|s| call.sites.get(*s as usize));
            Error::Custom {
                op: site.map_or_else(String::new, |s| s.op.clone()),
                text,
                node: site.map_or(0, |s| s.node),
            }
        })?;
        Ok(None)
    }
}

pub(crate) struct Array {
    pub(crate) arg: usize,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    bytes: usize,
}

/// The kernels that a plan calls by this name.
///
/// # Errors
/// [`Error::NotRegistered`].
pub(crate) fn registered(name: &str) -> Result<Arc<CustomKernels>> {
    find(name).map_err(Error::NotRegistered)
}

impl Custom {
    /// `lens` are the elements of each argument.
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
            kernels: registered(&p.name)?,
            operands: p.operands.iter().map(array).collect::<Result<_>>()?,
            out: array(&p.out)?,
        })
    }

    /// The user's kernel for a GPU.
    ///
    /// # Errors
    /// [`Error::Cuda`] if there is none or it can't be compiled.
    pub fn on_gpu(&self, loader: &Loader) -> Result<Arc<Launch>> {
        let function = self.kernels.cuda(self.kernel.as_deref());
        let function = function.map_err(Error::Cuda)?;
        Launch::custom(loader, &self.name, &function, &self.operands, &self.out)
    }

    /// Runs the user's kernel on this thread; the text says how it failed.
    ///
    /// # Safety
    /// Each argument is aligned memory of the length that `new` was told, bools are 0 or 1, and
    /// nothing else touches the result's memory meanwhile.
    pub unsafe fn run(&self, args: &[*mut u8]) -> std::result::Result<(), String> {
        let inputs = self.operands.iter().map(|a| {
            // SAFETY: as promised by the caller; nobody writes operands.
            let bytes = unsafe { std::slice::from_raw_parts(args[a.arg], a.bytes) };
            ArrayView::new(a.dtype, &a.shape, bytes)
        });
        let inputs: Vec<ArrayView<'_>> = inputs.collect();
        // SAFETY: as promised by the caller.
        let out = unsafe { std::slice::from_raw_parts_mut(args[self.out.arg], self.out.bytes) };
        out.fill(0);
        let mut out = ArrayViewMut::new(self.out.dtype, &self.out.shape, out);
        let kernel = self.kernels.cpu(self.kernel.as_deref())?;
        custom::run(&*kernel, &inputs, &mut out)
    }
}
