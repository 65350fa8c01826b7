//! The results of modules within a model.

use crate::{Forward, Hookable, Module, Output};
use kiln_tensor::{Error, Flat, HookHandles, Nest, Result, Tensor};
use std::sync::{Arc, Mutex};
use std::thread;

/// Returns the result of a model, and the results of the modules at some paths within it: all tensors that each
/// module's last call returned, in order.
///
/// ```
/// use kiln_nn::{Linear, Tanh, extract, sequential};
/// use kiln_tensor::{DType, Tensor};
/// let model = sequential!["body": Linear::new(3, 16), "act": Tanh::new(), "head": Linear::new(16, 1)]?;
/// let x = Tensor::ones([5, 3], DType::F32);
/// let (y, [body, act]) = extract(&model, ["body", "act"], &x)?;
/// assert_eq!((y.shape()?, body[0].shape()?, act[0].shape()?), (vec![5, 1], vec![5, 16], vec![5, 16]));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// The second result of a [`MultiheadAttention`](crate::MultiheadAttention) is its attention map.
///
/// ```
/// use kiln_nn::{AttentionMasks, Forward, MultiheadAttention, extract, module};
/// use kiln_tensor::{DType, Result, Tensor};
/// module!(struct Block(width: usize) { attention: MultiheadAttention = MultiheadAttention::new(width, 2) });
/// impl Forward for Block {
///     fn forward(&self, x: Tensor) -> Result<Tensor> {
///         let (y, _) = self.attention.call((&x, &x, &x));
///         Ok(x + y)
///     }
/// }
/// let x = Tensor::ones([3, 7, 8], DType::F32);
/// let (_, [attention]) = extract(&Block::new(8)?, ["attention"], &x)?;
/// assert_eq!(attention[1].dims().len(), 3);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If there is no module at a path, it holds no hooks, or the model does not call it.
#[track_caller]
pub fn extract<I: Nest<Owned = I> + 'static, O: Output + 'static, const N: usize>(
    model: &impl Forward<I, O>,
    paths: [&str; N],
    input: impl Nest<Owned = I>,
) -> Result<(O, [Vec<Tensor>; N])> {
    let thread_id = thread::current().id();
    let results: Arc<Mutex<Vec<Option<Vec<Tensor>>>>> = Arc::new(Mutex::new(vec![None; N]));
    let mut hooks = HookHandles::default();
    for (i, path) in paths.iter().enumerate() {
        let results = results.clone();
        let see = move |_: &dyn Module, _: &[Tensor], y: &[Tensor]| {
            if thread::current().id() == thread_id {
                results.lock().unwrap_or_else(|e| e.into_inner())[i] = Some(y.to_vec());
            }
        };
        hooks
            .0
            .push(model.get_submodule(path)?.register_forward_hook(see)?);
    }
    let y = model.call(input);
    drop(hooks);
    let mut results = results.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(e) = Flat::of(&y).tensors().iter().find_map(|t| t.error()) {
        return Err(e.clone());
    }
    if let Some(i) = results.iter().position(Option::is_none) {
        let message = format!("{} does not call {:?}", model.name(), paths[i]);
        return Err(Error::invalid("extract", message));
    }
    // Every result was found above.
    let outputs = std::array::from_fn(|i| results[i].take().unwrap_or_default());
    Ok((y, outputs))
}
