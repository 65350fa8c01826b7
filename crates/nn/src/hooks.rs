//! Functions that observe the calls, gradients and states of a module.

use crate::members::{Backward, Gradients, Hook, Registered, Replacement};
use crate::{LoadReport, Module, StateDict};
use kiln_tensor::{Error, Flat, HookHandle, Nest, Result, Tensor, watch_gradients};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

impl Registered {
    /// Runs a module's forward pass between its hooks.
    pub(crate) fn run_around<I: Nest<Owned = I>, O: Nest<Owned = O>>(
        &self,
        module: &dyn Module,
        mut input: I,
        forward: impl FnOnce(I) -> Result<O>,
    ) -> Result<O> {
        for hook in &self.0 {
            if let Hook::Before(f) = hook
                && let Some(new) = f(module, Flat::of(&input).tensors())
            {
                input = rebuild(input, new, "inputs")?;
            }
        }
        let outputs = self.watch_inputs(&mut input);
        let inputs = Flat::of(&input).tensors().to_vec();
        let mut y = forward(input)?;
        for hook in &self.0 {
            if let Hook::After(f) = hook
                && let Some(new) = f(module, &inputs, Flat::of(&y).tensors())
            {
                y = rebuild(y, new, "outputs")?;
            }
        }
        Ok(match outputs {
            Some(outputs) => self.watch_outputs(&inputs, y, outputs),
            None => y,
        })
    }

    fn backward(&self) -> Vec<Arc<Backward>> {
        let backward_hook = |hook: &Hook| match hook {
            Hook::Backward(f) => Some(f.clone()),
            _ => None,
        };
        self.0.iter().filter_map(backward_hook).collect()
    }

    /// Shows hooks the gradients of the inputs, with those of the outputs. The latter come earlier and are kept in the
    /// returned value.
    fn watch_inputs<I: Nest<Owned = I>>(&self, input: &mut I) -> Option<Outputs> {
        let hooks = self.backward();
        if hooks.is_empty() {
            return None;
        }
        let outputs = Outputs::default();
        let flat = Flat::of(input);
        let tensors = flat.tensors().to_vec();
        let (count, positions) = (tensors.len(), positions_with_grad(&tensors));
        let watched = {
            let (outputs, positions) = (outputs.clone(), positions.clone());
            let watched: Vec<Tensor> = positions.iter().map(|i| tensors[*i].clone()).collect();
            watch_gradients(&watched, move |gradients| {
                let outputs = std::mem::take(&mut *lock(&outputs));
                let inputs = spread(gradients, &positions, count);
                let new = show_gradients(&hooks, inputs, &outputs)?;
                if new.len() != count {
                    let message = format!("{} gradients for {count} inputs", new.len());
                    let e = Error::invalid("register_full_backward_hook", message);
                    return Some(vec![Some(Tensor::from_error(e)); positions.len()]);
                }
                Some(positions.iter().map(|i| new[*i].clone()).collect())
            })
        };
        *input = flat.build::<I>(replace_at(tensors, &positions, watched));
        Some(outputs)
    }

    /// Keeps the gradients of the outputs for the hooks. If no input has gradients, the hooks see them here.
    fn watch_outputs<O: Nest<Owned = O>>(&self, inputs: &[Tensor], y: O, outputs: Outputs) -> O {
        let flat = Flat::of(&y);
        let tensors = flat.tensors().to_vec();
        let (count, positions) = (tensors.len(), positions_with_grad(&tensors));
        let no_input_flows = positions_with_grad(inputs).is_empty();
        let (hooks, inputs) = (self.backward(), vec![None; inputs.len()]);
        let watched = {
            let positions = positions.clone();
            let watched: Vec<Tensor> = positions.iter().map(|i| tensors[*i].clone()).collect();
            watch_gradients(&watched, move |gradients| {
                let gradients = spread(gradients, &positions, count);
                match no_input_flows {
                    true => drop(show_gradients(&hooks, inputs.clone(), &gradients)),
                    false => *lock(&outputs) = gradients,
                }
                None
            })
        };
        flat.build::<O>(replace_at(tensors, &positions, watched))
    }
}

/// The gradients of a module's outputs, kept until a backward pass has those of the inputs.
type Outputs = Arc<Mutex<Vec<Option<Tensor>>>>;

