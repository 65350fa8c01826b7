//! Factorisations: Cholesky, LU and QR.

use super::{matrix_sizes, on_host, one_on_host, routine, square_size};
use crate::operand::AsTensor;
use crate::ops::diagonal::{coordinates, triangle};
use crate::record::Recorder;
use crate::{DType, Tensor};
use kiln_base::Dim;
use kiln_base::linalg::Routine;
use kiln_derive::on_cells;
use kiln_ir::linalg::{min_dim, permutation, split_packed, unit_lower};
use kiln_ir::{Builder, OpError, Pw};

/// The factors that [`Tensor::qr`] returns.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum QrMode {
    /// Q `[.., m, k]` and R `[.., k, n]` with k = min(m, n).
    #[default]
    Reduced,
    /// Q `[.., m, m]` and R `[.., m, n]`.
    Complete,
    /// R `[.., k, n]`; Q is empty.
    R,
}

/// A triangle of matrices, with the diagonal.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Triangle {
    /// On and below the diagonal.
    Lower,
    /// On and above the diagonal.
    Upper,
}

#[on_cells]
impl Tensor {
    /// The lower triangular L of `A = L Lᵀ`. Only the lower triangle of A is read.
    ///
    /// Reading the result is an error if a matrix is not positive-definite.
    pub fn cholesky(&self) -> Tensor {
        self.cholesky_with(Triangle::Lower)
    }

    /// [`Tensor::cholesky`], or the upper triangular U of `A = Uᵀ U` from the upper triangle of A.
    #[autocast]
    pub fn cholesky_with(&self, triangle: Triangle) -> Tensor {
        one_on_host("linalg.cholesky", [self], |b, [a]| {
            if triangle == Triangle::Lower {
                return routine(b, Routine::Cholesky, &[a]);
            }
            square_size(a)?;
            let a = b.transposed(a)?;
            let l = routine(b, Routine::Cholesky, &[&a])?;
            b.transposed(&l)
        })
    }

    /// The solution X of `A X = B` for this B `[.., n, k]` and the lower Cholesky factor of A.
    pub fn cholesky_solve(&self, factor: impl AsTensor) -> Tensor {
        self.cholesky_solve_with(factor, Triangle::Lower)
    }

    /// [`Tensor::cholesky_solve`] with a factor in this triangle.
    #[autocast]
    pub fn cholesky_solve_with(&self, factor: impl AsTensor, triangle: Triangle) -> Tensor {
        one_on_host("cholesky_solve", [self, factor], |b, [x, l]| {
            square_size(l)?;
            let [l, x] = super::broadcast_batches(b, l, x)?;
            with_factor(b, &l, &x, triangle)
        })
    }

    /// The inverse of the matrices whose lower Cholesky factor this is.
    pub fn cholesky_inverse(&self) -> Tensor {
        self.cholesky_inverse_with(Triangle::Lower)
    }

    /// [`Tensor::cholesky_inverse`] of a factor in this triangle.
    #[autocast]
    pub fn cholesky_inverse_with(&self, triangle: Triangle) -> Tensor {
        one_on_host("cholesky_inverse", [self], |b, [l]| {
            square_size(l)?;
            let (row, column) = coordinates(b, l.dims())?;
            let identity = b.binary(Pw::Eq, &row, &column)?;
            let identity = b.cast(&identity, l.dtype())?;
            let identity = b.broadcast_to(&identity, l.dims())?;
            with_factor(b, l, &identity, triangle)
        })
    }

    /// `A = Q R` with a reduced Q with orthonormal columns and an upper triangular R. The derivative needs the first
    /// k columns of A to be independent, and a reduced Q if there are more rows than columns.
    pub fn qr(&self) -> (Tensor, Tensor) {
        self.qr_with(QrMode::Reduced)
    }

