//! Tensors as arguments: by value or by reference, and cells in their place.

use crate::{Scalar, Tensor, Var};
use std::borrow::Cow;

/// An argument that stands for a tensor: a [`Tensor`] or a [`Var`], by value or by reference.
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
    /// The tensor, or the current value of a cell.
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

/// An optional tensor argument: an argument that stands for a tensor ([`AsTensor`]), or an `Option` of one, by value
/// or by reference. A layer can pass its `Option<Var>` directly.
///
/// ```
/// use kiln_tensor::{MaybeTensor, Tensor, Var};
/// fn count(bias: impl MaybeTensor) -> usize {
///     bias.into_option().map_or(0, |b| b.ndim())
/// }
/// let b = Tensor::from([1.0f32, 2.0]);
/// let cell = Some(Var::parameter(&b)?);
/// assert_eq!([count(&b), count(&cell), count(None::<Tensor>), count(Some(b))], [1, 1, 0, 1]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` stands neither for a tensor nor for none",
    label = "takes a `Tensor`, a `Var`, or an `Option` of one, by value or by reference"
)]
pub trait MaybeTensor {
    /// The tensor, if there is one; for a cell, its current value.
    fn into_option(self) -> Option<Tensor>;
}

impl<T: AsTensor> MaybeTensor for T {
    #[track_caller]
    fn into_option(self) -> Option<Tensor> {
        Some(self.as_tensor().into_owned())
    }
}

impl<T: AsTensor> MaybeTensor for Option<T> {
    #[track_caller]
    fn into_option(self) -> Option<Tensor> {
        (&self).into_option()
    }
}

impl<T: AsTensor> MaybeTensor for &Option<T> {
    #[track_caller]
    #[allow(clippy::manual_map)] // a closure would hide whose line it is
    fn into_option(self) -> Option<Tensor> {
        match self {
            Some(t) => Some(t.as_tensor().into_owned()),
            None => None,
        }
    }
}

/// A list of cells, such as the parameters that an optimiser updates: any iterator of [`Var`]s, by value or by
/// reference, or a single one.
///
/// ```
/// use kiln_tensor::{Tensor, Var, Vars};
/// fn count(vars: impl Vars) -> usize {
///     vars.into_vars().len()
/// }
/// let (w, b) = (Var::new(Tensor::from(1.0))?, Var::new(Tensor::from(2.0))?);
/// let both = vec![w.clone(), b.clone()];
/// assert_eq!([count(&w), count([&w, &b]), count(&both), count(both)], [1, 2, 2, 2]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of `Var`s",
    label = "takes `Var`s, by value or by reference"
)]
pub trait Vars {
    /// The cells, in order.
    fn into_vars(self) -> Vec<Var>;
}

impl<I: IntoIterator<Item: AsVar>> Vars for I {
    fn into_vars(self) -> Vec<Var> {
        let cells = self.into_iter();
        cells.map(|var| var.as_var().clone()).collect()
    }
}

impl Vars for &Var {
    fn into_vars(self) -> Vec<Var> {
        vec![self.clone()]
    }
}

impl Vars for Var {
    fn into_vars(self) -> Vec<Var> {
        vec![self]
    }
}

/// A [`Var`], or a reference to one.
pub trait AsVar {
    /// The cell.
    fn as_var(&self) -> &Var;
}

impl AsVar for Var {
    fn as_var(&self) -> &Var {
        self
    }
}

// So that an `Option<Var>` field of options accepts a reference to a cell.
impl From<&Var> for Option<Var> {
    fn from(var: &Var) -> Option<Var> {
        Some(var.clone())
    }
}

impl<T: AsVar + ?Sized> AsVar for &T {
    fn as_var(&self) -> &Var {
        (**self).as_var()
    }
}

/// Collects the tensors of a list argument.
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
