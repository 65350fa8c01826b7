//! Systems of equations, inverses and determinants.

use super::decompose::Triangle;
use super::spectrum::{Cutoff, Rank, tolerances};
use super::{
    broadcast_batches, epsilon, inverse, matrix_sizes, on_host, one_on_host, routine, square_size,
};
use crate::operand::AsTensor;
use crate::ops::matmul::matmul;
use crate::options::options;
use crate::record::Recorder;
use crate::{DType, Tensor};
use kiln_base::linalg::Routine;
use kiln_derive::on_cells;
use kiln_ir::linalg::min_dim;
use kiln_ir::{Builder, OpError, Pw, ensure};

options! {
    /// The side of the matrix in [`Tensor::solve_with`].
    Solve () {
        /// True to solve `A X = B` (the default), false to solve `X A = B`.
        left: bool = true,
    }
}

options! {
    /// The options of [`Tensor::solve_triangular`]; a triangle converts into them.
    SolveTriangular (
        /// The triangle of the matrix that is read.
        triangle: Triangle
    ) {
        /// True to solve `A X = B` (the default), false to solve `X A = B`.
        left: bool = true,
        /// True if the diagonal is taken as ones (default false).
        unitriangular: bool = false,
    }
}

#[on_cells]
impl Tensor {
    /// The inverse of square matrices. Reading the result is an error if one is singular.
    #[autocast]
    pub fn inv(&self) -> Tensor {
        one_on_host("linalg.inv", [self], |b, [a]| inverse(b, a))
    }

    /// The solution X of `A X = B`. B is a vector `[n]` (or one for each matrix of A) or matrices whose batch dims
    /// broadcast with A's. Reading the result is an error if A is singular.
    pub fn solve(&self, other: impl AsTensor) -> Tensor {
        self.solve_with(other, Solve::new())
    }

    /// [`Tensor::solve`] with A on either side.
    #[autocast]
    pub fn solve_with(&self, other: impl AsTensor, options: Solve) -> Tensor {
        let left = options.left;
        one_on_host("linalg.solve", [self, other], |b, [a, x]| {
            square_size(a)?;
            let vector =
                x.ndim() == 1 || x.ndim() + 1 == a.ndim() && x.dims() == &a.dims()[..a.ndim() - 1];
            ensure!(
                left || !vector,
                "a vector of equations has no right side: left must be true"
            );
            let x = match vector {
                true => b.unsqueeze(x, x.ndim())?,
                false => x.clone(),
            };
            let y = solve_on_side(b, Routine::Solve, Routine::Solve, a, &x, left)?;
            match vector {
                true => b.squeeze(&y, &[y.ndim() - 1]),
                false => Ok(y),
            }
        })
    }

