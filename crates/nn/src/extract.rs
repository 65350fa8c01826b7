//! The results of modules within a model.

use crate::{Forward, Hookable, Module, Output};
use kiln_tensor::{Error, Flat, HookHandle, Nest, Result, Tensor};
use std::sync::{Arc, Mutex};
use std::thread;

/// Returns the result of a model, and the results of the modules at some paths within it: the first tensor of each
/// module's last call.
///
/// ```
/// use kiln_nn::{Linear, Tanh, extract, sequential};
/// use kiln_tensor::{DType, Tensor};
/// let model = sequential!["body": Linear::new(3, 16), "act": Tanh::new(), "head": Linear::new(16, 1)]?;
/// let x = Tensor::ones([5, 3], DType::F32);
/// let (y, [body, act]) = extract(&model, ["body", "act"], &x)?;
/// assert_eq!((y.shape()?, body.shape()?, act.shape()?), (vec![5, 1], vec![5, 16], vec![5, 16]));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If there is no module at a path, it has no place for hooks, or the model does not call it.
#[track_caller]
pub fn extract<I: Nest<Owned = I> + 'static, O: Output + 'static, const N: usize>(
    model: &impl Forward<I, O>,
    paths: [&str; N],
    input: impl Nest<Owned = I>,
) -> Result<(O, [Tensor; N])> {
    /// Removes the hooks, whatever happens.
    struct Registered(Vec<HookHandle>);
    impl Drop for Registered {
        fn drop(&mut self) {
            self.0.iter().for_each(HookHandle::remove);
        }
    }
    let here = thread::current().id();
    let found: Arc<Mutex<Vec<Option<Tensor>>>> = Arc::new(Mutex::new(vec![None; N]));
    let mut hooks = Registered(Vec::new());
    for (i, path) in paths.iter().enumerate() {
        let found = found.clone();
        let see = move |_: &dyn Module, _: &[Tensor], y: &[Tensor]| {
            if thread::current().id() == here {
                found.lock().unwrap_or_else(|e| e.into_inner())[i] = y.first().cloned();
            }
        };
        hooks
            .0
            .push(model.get_submodule(path)?.register_forward_hook(see)?);
    }
    let y = model.call(input);
    drop(hooks);
    let mut found = found.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(e) = Flat::of(&y).tensors().iter().find_map(|t| t.error()) {
        return Err(e.clone());
    }
    if let Some(i) = found.iter().position(Option::is_none) {
        let message = format!("{} does not call {:?}", model.name(), paths[i]);
        return Err(Error::invalid("extract", message));
    }
    let mut tensors = found.drain(..).flatten();
    // Every result was found above.
    let none = || Tensor::from_error(Error::invalid("extract", "no result"));
    Ok((
        y,
        std::array::from_fn(|_| tensors.next().unwrap_or_else(none)),
    ))
}