fn lock(outputs: &Outputs) -> MutexGuard<'_, Vec<Option<Tensor>>> {
    outputs.lock().unwrap_or_else(|e| e.into_inner())
}

/// Returns the positions of tensors that get gradients.
fn positions_with_grad(tensors: &[Tensor]) -> Vec<usize> {
    let flows = |i: &usize| tensors[*i].requires_grad() && tensors[*i].dtype().is_float();
    (0..tensors.len()).filter(flows).collect()
}

/// Puts some of `count` gradients at their positions; the others are `None`.
fn spread(gradients: &Gradients, positions: &[usize], count: usize) -> Vec<Option<Tensor>> {
    let mut out = vec![None; count];
    for (i, g) in positions.iter().zip(gradients) {
        out[*i] = g.clone();
    }
    out
}

/// Replaces the tensors at some positions.
fn replace_at(mut tensors: Vec<Tensor>, positions: &[usize], new: Vec<Tensor>) -> Vec<Tensor> {
    for (i, t) in positions.iter().zip(new) {
        tensors[*i] = t;
    }
    tensors
}

/// Shows hooks the gradients. Returns those of the inputs if a hook has replaced them.
fn show_gradients(
    hooks: &[Arc<Backward>],
    mut inputs: Vec<Option<Tensor>>,
    outputs: &Gradients,
) -> Option<Vec<Option<Tensor>>> {
    let mut changed = false;
    for hook in hooks {
        if let Some(new) = hook(&inputs, outputs) {
            (inputs, changed) = (new, true);
        }
    }
    changed.then_some(inputs)
}

/// Builds inputs or outputs from the tensors with which a hook replaces them.
#[track_caller]
fn rebuild<N: Nest<Owned = N>>(old: N, new: Vec<Tensor>, what: &str) -> Result<N> {
    let flat = Flat::of(&old);
    let count = flat.tensors().len();
    if new.len() != count {
        let len = new.len();
        let message = format!("a hook gave {len} tensors in the place of {count} {what}");
        return Err(Error::invalid("register_forward_hook", message));
    }
    Ok(flat.build::<N>(new))
}

/// A result of a hook: `()`, or a replacement of the tensors that it saw.
pub trait Replace<T> {
    /// Returns the replacement, if there is one.
    fn into_replacement(self) -> Option<Vec<T>>;
}

impl<T> Replace<T> for () {
    fn into_replacement(self) -> Option<Vec<T>> {
        None
    }
}

impl<T> Replace<T> for Vec<T> {
    fn into_replacement(self) -> Option<Vec<T>> {
        Some(self)
    }
}

impl<T> Replace<T> for Option<Vec<T>> {
    fn into_replacement(self) -> Option<Vec<T>> {
        self
    }
}

/// Registers a hook with a module that holds hooks.
#[track_caller]
pub(crate) fn register(module: &dyn Module, hook: Hook) -> Result<HookHandle> {
    match module.hooks() {
        Some(hooks) => Ok(hooks.add(hook)),
        None => {
            let message = "has no place for hooks: one of yours needs a field `hooks: Hooks`, a lazy one its first input";
            Err(Error::invalid(module.name(), message))
        }
    }
}

impl dyn Module {
    /// [`Module::set_submodule`].
    #[track_caller]
    pub(crate) fn replace_submodule(&self, path: &str, new: Arc<dyn Replacement>) -> Result<()> {
        let old = self.submodule("set_submodule", path)?;
        let wrong = |why: &str| {
            Error::invalid("set_submodule", format!("{} at {path:?} {why}", old.name()))
        };
        if path.is_empty() {
            let message = "the path is empty, which names the module itself";
            return Err(Error::invalid("set_submodule", message));
        }
        if new.module().modules().iter().any(|m| ptr::addr_eq(*m, old)) {
            return Err(wrong("is contained in its own replacement"));
        }
        match old.hooks() {
            Some(hooks) if hooks.replace(new) => Ok(()),
            Some(_) => Err(wrong("was replaced meanwhile")),
            None => Err(wrong(
                "can't be replaced: it is a list, or a module without a field `hooks: Hooks`",
            )),
        }
    }
}

