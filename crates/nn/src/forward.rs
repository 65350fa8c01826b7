//! Calls of modules, which all go through one seam.

use crate::SOURCE;
use crate::copy::{BoxCopy, Copies};
use crate::members::{Hooks, Replacement};
use crate::module::Module;
use kiln_tensor::{Error, Flat, Nest, Result, Tensor, on_behalf_of_caller};
use std::any::Any;
use std::sync::Arc;

/// A module that computes `O` from `I`; by default, a tensor from a tensor. Several inputs are a tuple, and a module
/// may implement this for several kinds of inputs.
///
/// A model implements [`Forward::forward`] and is called with [`Forward::call`]. `dyn Forward` does not have `call`,
/// but a `Box` or an `Arc` of it does. A function that takes any model takes `&impl Forward`.
///
/// ```
/// use kiln_nn::{Forward, Hooks, Linear, Module};
/// use kiln_tensor::{DType, Result, Tensor};
///
/// #[derive(Module)]
/// struct Pairs {
///     left: Linear,
///     right: Linear,
///     hooks: Hooks,
/// }
///
/// impl Forward<(Tensor, Tensor)> for Pairs {
///     fn forward(&self, (a, b): (Tensor, Tensor)) -> Result<Tensor> {
///         let [n, _] = a.size()?;
///         Ok((self.left.call(a) * self.right.call(b)).reshape((n, 2, -1)))
///     }
/// }
///
/// let model = Pairs { left: Linear::new(3, 8)?, right: Linear::new(5, 8)?, hooks: Hooks::new() };
/// let (a, b) = (Tensor::ones([2, 3], DType::F32), Tensor::ones([2, 5], DType::F32));
/// assert_eq!(model.call((&a, &b)).shape()?, [2, 2, 4]);
/// // The result carries the error, and reading it returns the error.
/// assert!(model.call((&b, &a)).to_vec::<f32>().is_err());
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub trait Forward<I = Tensor, O = Tensor>: Module + BoxForward<I, O> {
    /// Computes the result for an input. Call a module with [`Forward::call`], which also runs its hooks, names it in
    /// errors, and records it at the caller's line.
    ///
    /// # Errors
    /// If the input does not fit.
    fn forward(&self, input: I) -> Result<O>;

    /// Calls the module with tensors or [`Var`](kiln_tensor::Var)s, by value or by reference, or tuples of these. The
    /// result carries an error of [`Forward::forward`], as it does for any operation on tensors.
    #[track_caller]
    fn call<A: Nest<Owned = I>>(&self, input: A) -> O
    where
        Self: Sized,
        I: Nest<Owned = I> + 'static,
        O: Output + 'static,
    {
        call(self, own_tensors(&input)).unwrap_or_else(|e| O::of_error(&e))
    }

    /// [`Forward::call`] that returns an error as a `Result`: also for results that can't carry one.
    ///
    /// # Errors
    /// The error of [`Forward::forward`], or the error that the result carries.
    #[track_caller]
    fn try_call<A: Nest<Owned = I>>(&self, input: A) -> Result<O>
    where
        Self: Sized,
        I: Nest<Owned = I> + 'static,
        O: Nest<Owned = O> + 'static,
    {
        check_result(call(self, own_tensors(&input))?)
    }
}

/// Copies any module into a box of which only the call is known.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not compute anything from `{I}`",
    note = "it does where `Forward<{I}>` is implemented for it"
)]
pub trait BoxForward<I, O> {
    #[doc(hidden)]
    fn boxed_forward(&self, copies: &mut Copies) -> Result<Box<dyn Forward<I, O>>>;
}

impl<I, O, M: Forward<I, O>> BoxForward<I, O> for M {
    fn boxed_forward(&self, copies: &mut Copies) -> Result<Box<dyn Forward<I, O>>> {
        Ok(Box::new(self.copy_with(copies)?))
    }
}

impl<I: 'static, O: 'static> BoxCopy for dyn Forward<I, O> {
    fn box_copy(&self, copies: &mut Copies) -> Result<Box<dyn Forward<I, O>>> {
        self.boxed_forward(copies)
    }
}

