//! Calls of registered operators.

use kiln_base::custom::{self, ArrayView, ArrayViewMut};
use kiln_kernel::custom::Custom;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failure;
use kiln_kernel::view::Arguments;
use kiln_kernel::work::{Call, LinkedKernel};

/// A user's kernel on the CPU.
pub(super) struct CustomWork(pub Custom);

impl LinkedKernel for CustomWork {
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        let result = self.run(&call.args);
        result.map_err(|text| call.error(text))?;
        Ok(None)
    }
}

impl CustomWork {
    /// Runs the user's kernel on this thread. The error is the text of the failure.
    fn run(&self, args: &Arguments) -> std::result::Result<(), String> {
        let bytes = |a: usize, len: usize| args.view::<u8>(a).slice(0, len as i64);
        let inputs = self.0.operands.iter();
        let inputs = inputs.map(|a| ArrayView::new(a.dtype, &a.shape, bytes(a.arg, a.bytes)));
        let inputs: Vec<ArrayView<'_>> = inputs.collect();
        let mut out = args.view_mut(self.0.out.arg);
        let out = out.slice_mut(0, self.0.out.bytes as i64);
        out.fill(0);
        let mut out = ArrayViewMut::new(self.0.out.dtype, &self.0.out.shape, out);
        let kernel = self.0.kernels.cpu(self.0.kernel.as_deref())?;
        custom::run(&*kernel, &inputs, &mut out)
    }
}
