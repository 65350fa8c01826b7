//! Trading time for memory: forward values that a backward pass computes again.

use crate::{Nest, Tensor, is_grad_enabled};
use kiln_lazy::caller::user_line;
use kiln_lazy::grad::again::again;
use kiln_lazy::{Handle, body};
use std::panic::Location;

/// `f(inputs)`, of which a backward pass keeps the inputs alone: it records what `f` recorded once more,
/// behind the gradient of the result (`torch.utils.checkpoint.checkpoint`). Random numbers and what was
/// read of `Var`s are the same in both; what `f` assigned to a `Var` is assigned once.
///
/// ```
/// use kiln_tensor::{DType, Tensor, checkpoint};
/// let x = Tensor::ones([2, 3], DType::F32).requires_grad_(true);
/// let y = checkpoint(|x: Tensor| (x.exp() + 1.0).sin(), x.clone());
/// y.sum(()).backward()?;
/// assert!(x.grad().is_some());
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn checkpoint<I: Nest, T: Nest>(f: impl FnOnce(I) -> T, inputs: I) -> T {
    let loc = user_line(Location::caller());
    let given = inputs.tensors();
    // A loop that a body stands in decides itself what to keep.
    if !is_grad_enabled() || body::is_tracing() || given.iter().any(|t| t.error().is_some()) {
        return f(inputs);
    }
    let handles: Vec<Handle> = given.iter().map(|t| t.handle.clone()).collect();
    let named = |(handle, t): (Handle, Tensor)| Tensor { handle, ..t };
    let run = |leaves: &[Handle]| {
        let mut leaves = leaves.iter().cloned().zip(given.clone()).map(named);
        let result = f(inputs.with(&mut leaves));
        let outputs = result.tensors().into_iter().map(|t| t.handle);
        let outputs: Vec<Handle> = outputs.collect();
        (result, outputs)
    };
    let (result, outputs) = again(&handles, loc, run);
    result.with(&mut outputs.into_iter().map(Tensor::from))
}
