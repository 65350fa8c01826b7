//! Operations for writing formulas over matrices.

use crate::erased::{Erased, Id};
use kiln_base::Float;
use kiln_base::linalg::Routine;
use kiln_base::prim::Reduction;
use kiln_ir::linalg::{apply, position_mask};
use kiln_ir::ops::MatMul;
use kiln_ir::{Builder, Dim, OpError, Pw};

/// A recorder of formulas over matrices in the last two dims.
pub(super) struct Formula<'b, 'e>(pub(super) &'b mut Erased<'e>);

impl Formula<'_, '_> {
    pub(super) fn mm(&mut self, x: &Id, y: &Id) -> Result<Id, OpError> {
        self.0.op(MatMul {}, &[x.clone(), y.clone()])
    }

    /// `xᵀ y`.
    pub(super) fn tm(&mut self, x: &Id, y: &Id) -> Result<Id, OpError> {
        let x = self.t(x)?;
        self.mm(&x, y)
    }

    /// `x yᵀ`.
    pub(super) fn mt(&mut self, x: &Id, y: &Id) -> Result<Id, OpError> {
        let y = self.t(y)?;
        self.mm(x, &y)
    }

    pub(super) fn t(&mut self, x: &Id) -> Result<Id, OpError> {
        crate::product::transposed(self.0, x)
    }

    pub(super) fn pw(&mut self, op: Pw, x: &Id, y: &Id) -> Result<Id, OpError> {
        self.0.pointwise(op, &[x.clone(), y.clone()])
    }

    pub(super) fn add(&mut self, x: &Id, y: &Id) -> Result<Id, OpError> {
        self.pw(Pw::Add, x, y)
    }

    pub(super) fn sub(&mut self, x: &Id, y: &Id) -> Result<Id, OpError> {
        self.pw(Pw::Sub, x, y)
    }

    pub(super) fn neg(&mut self, x: &Id) -> Result<Id, OpError> {
        self.0.pointwise(Pw::Neg, std::slice::from_ref(x))
    }

    /// A slice of the last dim.
    pub(super) fn narrow(
        &mut self,
        x: &Id,
        start: impl Into<Dim>,
        len: impl Into<Dim>,
    ) -> Result<Id, OpError> {
        let last = self.0.fact(x).rank() - 1;
        self.0.narrow(x, last, start, len)
    }

    /// The first `k` columns.
    pub(super) fn first_columns(&mut self, x: &Id, k: &Dim) -> Result<Id, OpError> {
        self.narrow(x, 0i64, k.clone())
    }

    /// The first `k` rows of the first `k` columns.
    pub(super) fn corner(&mut self, x: &Id, k: &Dim) -> Result<Id, OpError> {
        let axis = self.0.fact(x).rank() - 2;
        let rows = self.0.narrow(x, axis, 0i64, k.clone())?;
        self.first_columns(&rows, k)
    }

    pub(super) fn unsqueezed(&mut self, x: &Id) -> Result<Id, OpError> {
        let mut shape = self.0.fact(x).shape;
        shape.push(Dim::ONE);
        self.0.reshape(x, &shape)
    }

    /// Reshapes numbers to matrices of one element.
    pub(super) fn as_matrices(&mut self, x: &Id) -> Result<Id, OpError> {
        let x = self.unsqueezed(x)?;
        self.unsqueezed(&x)
    }

    /// Reshapes vectors to matrices of one row.
    pub(super) fn row(&mut self, x: &Id) -> Result<Id, OpError> {
        let column = self.unsqueezed(x)?;
        self.t(&column)
    }

    /// Returns x where the mask holds, else 0.
    pub(super) fn masked(&mut self, mask: &Id, x: &Id) -> Result<Id, OpError> {
        let zero = self.0.scalar_like(0.0, x)?;
        self.0
            .pointwise(Pw::Select, &[mask.clone(), x.clone(), zero])
    }

    /// The lower triangle; without the diagonal if `strict`.
    pub(super) fn tril(&mut self, x: &Id, strict: bool) -> Result<Id, OpError> {
        let mask = position_mask(self.0, if strict { Pw::Gt } else { Pw::Ge }, x)?;
        self.masked(&mask, x)
    }

    /// The upper triangle; without the diagonal if `strict`.
    pub(super) fn triu(&mut self, x: &Id, strict: bool) -> Result<Id, OpError> {
        let mask = position_mask(self.0, if strict { Pw::Lt } else { Pw::Le }, x)?;
        self.masked(&mask, x)
    }

    /// Matrices of the size of `like` with these vectors on their diagonals.
    pub(super) fn diagonal(&mut self, v: &Id, like: &Id) -> Result<Id, OpError> {
        let mask = position_mask(self.0, Pw::Eq, like)?;
        let shape = self.0.fact(like).shape;
        let row = self.row(v)?;
        let broadcast = self.0.broadcast_to(&row, &shape)?;
        self.masked(&mask, &broadcast)
    }

    /// Returns the largest magnitude in each vector, as matrices of one element; 0 without elements.
    pub(super) fn largest(&mut self, v: &Id) -> Result<Id, OpError> {
        let sizes = self.0.pointwise(Pw::Abs, std::slice::from_ref(v))?;
        let shape = self.0.fact(v).shape;
        let last = shape.len() - 1;
        let kind = match shape[last].is(0) {
            true => Reduction::Sum,
            false => Reduction::Max,
        };
        let largest = self.0.reduce_keepdim(kind, &sizes, &[last])?;
        self.unsqueezed(&largest)
    }

    /// Returns x / y; 0 where y is within rounding error of 0 relative to `largest`.
    pub(super) fn quotient(&mut self, x: &Id, y: &Id, largest: &Id) -> Result<Id, OpError> {
        let float = self.0.with_fact(y, |f| f.dtype.float());
        let rounding = 10.0 * float.map_or(0.0, Float::epsilon);
        let bound = self.0.with(Pw::Mul, largest, rounding)?;
        let size = self.0.pointwise(Pw::Abs, std::slice::from_ref(y))?;
        let none = self.pw(Pw::Le, &size, &bound)?;
        let infinite = self.0.scalar_like(f64::INFINITY, y)?;
        let y = self.0.pointwise(Pw::Select, &[none, infinite, y.clone()])?;
        self.pw(Pw::Div, x, &y)
    }

    /// Solves `A X = B` for X.
    pub(super) fn solve_left(
        &mut self,
        a: &Id,
        x: &Id,
        upper: bool,
        unit: bool,
    ) -> Result<Id, OpError> {
        let operands = [a.clone(), x.clone()];
        apply(self.0, Routine::SolveTriangular { upper, unit }, &operands)
    }

    /// Solves `X A = B` for X.
    pub(super) fn solve_right(
        &mut self,
        a: &Id,
        x: &Id,
        upper: bool,
        unit: bool,
    ) -> Result<Id, OpError> {
        let (a, x) = (self.t(a)?, self.t(x)?);
        let x = self.solve_left(&a, &x, !upper, unit)?;
        self.t(&x)
    }
}
