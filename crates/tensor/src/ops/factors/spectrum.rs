//! Singular values, eigenvalues, ranks and condition numbers.

use super::decompose::Triangle;
use super::solve::{default_tolerance, symmetric_if};
use super::{matrix_sizes, on_host, one_on_host, routine, square_size};
use crate::options::options;
use crate::record::Recorder;
use crate::{DType, MatrixNorm, Tensor};
use kiln_base::linalg::Routine;
use kiln_base::prim::Reduction;
use kiln_derive::on_cells;
use kiln_ir::linalg::{min_dim, split_packed};
use kiln_ir::{Builder, OpError, Pw, ensure};

options! {
    /// The sizes of the factors of [`Tensor::svd_with`].
    Svd () {
        /// True if U is `[.., m, m]` and Vᵀ `[.., n, n]` (the default), false if they are `[.., m, k]` and `[.., k,
        /// n]` with k = min(m, n).
        full_matrices: bool = true,
    }
}

/// A bound up to which singular values are treated as 0: a number, or a tensor that broadcasts to the batch.
#[derive(Clone, Debug, Default)]
pub enum Cutoff {
    /// The default.
    #[default]
    Default,
    /// For all matrices.
    Number(f64),
    /// For each matrix.
    Tensor(Tensor),
}

impl From<f64> for Cutoff {
    fn from(n: f64) -> Cutoff {
        Cutoff::Number(n)
    }
}

impl From<&Tensor> for Cutoff {
    fn from(t: &Tensor) -> Cutoff {
        Cutoff::Tensor(t.clone())
    }
}

impl From<Tensor> for Cutoff {
    fn from(t: Tensor) -> Cutoff {
        Cutoff::Tensor(t)
    }
}

options! {
    /// The singular values that [`Tensor::pinv_with`] and [`Tensor::matrix_rank_with`] treat as 0: those of at most
    /// `max(atol, rtol · largest)`. If neither is given, `rtol` is `max(m, n) ε`.
    ///
    /// ```
    /// use kiln_tensor::{Rank, Tensor};
    /// let x = Tensor::from([[3.0, 0.0], [0.0, 1e-3]]);
    /// assert_eq!(x.matrix_rank().item::<i64>()?, 2);
    /// assert_eq!(x.matrix_rank_with(Rank::new().rtol(1e-2)).item::<i64>()?, 1);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    Rank () {
        /// The absolute tolerance.
        atol: Cutoff = Cutoff::Default,
        /// The relative tolerance.
        rtol: Cutoff = Cutoff::Default,
        /// True if the lower triangle represents a symmetric matrix (default false).
        hermitian: bool = false,
    }
}

#[on_cells]
impl Tensor {
    /// U `[.., m, m]`, the singular values S `[.., min(m, n)]`, descending, and Vᵀ `[.., n, n]` of `A = U diag(S)
    /// Vᵀ`. Signs, and directions for equal singular values, are arbitrary; a gradient that depends on them is
    /// meaningless.
    ///
    /// Reading the result is an error if a matrix holds NaN or an infinity.
    pub fn svd(&self) -> (Tensor, Tensor, Tensor) {
        self.svd_with(Svd::new())
    }

    /// [`Tensor::svd`], which can omit the vectors without singular values.
    #[autocast]
    pub fn svd_with(&self, options: Svd) -> (Tensor, Tensor, Tensor) {
        on_host("linalg.svd", [self], |b, [a]| {
            let (_, m, n) = matrix_sizes(a)?;
            let k = min_dim(&m, &n)?;
            let (op, rows, columns) = match options.full_matrices {
                true => (Routine::SvdFull, m.clone(), n.clone()),
                false => (Routine::Svd, k.clone(), k.clone()),
            };
            let packed = routine(b, op, &[a])?;
            split_packed(b, &packed, [&[m, rows], &[k], &[columns, n]])
        })
        .into()
    }

    /// The singular values alone, descending. Their derivative is also right for equal ones.
    #[autocast]
    pub fn svdvals(&self) -> Tensor {
        one_on_host("linalg.svdvals", [self], |b, [a]| {
            super::singular_values(b, a)
        })
    }

    /// The eigenvalues `[.., n]`, ascending, of symmetric matrices, and their eigenvectors as columns of `[.., n,
    /// n]`, from the lower triangle. Signs, and directions for equal eigenvalues, are arbitrary; a gradient that
    /// depends on them is meaningless.
    ///
    /// Reading the result is an error if that triangle holds NaN or an infinity.
    pub fn eigh(&self) -> (Tensor, Tensor) {
        self.eigh_with(Triangle::Lower)
    }

    /// [`Tensor::eigh`] from this triangle.
    #[autocast]
    pub fn eigh_with(&self, triangle: Triangle) -> (Tensor, Tensor) {
        on_host("linalg.eigh", [self], |b, [a]| {
            let (_, n) = square_size(a)?;
            let a = transposed(b, a, triangle)?;
            let packed = routine(b, Routine::Eigh, &[&a])?;
            split_packed(
                b,
                &packed,
                [std::slice::from_ref(&n), &[n.clone(), n.clone()]],
            )
        })
        .into()
    }

    /// The eigenvalues of [`Tensor::eigh`] alone.
    pub fn eigvalsh(&self) -> Tensor {
        self.eigvalsh_with(Triangle::Lower)
    }

