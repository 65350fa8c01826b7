//! PyTorch's in-place names, on cells.

use crate::{Error, ErrorKind, Other, Result, Tensor, Var};
use kiln_base::Loc;
use std::panic::Location;

macro_rules! arithmetic {
    ($($(#[$doc:meta])* $name:ident = $op:ident;)*) => {
        /// Arithmetic on what the cell holds, under PyTorch's in-place names. Each is an assignment:
        /// snapshots don't change. The result takes the cell's dtype and must have its shape; a float
        /// result of an integer cell is an error.
        impl Var {
            $($(#[$doc])*
            ///
            /// # Errors
            /// If the operation is invalid or its result doesn't fit; the cell then keeps what it
            /// holds.
            #[track_caller]
            pub fn $name<'a>(&self, other: impl Into<Other<'a>>) -> Result<()> {
                let result = self.get().detach().$op(other);
                self.hold(stringify!($name), &result)
            })*
        }
    };
}

arithmetic! {
    /// Adds: PyTorch's `x.add_(other)` or `x += other`.
    ///
    /// ```
    /// use kiln_tensor::{Tensor, Var};
    /// let weight = Var::new(&Tensor::from([1.0f32, 2.0]))?;
    /// let gradient = Tensor::from([0.5f32, 1.0]);
    /// weight.sub_(&(gradient * 0.1))?;
    /// assert_eq!(weight.get().to_vec::<f32>()?, [0.95, 1.9]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    add_ = add;
    /// Subtracts: PyTorch's `x.sub_(other)` or `x -= other`.
    sub_ = sub;
    /// Multiplies: PyTorch's `x.mul_(other)` or `x *= other`.
    mul_ = mul;
    /// Divides: PyTorch's `x.div_(other)` or `x /= other`.
    div_ = div;
}

impl Var {
    /// Assigns `value`, broadcast to the cell's shape and cast to its dtype: PyTorch's `x.copy_(value)`.
    /// [`Var::assign`] is the strict form.
    ///
    /// # Errors
    /// If the value carries an error or does not broadcast to the cell's shape.
    #[track_caller]
    pub fn copy_(&self, value: &Tensor) -> Result<()> {
        self.set((), value)
    }

    /// Assigns a number to every element.
    ///
    /// # Errors
    /// As [`Var::assign`].
    #[track_caller]
    pub fn fill_(&self, number: impl Into<crate::Scalar>) -> Result<()> {
        self.assign(&self.get().detach().full_like(number))
    }

    /// Assigns zero to every element.
    ///
    /// # Errors
    /// As [`Var::assign`].
    #[track_caller]
    pub fn zero_(&self) -> Result<()> {
        self.fill_(0)
    }

    #[track_caller]
    pub(crate) fn hold(&self, called: &str, result: &Tensor) -> Result<()> {
        if result.check()?.dtype().kind() > self.dtype().kind() {
            let message = format!(
                "the result is {}, which a Var of {} can't hold; cast the operand",
                result.dtype(),
                self.dtype()
            );
            let loc = Loc::from(Location::caller());
            return Err(Error::new(ErrorKind::Assign, called, message, loc));
        }
        self.assign(&result.to_dtype(self.dtype()))
    }
}