/// A module with which hooks can be registered: every module, also one that was found by name or position.
pub trait Hookable: Module {
    /// Calls `f` with this module and its inputs before each call. If `f` returns tensors, they replace the inputs and
    /// must be equally many.
    ///
    /// # Errors
    /// If the module has no field `hooks: Hooks`.
    #[track_caller]
    fn register_forward_pre_hook<R: Replace<Tensor>>(
        &self,
        f: impl Fn(&dyn Module, &[Tensor]) -> R + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        let f = move |m: &dyn Module, x: &[Tensor]| f(m, x).into_replacement();
        register(self.as_module(), Hook::Before(Arc::new(f)))
    }

    /// Calls `f` with this module, its inputs and its outputs after each call. If `f` returns tensors, they replace the
    /// outputs and must be equally many.
    ///
    /// ```
    /// use kiln_nn::{Forward, Hookable, Linear, Tanh, sequential};
    /// use kiln_tensor::{DType, Tensor};
    /// use std::sync::{Arc, Mutex};
    ///
    /// let model = sequential![Linear::new(3, 16), Tanh::new(), Linear::new(16, 1)]?;
    /// let hidden = Arc::new(Mutex::new(None));
    /// let seen = hidden.clone();
    /// let handle = model[0].register_forward_hook(move |_, _, y| {
    ///     *seen.lock().unwrap() = Some(y[0].detach());
    /// })?;
    /// model.call(Tensor::ones([5, 3], DType::F32));
    /// assert_eq!(hidden.lock().unwrap().as_ref().unwrap().shape()?, [5, 16]);
    /// handle.remove();
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the module has no field `hooks: Hooks`.
    #[track_caller]
    fn register_forward_hook<R: Replace<Tensor>>(
        &self,
        f: impl Fn(&dyn Module, &[Tensor], &[Tensor]) -> R + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        let f = move |m: &dyn Module, x: &[Tensor], y: &[Tensor]| f(m, x, y).into_replacement();
        register(self.as_module(), Hook::After(Arc::new(f)))
    }

    /// Calls `f` with the gradients of this module's inputs and of its outputs, in each backward pass that has them;
    /// `None` stands for a tensor without one. If `f` returns gradients, they replace those of the inputs. Inside
    /// `compile`, `f` runs once, while recording. Inside `scan` and `cond`, a module with such a hook is an error.
    ///
    /// # Errors
    /// If the module has no field `hooks: Hooks`.
    #[track_caller]
    fn register_full_backward_hook<R: Replace<Option<Tensor>>>(
        &self,
        f: impl Fn(&[Option<Tensor>], &[Option<Tensor>]) -> R + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        let f = move |inputs: &[Option<Tensor>], outputs: &[Option<Tensor>]| {
            f(inputs, outputs).into_replacement()
        };
        register(self.as_module(), Hook::Backward(Arc::new(f)))
    }

    /// Calls `f` with this module and the prefix of its names before its state is taken.
    ///
    /// # Errors
    /// If the module has no field `hooks: Hooks`.
    #[track_caller]
    fn register_state_dict_pre_hook(
        &self,
        f: impl Fn(&dyn Module, &str) + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        register(self.as_module(), Hook::StateDict(Arc::new(f)))
    }

    /// Calls `f` with this module, a state that is to be loaded, and the prefix of this module's names in it, before
    /// the two are compared: for example, to rename the entries of an older model.
    ///
    /// # Errors
    /// If the module has no field `hooks: Hooks`.
    #[track_caller]
    fn register_load_state_dict_pre_hook(
        &self,
        f: impl Fn(&dyn Module, &mut StateDict, &str) + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        register(self.as_module(), Hook::LoadStateDict(Arc::new(f)))
    }

    /// Calls `f` with this module and a report of the names that did not fit, after a state was loaded. `f` may change
    /// the report.
    ///
    /// # Errors
    /// If the module has no field `hooks: Hooks`.
    #[track_caller]
    fn register_load_state_dict_post_hook(
        &self,
        f: impl Fn(&dyn Module, &mut LoadReport) + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        register(self.as_module(), Hook::Loaded(Arc::new(f)))
    }
}

impl<M: Module + ?Sized> Hookable for M {}
