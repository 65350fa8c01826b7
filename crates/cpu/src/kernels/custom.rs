//! Calls of registered operators.

use kiln_base::custom::{self, ArrayView, ArrayViewMut};
use kiln_kernel::custom::Custom;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::failures::Failure;
use kiln_kernel::work::{Call, LinkedKernel};

/// A user's kernel on the CPU.
pub(super) struct CustomWork(pub Custom);

impl LinkedKernel for CustomWork {
    unsafe fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        // SAFETY: linked for arguments of these lengths; nobody else touches the result.
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

impl CustomWork {
    /// Runs the user's kernel on this thread; the text of an error describes the failure.
    ///
    /// # Safety
    /// Each argument is aligned memory of the length that `new` was told, bools are 0 or 1, and
    /// nothing else touches the result's memory meanwhile.
    pub unsafe fn run(&self, args: &[*mut u8]) -> std::result::Result<(), String> {
        let inputs = self.0.operands.iter().map(|a| {
            // SAFETY: as promised by the caller; nobody writes operands.
            let bytes = unsafe { std::slice::from_raw_parts(args[a.arg], a.bytes) };
            ArrayView::new(a.dtype, &a.shape, bytes)
        });
        let inputs: Vec<ArrayView<'_>> = inputs.collect();
        // SAFETY: as promised by the caller.
        let out = unsafe { std::slice::from_raw_parts_mut(args[self.0.out.arg], self.0.out.bytes) };
        out.fill(0);
        let mut out = ArrayViewMut::new(self.0.out.dtype, &self.0.out.shape, out);
        let kernel = self.0.kernels.cpu(self.0.kernel.as_deref())?;
        custom::run(&*kernel, &inputs, &mut out)
    }
}
