//! Operators, and sums of iterators.

use super::arith::reversed;
use crate::operand::{AsTensor, Other};
use crate::{Tensor, Var};
use kiln_ir::Pw;
use std::iter::Sum;
use std::ops::{
    Add, AddAssign, BitAnd, BitAndAssign, BitOr, BitOrAssign, BitXor, BitXorAssign, Div, DivAssign,
    Mul, MulAssign, Neg, Not, Rem, RemAssign, Shl, ShlAssign, Shr, ShrAssign, Sub, SubAssign,
};

// One impl for all right operands. With one for each, the type of `&x * 2` would depend on the type of 2.
macro_rules! operators {
    ($($trait:ident $operator:ident, $assign:ident $assign_operator:ident = $method:ident;)*) => {$(
        operators!(@left $trait $operator $method: &Tensor, Tensor, &Var, Var);
        impl<'a, R: Into<Other<'a>>> $assign<R> for Tensor {
            #[track_caller]
            fn $assign_operator(&mut self, other: R) {
                *self = Tensor::$method(self, other);
            }
        }
        impl<'a, R: Into<Other<'a>>> $assign<R> for Var {
            /// Assigns the result, as the method does. An operator can't return an error: if the result doesn't fit,
            /// the cell holds that error, which every read returns, until it is assigned again.
            #[track_caller]
            fn $assign_operator(&mut self, other: R) {
                let result = Tensor::$method(&self.get().detach(), other);
                self.hold_or_fail(stringify!($assign_operator), &result);
            }
        }
    )*};
    (@left $trait:ident $operator:ident $method:ident: $($left:ty),*) => {$(
        impl<'a, R: Into<Other<'a>>> $trait<R> for $left {
            type Output = Tensor;
            #[track_caller]
            fn $operator(self, other: R) -> Tensor {
                Tensor::$method(&self.as_tensor(), other)
            }
        }
    )*};
}

operators! {
    Add add, AddAssign add_assign = add;
    Sub sub, SubAssign sub_assign = sub;
    Mul mul, MulAssign mul_assign = mul;
    Div div, DivAssign div_assign = div;
    Rem rem, RemAssign rem_assign = remainder;
    BitAnd bitand, BitAndAssign bitand_assign = bitwise_and;
    BitOr bitor, BitOrAssign bitor_assign = bitwise_or;
    BitXor bitxor, BitXorAssign bitxor_assign = bitwise_xor;
    Shl shl, ShlAssign shl_assign = bitwise_left_shift;
    Shr shr, ShrAssign shr_assign = bitwise_right_shift;
}

// Only one integer and one float type, so that `2 * &x` and `2.0 * &x` are unambiguous.
macro_rules! numbers_on_the_left {
    ($($trait:ident $operator:ident: $($number:ty)*;)*) => {$($(
        numbers_on_the_left!(@right $trait $operator $number: &Tensor, Tensor, &Var, Var);
    )*)*};
    (@right $trait:ident $operator:ident $number:ty: $($right:ty),*) => {$(
        impl $trait<$right> for $number {
            type Output = Tensor;
            #[track_caller]
            fn $operator(self, other: $right) -> Tensor {
                reversed(Pw::$trait, self.into(), &other.as_tensor())
            }
        }
    )*};
}

numbers_on_the_left! {
    Add add: i64 f64;
    Sub sub: i64 f64;
    Mul mul: i64 f64;
    Div div: i64 f64;
}

macro_rules! prefixes {
    ($($trait:ident $operator:ident = $method:ident: $($type:ty),*;)*) => {$($(
        impl $trait for $type {
            type Output = Tensor;
            #[track_caller]
            fn $operator(self) -> Tensor {
                Tensor::$method(&self.as_tensor())
            }
        }
    )*)*};
}

prefixes! {
    Neg neg = neg: &Tensor, Tensor, &Var, Var;
    Not not = bitwise_not: &Tensor, Tensor, &Var, Var;
}

impl<T: AsTensor> Sum<T> for Tensor {
    /// The sum of tensors. An empty sum is 0 as an i64, which promotes to any other numeric dtype.
    #[track_caller]
    fn sum<I: Iterator<Item = T>>(tensors: I) -> Tensor {
        let mut total: Option<Tensor> = None;
        for t in tensors {
            let t = t.as_tensor();
            total = Some(match total {
                Some(sum) => sum + &*t,
                None => t.into_owned(),
            });
        }
        total.unwrap_or_else(|| Tensor::scalar(0i64))
    }
}

impl Var {
    /// Assigns the result of an operator to the cell, or makes it hold the error.
    #[track_caller]
    fn hold_or_fail(&self, called: &str, result: &Tensor) {
        if let Err(e) = self.hold(called, result) {
            self.fail(e);
        }
    }
}