    /// The solution X of `A X = B` for a triangular A, of which only this triangle is read. A zero on the diagonal
    /// gives infinities or NaN.
    ///
    /// ```
    /// use kiln_tensor::{SolveTriangular, Tensor, Triangle};
    /// let a = Tensor::from([[2.0, 0.0], [1.0, 4.0]]);
    /// let b = Tensor::from([[2.0], [5.0]]);
    /// assert_eq!(a.solve_triangular(&b, Triangle::Lower).to_vec::<f64>()?, [1.0, 1.0]);
    /// let options = SolveTriangular::new(Triangle::Lower).unitriangular(true);
    /// assert_eq!(a.solve_triangular(&b, options).to_vec::<f64>()?, [2.0, 3.0]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn solve_triangular(
        &self,
        other: impl AsTensor,
        options: impl Into<SolveTriangular>,
    ) -> Tensor {
        let upper = options.triangle == Triangle::Upper;
        one_on_host("linalg.solve_triangular", [self, other], |b, [a, x]| {
            square_size(a)?;
            let unit = options.unitriangular;
            let (own, transposed) = (
                Routine::SolveTriangular { upper, unit },
                Routine::SolveTriangular {
                    upper: !upper,
                    unit,
                },
            );
            solve_on_side(b, own, transposed, a, x, options.left)
        })
    }

    /// The determinant of square matrices, `[..]`. At singular matrices it also has a first and a second derivative;
    /// elsewhere it has further ones.
    pub fn det(&self) -> Tensor {
        one_on_host("linalg.det", [self], |b, [a]| {
            routine(b, Routine::Determinant, &[a])
        })
    }

    /// The sign of the determinant (0 for a singular matrix) and the natural logarithm of its absolute value (−∞).
    pub fn slogdet(&self) -> (Tensor, Tensor) {
        on_host("linalg.slogdet", [self], |b, [a]| {
            let both = routine(b, Routine::SignAndLog, &[a])?;
            let last = both.ndim() - 1;
            let sign = b.narrow(&both, last, 0i64, 1i64)?;
            let log = b.narrow(&both, last, 1i64, 1i64)?;
            Ok([b.squeeze(&sign, &[last])?, b.squeeze(&log, &[last])?])
        })
        .into()
    }

    /// The natural logarithm of the determinant; NaN where the determinant is negative.
    pub fn logdet(&self) -> Tensor {
        one_on_host("logdet", [self], |b, [a]| {
            let both = routine(b, Routine::SignAndLog, &[a])?;
            let last = both.ndim() - 1;
            let sign = b.narrow(&both, last, 0i64, 1i64)?;
            let log = b.narrow(&both, last, 1i64, 1i64)?;
            let negative = b.with(Pw::Lt, &sign, 0.0)?;
            let log = b.fill_where(&negative, f64::NAN, &log)?;
            b.squeeze(&log, &[last])
        })
    }

    /// The Moore-Penrose pseudo-inverse `[.., n, m]`; see [`Rank`] for the singular values that are treated as 0.
    pub fn pinv(&self) -> Tensor {
        self.pinv_with(Rank::new())
    }

    /// [`Tensor::pinv`] with other tolerances.
    pub fn pinv_with(&self, options: Rank) -> Tensor {
        one_on_host("linalg.pinv", [self], |b, [a]| {
            let a = symmetric_if(options.hermitian, b, a)?;
            let [atol, rtol] = tolerances(b, &a, &options.atol, &options.rtol)?;
            routine(b, Routine::PseudoInverse, &[&a, &atol, &rtol])
        })
    }

    /// The least-squares solution X of `A X = B` with the smallest norm, the residual sums of squares `[.., k]`, the
    /// rank of A and its singular values. Singular values of at most `rcond · largest` are treated as 0; the default
    /// `rcond` is `max(m, n) ε`. Residuals are empty, `[0]`, unless A has more rows than columns; they are also given
    /// for a matrix without full rank.
    pub fn lstsq(&self, other: impl AsTensor) -> (Tensor, Tensor, Tensor, Tensor) {
        self.lstsq_with(other, Cutoff::Default)
    }

    /// [`Tensor::lstsq`] with another `rcond`.
    #[autocast]
    pub fn lstsq_with(
        &self,
        other: impl AsTensor,
        rcond: impl Into<Cutoff>,
    ) -> (Tensor, Tensor, Tensor, Tensor) {
        on_host("linalg.lstsq", [self, other], |b, [a, other]| {
            let (_, m, n) = matrix_sizes(a)?;
            let vector = other.ndim() + 1 == a.ndim() && other.dims() == &a.dims()[..a.ndim() - 1];
            let right = match vector {
                true => b.unsqueeze(other, other.ndim())?,
                false => other.clone(),
            };
            let [atol, rtol] = tolerances(b, a, &Cutoff::Default, &rcond)?;
            let inverse = routine(b, Routine::PseudoInverse, &[a, &atol, &rtol])?;
            let x = matmul(b, &inverse, &right)?;
            let residuals = match min_dim(&m, &n)? == m {
                true => b.full(0.0, a.dtype(), &[kiln_base::Dim::ZERO])?,
                false => {
                    let y = matmul(b, a, &x)?;
                    let off = b.binary(Pw::Sub, &y, &right)?;
                    let square = b.unary(Pw::Square, &off)?;
                    b.sum(&square, &[square.ndim() - 2], false)?
                }
            };
            let values = super::singular_values(b, a)?;
            let rank = super::spectrum::rank(b, &values, &atol, &rtol)?;
            let x = match vector {
                true => b.squeeze(&x, &[x.ndim() - 1])?,
                false => x,
            };
            Ok([x, residuals, rank, values])
        })
        .into()
    }
}

/// Solves `A X = B` for X, or `X A = B` by the routine for Aᵀ.
fn solve_on_side(
    b: &mut Recorder,
    own: Routine,
    transposed: Routine,
    a: &Tensor,
    x: &Tensor,
    left: bool,
) -> Result<Tensor, OpError> {
    let (_, n) = square_size(a)?;
    let (_, m, columns) = matrix_sizes(x)?;
    let of_a = if left { &m } else { &columns };
    ensure!(
        *of_a == n && a.dtype() == x.dtype(),
        "incompatible sides {} and {}",
        a.fact(),
        x.fact()
    );
    let [a, x] = broadcast_batches(b, a, x)?;
    if left {
        return routine(b, own, &[&a, &x]);
    }
    let (a, x) = (b.transposed(&a)?, b.transposed(&x)?);
    let x = routine(b, transposed, &[&a, &x])?;
    b.transposed(&x)
}

/// Returns symmetric matrices with the lower triangle of `a` if `hermitian`, else `a`.
pub(super) fn symmetric_if(
    hermitian: bool,
    b: &mut Recorder,
    a: &Tensor,
) -> Result<Tensor, OpError> {
    if !hermitian {
        return Ok(a.clone());
    }
    square_size(a)?;
    let lower = crate::ops::diagonal::triangle(b, a, 0, Pw::Le)?;
    let strict = crate::ops::diagonal::triangle(b, a, -1, Pw::Le)?;
    let upper = b.transposed(&strict)?;
    b.binary(Pw::Add, &lower, &upper)
}

/// The default relative tolerance, `max(m, n) ε`.
pub(super) fn default_tolerance(a: &Tensor) -> Result<f64, OpError> {
    let (_, m, n) = matrix_sizes(a)?;
    let size = |d: &kiln_base::Dim| {
        d.as_const().ok_or_else(|| {
            OpError(format!(
                "the default tolerance of {} needs known sizes",
                a.fact()
            ))
        })
    };
    let dtype: DType = a.dtype();
    Ok(size(&m)?.max(size(&n)?) as f64 * epsilon(dtype))
}
