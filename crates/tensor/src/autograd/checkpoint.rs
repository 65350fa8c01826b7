//! Trading time for memory: forward values that a backward pass recomputes.

use crate::nest::{Flat, build};
use crate::{Nest, Returned, Tensor, is_grad_enabled};
use kiln_lazy::caller::user_line;
use kiln_lazy::grad::again::again;
use kiln_lazy::{Handle, body};
use std::panic::Location;

/// `f(inputs)`, of which a backward pass keeps only the inputs. It records the operations of `f` again, after the
/// gradient of the result (`torch.utils.checkpoint.checkpoint`). Random numbers and values read from `Var`s are the
/// same in both; assignments of `f` to `Var`s happen once. If `f` returns a `Result`, so does `checkpoint`.
///
/// ```
/// use kiln_tensor::{DType, Tensor, checkpoint};
/// let x = Tensor::ones([2, 3], DType::F32).requires_grad_(true);
/// let y = checkpoint(|x| (x.exp() + 1.0).sin(), &x);
/// y.sum(()).backward()?;
/// assert!(x.grad().is_some());
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn checkpoint<I: Nest, R: Returned>(
    f: impl FnOnce(I::Owned) -> R,
    inputs: I,
) -> R::Like<R::Nest> {
    let loc = user_line(Location::caller());
    let Flat { leaves, counts, .. } = Flat::of(&inputs);
    // A loop around a body decides itself which values to keep.
    if !is_grad_enabled() || body::is_tracing() || leaves.iter().any(|t| t.error().is_some()) {
        return R::like(f(build::<I, Tensor>(&counts, leaves)).into_result(), &[]);
    }
    let handles: Vec<Handle> = leaves.iter().map(|t| t.handle.clone()).collect();
    let named = |(handle, t): (Handle, Tensor)| Tensor { handle, ..t };
    let run = |handles: &[Handle]| {
        let leaves = handles.iter().cloned().zip(leaves).map(named);
        match f(build::<I, Tensor>(&counts, leaves)).into_result() {
            Ok(nest) => {
                let Flat { leaves, counts, .. } = Flat::of(&nest);
                (Ok(counts), leaves.into_iter().map(|t| t.handle).collect())
            }
            Err(e) => (Err(e), Vec::new()),
        }
    };
    let (result, outputs) = again(&handles, loc, run);
    match result {
        Ok(counts) => {
            let outputs = outputs.into_iter().map(Tensor::from);
            R::like(Ok(build::<R::Nest, Tensor>(&counts, outputs)), &counts)
        }
        Err(e) => R::like(Err(e), &[]),
    }
}