    /// [`Tensor::qr`] in this mode.
    #[autocast]
    pub fn qr_with(&self, mode: QrMode) -> (Tensor, Tensor) {
        on_host("linalg.qr", [self], |b, [a]| {
            let (_, m, n) = matrix_sizes(a)?;
            let (op, k) = match mode {
                QrMode::Complete => (Routine::QrComplete, m.clone()),
                _ => (Routine::Qr, min_dim(&m, &n)?),
            };
            let packed = routine(b, op, &[a])?;
            let mut factors = split_packed(b, &packed, [&[m, k.clone()], &[k, n]])?;
            if mode == QrMode::R {
                factors[0] = b.full(0.0, a.dtype(), &[Dim::ZERO])?;
            }
            Ok(factors)
        })
        .into()
    }

    /// `A = P L U` with a permutation P, a lower triangular L with ones on the diagonal, and an upper triangular U,
    /// for matrices of any shape.
    pub fn lu(&self) -> (Tensor, Tensor, Tensor) {
        on_host("linalg.lu", [self], |b, [a]| {
            let (_, m, n) = matrix_sizes(a)?;
            let k = min_dim(&m, &n)?;
            let (lu, pivots) = factorize(b, a)?;
            let p = permutation(b, &pivots, &m, a.dtype())?;
            let last = a.ndim() - 1;
            let l = b.narrow(&lu, last, 0i64, k.clone())?;
            let l = unit_lower(b, &l)?;
            let u = b.narrow(&lu, last - 1, 0i64, k)?;
            let u = triangle(b, &u, 0, Pw::Ge)?;
            Ok([p, l, u])
        })
        .into()
    }

    /// L, without its ones, and U of [`Tensor::lu`] in one matrix, and the i32 pivots `[.., k]`: at step i, rows i
    /// and `pivot − 1` were swapped. Singular matrices are factored too.
    pub fn lu_factor(&self) -> (Tensor, Tensor) {
        on_host("linalg.lu_factor", [self], |b, [a]| {
            let (lu, pivots) = factorize(b, a)?;
            Ok([lu, pivots])
        })
        .into()
    }

    /// The solution X of `A X = B` with this `L U` and the pivots of [`Tensor::lu_factor`].
    pub fn lu_solve(&self, pivots: impl AsTensor, other: impl AsTensor) -> Tensor {
        one_on_host(
            "linalg.lu_solve",
            [self, pivots, other],
            |b, [lu, pivots, x]| {
                let (_, n) = square_size(lu)?;
                let p = permutation(b, pivots, &n, lu.dtype())?;
                let p = b.transposed(&p)?;
                let x = crate::ops::matmul::matmul(b, &p, x)?;
                let [lu, x] = super::broadcast_batches(b, lu, &x)?;
                let lower = Routine::SolveTriangular {
                    upper: false,
                    unit: true,
                };
                let x = routine(b, lower, &[&lu, &x])?;
                let upper = Routine::SolveTriangular {
                    upper: true,
                    unit: false,
                };
                routine(b, upper, &[&lu, &x])
            },
        )
    }
}

/// Solves `L Lᵀ X = B` or `Uᵀ U X = B` for X.
fn with_factor(
    b: &mut Recorder,
    factor: &Tensor,
    x: &Tensor,
    triangle: Triangle,
) -> Result<Tensor, OpError> {
    let transposed = b.transposed(factor)?;
    let (l, u) = match triangle {
        Triangle::Upper => (&transposed, factor),
        Triangle::Lower => (factor, &transposed),
    };
    let unit = false;
    let x = routine(b, Routine::SolveTriangular { upper: false, unit }, &[l, x])?;
    routine(b, Routine::SolveTriangular { upper: true, unit }, &[u, &x])
}

/// Returns L and U in one matrix, and the pivots.
fn factorize(b: &mut Recorder, a: &Tensor) -> Result<(Tensor, Tensor), OpError> {
    let (_, m, n) = matrix_sizes(a)?;
    let k = min_dim(&m, &n)?;
    let packed = routine(b, Routine::Lu, &[a])?;
    let [factors, pivots] = split_packed(b, &packed, [&[m, n], &[k]])?;
    Ok((factors, b.cast(&pivots, DType::I32)?))
}