    /// [`Tensor::eigvalsh`] from this triangle.
    #[autocast]
    pub fn eigvalsh_with(&self, triangle: Triangle) -> Tensor {
        one_on_host("linalg.eigvalsh", [self], |b, [a]| {
            square_size(a)?;
            let a = transposed(b, a, triangle)?;
            routine(b, Routine::Eigenvalues, &[&a])
        })
    }

    /// The number of singular values that are not treated as 0, as i64; see [`Rank`].
    pub fn matrix_rank(&self) -> Tensor {
        self.matrix_rank_with(Rank::new())
    }

    /// [`Tensor::matrix_rank`] with other tolerances.
    #[autocast]
    pub fn matrix_rank_with(&self, options: Rank) -> Tensor {
        one_on_host("linalg.matrix_rank", [self], |b, [a]| {
            let a = symmetric_if(options.hermitian, b, a)?;
            let [atol, rtol] = tolerances(b, &a, &options.atol, &options.rtol)?;
            let values = super::singular_values(b, &a)?;
            rank(b, &values, &atol, &rtol)
        })
    }

    /// The condition number: the norm of a matrix times that of its inverse. For the orders ±2 it is computed from
    /// singular values, for matrices of any shape; for other norms matrices must be square, and a singular one gives
    /// infinity. PyTorch's default is 2.
    #[autocast]
    pub fn cond(&self, p: impl Into<MatrixNorm>) -> Tensor {
        one_on_host("linalg.cond", [self], |b, [a]| {
            let (batch, m, n) = matrix_sizes(a)?;
            if m.is(0) || n.is(0) {
                return b.full(0.0, a.dtype(), &batch);
            }
            if let MatrixNorm::Order(order) = p
                && order.abs() == 2.0
            {
                let values = super::singular_values(b, a)?;
                let last = values.ndim() - 1;
                let large = b.reduce(Reduction::Max, &values, &[last], false)?;
                let small = b.reduce(Reduction::Min, &values, &[last], false)?;
                return match order > 0.0 {
                    true => b.binary(Pw::Div, &large, &small),
                    false => b.binary(Pw::Div, &small, &large),
                };
            }
            square_size(a)?;
            let inverse = routine(b, Routine::InverseUnchecked, &[a])?;
            let [own, other] = [a, &inverse].map(|x| x.matrix_norm(p, [-2, -1]));
            for norm in [&own, &other] {
                if let Some(e) = norm.error() {
                    return Err(OpError(e.message().to_string()));
                }
            }
            let product = b.binary(Pw::Mul, &own, &other)?;
            // A singular matrix's inverse is infinite or NaN. A NaN of A itself stays.
            let nan = b.unary(Pw::IsNan, &product)?;
            let has_values = b.unary(Pw::IsNan, &own)?;
            let has_values = b.unary(Pw::Not, &has_values)?;
            let singular = b.binary(Pw::And, &nan, &has_values)?;
            b.fill_where(&singular, f64::INFINITY, &product)
        })
    }
}

/// Transposes if `triangle` is the upper one.
fn transposed(b: &mut Recorder, a: &Tensor, triangle: Triangle) -> Result<Tensor, OpError> {
    match triangle {
        Triangle::Upper => b.transposed(a),
        Triangle::Lower => Ok(a.clone()),
    }
}

/// Returns the absolute and the relative tolerance for each matrix of a batch.
pub(super) fn tolerances(
    b: &mut Recorder,
    a: &Tensor,
    atol: &Cutoff,
    rtol: &Cutoff,
) -> Result<[Tensor; 2], OpError> {
    let (batch, ..) = matrix_sizes(a)?;
    let mut of = |given: &Cutoff| {
        let number = match given {
            Cutoff::Tensor(t) => {
                ensure!(
                    t.dtype().is_float(),
                    "a tolerance must be a float, not {}",
                    t.fact()
                );
                let t = t.to(crate::Device::Cpu);
                b.cast(&t, a.dtype())?
            }
            Cutoff::Number(n) => b.full(*n, a.dtype(), &[])?,
            Cutoff::Default => b.full(0.0, a.dtype(), &[])?,
        };
        b.broadcast_to(&number, &batch)
    };
    let (absolute, relative) = (of(atol)?, of(rtol)?);
    if !matches!(rtol, Cutoff::Default) {
        return Ok([absolute, relative]);
    }
    // An absolute tolerance above 0 replaces the default of the relative one.
    let none = b.with(Pw::Gt, &absolute, 0.0)?;
    let default = b.full(default_tolerance(a)?, a.dtype(), &batch)?;
    let relative = b.fill_where(&none, 0.0, &default)?;
    Ok([absolute, relative])
}

/// Returns the number of singular values above the tolerances.
pub(super) fn rank(
    b: &mut Recorder,
    values: &Tensor,
    atol: &Tensor,
    rtol: &Tensor,
) -> Result<Tensor, OpError> {
    let last = values.ndim() - 1;
    if values.dims()[last].is(0) {
        return b.full(0i64, DType::I64, &values.dims()[..last]);
    }
    let largest = b.narrow(values, last, 0i64, 1i64)?;
    let (atol, rtol) = (b.unsqueeze(atol, last)?, b.unsqueeze(rtol, last)?);
    let bound = b.binary(Pw::Mul, &largest, &rtol)?;
    let bound = b.binary(Pw::Maximum, &bound, &atol)?;
    let above = b.binary(Pw::Gt, values, &bound)?;
    let above = b.cast(&above, DType::I64)?;
    b.sum(&above, &[last], false)
}