impl<I: 'static, O: 'static> Replacement for Arc<dyn Forward<I, O>> {
    fn module(&self) -> &dyn Module {
        self.as_module()
    }

    fn copy_with(&self, copies: &mut Copies) -> Result<Arc<dyn Replacement>> {
        Ok(Arc::new(copies.shared(self)?))
    }
}

/// Returns the same structure of owned tensors.
#[track_caller]
fn own_tensors<A: Nest>(input: &A) -> A::Owned {
    let flat = Flat::of(input);
    flat.build::<A>(flat.tensors().iter().cloned())
}

fn check_result<O: Nest>(y: O) -> Result<O> {
    Flat::of(&y)
        .tensors()
        .iter()
        .try_for_each(|t| t.check().map(drop))?;
    Ok(y)
}

#[track_caller]
fn call<I, O, M: Forward<I, O> + ?Sized>(m: &M, input: I) -> Result<O>
where
    I: Nest<Owned = I> + 'static,
    O: Nest<Owned = O> + 'static,
{
    dispatch(m.as_module(), input, |input| m.forward(input))
}

/// Calls a module of any kind, or its replacement: records the call at the caller's line, runs the module's
/// hooks around it, and names the module in errors that arise in it.
#[track_caller]
pub(crate) fn dispatch<I, O>(
    module: &dyn Module,
    input: I,
    forward: impl FnOnce(I) -> Result<O>,
) -> Result<O>
where
    I: Nest<Owned = I> + 'static,
    O: Nest<Owned = O> + 'static,
{
    if let Some(new) = module.hooks().and_then(Hooks::replacement) {
        return match (new as &dyn Any).downcast_ref::<Arc<dyn Forward<I, O>>>() {
            Some(new) => call(new, input),
            None => Err(of_other_types(module, new.module())),
        };
    }
    on_behalf_of_caller(SOURCE, || {
        let poisoned = Flat::of(&input)
            .tensors()
            .iter()
            .any(|t| t.error().is_some());
        let result = match module.hooks().and_then(Hooks::registered) {
            None => forward(input),
            Some(hooks) => hooks.run_around(module, input, forward),
        };
        if poisoned {
            return result;
        }
        match result {
            Err(e) => Err(module.name_error(e)),
            Ok(y) => Ok(name_errors(module, y)),
        }
    })
}

/// Makes the error of a call of a replaced module.
#[track_caller]
fn of_other_types(old: &dyn Module, new: &dyn Module) -> Error {
    let message = format!(
        "{} replaces {}, but takes inputs or gives outputs of other types",
        new.name(),
        old.name()
    );
    Error::invalid("set_submodule", message)
}

/// Returns the result, with the module named in its errors.
fn name_errors<O: Nest<Owned = O>>(module: &dyn Module, y: O) -> O {
    let flat = Flat::of(&y);
    if flat.tensors().iter().all(|t| t.error().is_none()) {
        return y;
    }
    let named = flat.tensors().iter().map(|t| match t.error() {
        Some(e) => Tensor::from_error(module.name_error(e.clone())),
        None => t.clone(),
    });
    flat.build::<O>(named)
}

/// A result of [`Forward::call`]: one that can carry an error.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't carry an error",
    note = "use `try_call`, which gives a `Result`"
)]
pub trait Output: Nest<Owned = Self> {
    /// Makes a result that carries an error.
    fn of_error(e: &Error) -> Self;
}

impl Output for Tensor {
    fn of_error(e: &Error) -> Tensor {
        Tensor::from_error(e.clone())
    }
}

impl<T: Output> Output for Option<T> {
    fn of_error(e: &Error) -> Option<T> {
        Some(T::of_error(e))
    }
}

impl<T: Output, const N: usize> Output for [T; N] {
    fn of_error(e: &Error) -> [T; N] {
        std::array::from_fn(|_| T::of_error(e))
    }
}

macro_rules! tuples {
    ($($($name:ident)*;)*) => {$(
        impl<$($name: Output),*> Output for ($($name,)*) {
            #[allow(unused_variables, clippy::unused_unit)]
            fn of_error(e: &Error) -> Self {
                ($($name::of_error(e),)*)
            }
        }
    )*};
}
tuples! {
    ;
    A;
    A B;
    A B C;
    A B C D;
}
