//! How modules are called: one seam for all of them.

use crate::copy::BoxForward;
use crate::layer::{self, SOURCE};
use crate::{Hooks, Module};
use kiln_tensor::{Error, Flat, Nest, Result, Tensor, on_behalf_of_caller};

/// A module that computes `O` from `I`: a tensor from a tensor, where nothing else is said. Several inputs
/// are a tuple, and a module may implement this for several kinds of inputs.
///
/// A model implements [`Forward::forward`] and is called with [`Forward::call`], which `dyn Forward` has not, but a
/// `Box` or an `Arc` of it; a function that takes any model takes `&impl Forward`.
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
/// // What is wrong is carried by the result, and said where that is read.
/// assert!(model.call((&b, &a)).to_vec::<f32>().is_err());
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub trait Forward<I = Tensor, O = Tensor>: Module + BoxForward<I, O> {
    /// The result for an input. Call a module with [`Forward::call`], which also runs its hooks, names it in
    /// errors, and has it recorded at the caller's line.
    ///
    /// # Errors
    /// What is wrong with the input.
    fn forward(&self, input: I) -> Result<O>;

    /// Calls the module with tensors or [`Var`](kiln_tensor::Var)s, by value or by reference, or tuples of these. An error of
    /// [`Forward::forward`] is carried by the result, as that of any operation on tensors is.
    #[track_caller]
    fn call<A: Nest<Owned = I>>(&self, input: A) -> O
    where
        Self: Sized,
        I: Nest<Owned = I>,
        O: Output,
    {
        call(self, owned(&input)).unwrap_or_else(|e| O::of_error(&e))
    }

    /// [`Forward::call`], but with an error as such: also for results that can't carry one.
    ///
    /// # Errors
    /// That of [`Forward::forward`], or the one that the result carries.
    #[track_caller]
    fn try_call<A: Nest<Owned = I>>(&self, input: A) -> Result<O>
    where
        Self: Sized,
        I: Nest<Owned = I>,
        O: Nest<Owned = O>,
    {
        checked(call(self, owned(&input))?)
    }
}

/// The same structure of owned tensors.
#[track_caller]
fn owned<A: Nest>(input: &A) -> A::Owned {
    let flat = Flat::of(input);
    flat.build::<A>(flat.tensors().iter().cloned())
}

fn checked<O: Nest>(y: O) -> Result<O> {
    Flat::of(&y)
        .tensors()
        .iter()
        .try_for_each(|t| t.check().map(drop))?;
    Ok(y)
}

#[track_caller]
fn call<I: Nest<Owned = I>, O: Nest<Owned = O>, M: Forward<I, O> + ?Sized>(
    m: &M,
    input: I,
) -> Result<O> {
    seam(m.as_module(), input, |input| m.forward(input))
}

/// What a call of a module is, whatever it computes: recorded at the caller's line, between the module's hooks,
/// and an error that arises in it names the module.
#[track_caller]
pub(crate) fn seam<I: Nest<Owned = I>, O: Nest<Owned = O>>(
    module: &dyn Module,
    input: I,
    forward: impl FnOnce(I) -> Result<O>,
) -> Result<O> {
    on_behalf_of_caller(SOURCE, || {
        let poisoned = Flat::of(&input)
            .tensors()
            .iter()
            .any(|t| t.error().is_some());
        let result = match module.hooks().and_then(Hooks::registered) {
            None => forward(input),
            Some(hooks) => hooks.around(module, input, forward),
        };
        if poisoned {
            return result;
        }
        match result {
            Err(e) => Err(layer::named(module, e)),
            Ok(y) => Ok(named(module, y)),
        }
    })
}

/// A result whose errors name the module.
fn named<O: Nest<Owned = O>>(module: &dyn Module, y: O) -> O {
    let flat = Flat::of(&y);
    if flat.tensors().iter().all(|t| t.error().is_none()) {
        return y;
    }
    let named = flat.tensors().iter().map(|t| match t.error() {
        Some(e) => Tensor::from_error(layer::named(module, e.clone())),
        None => t.clone(),
    });
    flat.build::<O>(named)
}

/// What [`Forward::call`] can give: a result that can carry an error.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't carry an error",
    note = "use `try_call`, which gives a `Result`"
)]
pub trait Output: Nest<Owned = Self> {
    /// The result that carries an error.
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
