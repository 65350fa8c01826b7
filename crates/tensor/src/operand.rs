//! Tensors as arguments: by value or by reference, and cells in their place.

use crate::{Scalar, Tensor, Var};
use std::borrow::Cow;

/// What stands for a tensor in a call: a [`Tensor`] or a [`Var`], by value or by reference.
///
/// ```
/// use kiln_tensor::{Tensor, Var, cat};
/// let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
/// let w = Var::parameter(&Tensor::from([[1.0f32, 0.0], [0.0, 1.0]]))?;
/// assert_eq!(x.matmul(&w).to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// assert_eq!(x.matmul(x.t()).to_vec::<f32>()?, [5.0, 11.0, 11.0, 25.0]);
/// assert_eq!(x.gather(1, x.argmax(1).unsqueeze(1)).to_vec::<f32>()?, [2.0, 4.0]);
/// assert_eq!(cat(vec![x.clone(), x], 0).shape()?, [4, 2]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not stand for a tensor",
    label = "takes a `Tensor` or a `Var`, by value or by reference"
)]
pub trait AsTensor {
    /// The tensor; of a cell, what it holds now.
    fn as_tensor(&self) -> Cow<'_, Tensor>;
}

impl AsTensor for Tensor {
    fn as_tensor(&self) -> Cow<'_, Tensor> {
        Cow::Borrowed(self)
    }
}

impl AsTensor for Var {
    #[track_caller]
    fn as_tensor(&self) -> Cow<'_, Tensor> {
        Cow::Owned(self.get())
    }
}

impl<T: AsTensor + ?Sized> AsTensor for &T {
    #[track_caller]
    fn as_tensor(&self) -> Cow<'_, Tensor> {
        (**self).as_tensor()
    }
}

/// The tensors of a list; the functions that take one read it with this.
#[track_caller]
pub(crate) fn listed(tensors: impl IntoIterator<Item: AsTensor>) -> Vec<Tensor> {
    let mut list = Vec::new();
    for t in tensors {
        list.push(t.as_tensor().into_owned());
    }
    list
}

/// The right operand of a binary operation: a tensor, or a number that does not widen the tensor's
/// dtype within its kind.
pub enum Other<'a> {
    /// A tensor.
    Tensor(Cow<'a, Tensor>),
    /// A number.
    Number(Scalar),
}

impl<'a> From<&'a Tensor> for Other<'a> {
    fn from(t: &'a Tensor) -> Other<'a> {
        Other::Tensor(Cow::Borrowed(t))
    }
}

impl<'a> From<&&'a Tensor> for Other<'a> {
    fn from(t: &&'a Tensor) -> Other<'a> {
        Other::Tensor(Cow::Borrowed(t))
    }
}

impl From<Tensor> for Other<'_> {
    fn from(t: Tensor) -> Self {
        Other::Tensor(Cow::Owned(t))
    }
}

impl From<&Var> for Other<'_> {
    #[track_caller]
    fn from(var: &Var) -> Self {
        Other::Tensor(Cow::Owned(var.get()))
    }
}

impl From<Var> for Other<'_> {
    #[track_caller]
    fn from(var: Var) -> Self {
        Other::from(&var)
    }
}

impl<S: Into<Scalar>> From<S> for Other<'_> {
    fn from(s: S) -> Self {
        Other::Number(s.into())
    }
}
