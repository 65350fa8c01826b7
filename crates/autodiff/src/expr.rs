//! Formulas of pointwise derivatives.

use crate::erased::{Erased, Id};
use kiln_ir::{Builder, OpError, Pw};
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::rc::Rc;

/// A formula over the operands, the result and the cotangent of a pointwise op.
#[derive(Clone)]
pub(crate) enum Expr {
    /// An operand.
    X(usize),
    /// The result.
    Y,
    /// The cotangent of the result.
    G,
    /// A number of the cotangent's dtype.
    Number(f64),
    /// No formula; holds the reason.
    Missing(&'static str),
    /// Zeros of the cotangent's shape.
    Zeros,
    /// A row of the pointwise table.
    Call(Pw, Rc<[Expr]>),
}

impl Expr {
    /// A pointwise op on formulas.
    pub(crate) fn call<const N: usize>(op: Pw, args: [Expr; N]) -> Expr {
        Expr::Call(op, Rc::new(args))
    }

    /// A pointwise op on this formula alone.
    pub(crate) fn then(self, op: Pw) -> Expr {
        Expr::call(op, [self])
    }

    /// Records the formula.
    pub(crate) fn emit(&self, b: &mut Erased<'_>, x: &[Id], y: &Id, g: &Id) -> Result<Id, OpError> {
        Ok(match self {
            Expr::X(i) => x[*i].clone(),
            Expr::Y => y.clone(),
            Expr::G => g.clone(),
            Expr::Number(n) => b.scalar_like(*n, g)?,
            Expr::Missing(why) => return Err(OpError::new(*why)),
            Expr::Zeros => b.full_like(0.0, g)?,
            Expr::Call(op, args) => {
                let mut operands = Vec::with_capacity(args.len());
                for arg in args.iter() {
                    operands.push(arg.emit(b, x, y, g)?);
                }
                b.pointwise(*op, &operands)?
            }
        })
    }
}

/// `condition ? a : b`.
pub(crate) fn select(condition: Expr, a: impl Into<Expr>, b: impl Into<Expr>) -> Expr {
    Expr::call(Pw::Select, [condition, a.into(), b.into()])
}

impl From<f64> for Expr {
    fn from(n: f64) -> Expr {
        Expr::Number(n)
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $row:ident;)*) => {$(
        impl<E: Into<Expr>> $trait<E> for Expr {
            type Output = Expr;

            fn $method(self, other: E) -> Expr {
                Expr::call(Pw::$row, [self, other.into()])
            }
        }

        impl $trait<Expr> for f64 {
            type Output = Expr;

            fn $method(self, other: Expr) -> Expr {
                Expr::call(Pw::$row, [self.into(), other])
            }
        }
    )*};
}
operators! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
}

impl Neg for Expr {
    type Output = Expr;

    fn neg(self) -> Expr {
        self.then(Pw::Neg)
    }
}
