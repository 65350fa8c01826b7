//! Norms, powers and products of matrices and vectors.

use super::args::{DimArgs, Int, MaybeInt, ReducedDims, axis, check_alike, check_float, known};
use super::diagonal::coordinates;
use super::matmul::matmul;
use super::reduce::norm;
use crate::operand::{AsTensor, MaybeTensor};
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor};
use kiln_base::prim::Reduction;
use kiln_base::{Dim, numel};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

/// The choice of a matrix norm.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum MatrixNorm {
    /// The root of the sum of squares.
    Frobenius,
    /// The sum of the singular values; with the feature `linalg`.
    Nuclear,
    /// ±1: the largest or smallest sum of the absolute values of a column; ±∞: of a row; with the feature `linalg`
    /// ±2: the largest or smallest singular value. Other orders are errors.
    Order(f64),
}

impl MatrixNorm {
    fn needs_singular_values(self) -> bool {
        match self {
            MatrixNorm::Nuclear => true,
            MatrixNorm::Order(p) => p.abs() == 2.0,
            MatrixNorm::Frobenius => false,
        }
    }
}

impl From<f64> for MatrixNorm {
    fn from(order: f64) -> MatrixNorm {
        MatrixNorm::Order(order)
    }
}

#[on_cells]
impl Tensor {
    /// The norm of the matrices that two dims form, rows before columns; `()` selects the last two.
    #[autocast]
    pub fn matrix_norm(&self, ord: impl Into<MatrixNorm>, dims: impl Into<ReducedDims>) -> Tensor {
        if ord.needs_singular_values() {
            return singular_norm(self, ord, &dims);
        }
        let keepdim = dims.keepdim;
        compose("matrix_norm", &[self], |b| {
            let [rows, columns] = rows_and_columns(self, &dims.dims)?;
            let x = b.widen(self)?;
            let both = [rows.min(columns), rows.max(columns)];
            let (added, kind) = match ord {
                MatrixNorm::Frobenius => {
                    let norm = norm(b, &x, 2.0, &both, keepdim)?;
                    return b.cast(&norm, self.dtype());
                }
                MatrixNorm::Order(1.0) => (rows, Reduction::Max),
                MatrixNorm::Order(-1.0) => (rows, Reduction::Min),
                MatrixNorm::Order(f64::INFINITY) => (columns, Reduction::Max),
                MatrixNorm::Order(f64::NEG_INFINITY) => (columns, Reduction::Min),
                MatrixNorm::Order(p) => {
                    return Err(OpError(format!("there is no matrix norm of order {p}")));
                }
                MatrixNorm::Nuclear => unreachable!("needs singular values"),
            };
            let other = rows + columns - added;
            let size = b.unary(Pw::Abs, &x)?;
            let norms = b.sum(&size, &[added], true)?;
            let extreme = b.reduce(kind, &norms, &[other], true)?;
            let kept = (0..x.ndim()).filter(|a| keepdim || !both.contains(a));
            let shape: Shape = kept.map(|a| extreme.dims()[a].clone()).collect();
            let extreme = b.reshape(&extreme, &shape)?;
            b.cast(&extreme, self.dtype())
        })
    }

    /// The n-th power of each square matrix; of its inverse, if n is negative (with the feature `linalg`).
    pub fn matrix_power(&self, n: impl Into<Int>) -> Tensor {
        if n < 0 {
            let inverse = inverse(self, n);
            return match n.checked_neg() {
                Some(n) => inverse.matrix_power(n),
                None => inverse.matrix_power(i64::MAX).matmul(&inverse),
            };
        }
        compose("matrix_power", &[self], |b| {
            check_square(self)?;
            let (mut result, mut square, mut left) = (None, self.clone(), n);
            while left > 0 {
                if left % 2 == 1 {
                    result = Some(match result {
                        None => square.clone(),
                        Some(r) => matmul(b, &r, &square)?,
                    });
                }
                left /= 2;
                if left > 0 {
                    square = matmul(b, &square, &square)?;
                }
            }
            match result {
                Some(result) => Ok(result),
                None => {
                    let eye = identity(b, self)?;
                    let eye = b.broadcast_to(&eye, self.dims())?;
                    b.connect(&eye, self)
                }
            }
        })
    }

    /// The exponential of each square matrix, `Σ Aᵏ / k!`.
    ///
    /// Computed by scaling and squaring: a Taylor polynomial of A / 2ˢ, squared s times, where s reduces the norm of
    /// each matrix to at most ½. All matrices go through the largest number of squarings, but each keeps the result
    /// after its own s. A matrix with a norm above 2¹⁵ gives NaN, unless it is 1 × 1.
    pub fn matrix_exp(&self) -> Tensor {
        compose("matrix_exp", &[self], |b| {
            check_float(self, "operand")?;
            check_square(self)?;
            if self.dims().iter().any(|d| d.is(0)) {
                return Ok(self.clone());
            }
            let x = b.widen(self)?;
            let y = match self.dims()[self.ndim() - 1].is(1) {
                true => b.unary(Pw::Exp, &x)?,
                false => exponential(b, &x)?,
            };
            b.cast(&y, self.dtype())
        })
    }

    /// The dot products of vectors along a dim of both tensors, which broadcast.
    #[autocast]
    pub fn vecdot(&self, other: impl AsTensor, dim: impl Into<Int>) -> Tensor {
        compose("vecdot", &[self, other], |b| {
            check_float(self, "operand")?;
            check_alike(self, "operand", other, "other operand")?;
            let (x, y) = (b.widen(self)?, b.widen(other)?);
            let product = b.binary(Pw::Mul, &x, &y)?;
            let a = axis(&product, dim)?;
            let sum = b.sum(&product, &[a], false)?;
            b.cast(&sum, self.dtype())
        })
    }

    /// The cross product of vectors of 3 elements along a dim of both tensors; the other dims broadcast.
    #[autocast]
    pub fn cross(&self, other: impl AsTensor, dim: impl Into<Int>) -> Tensor {
        compose("cross", &[self, other], |b| {
            ensure!(
                self.ndim() == other.ndim(),
                "{} and {} must have as many dims",
                self.fact(),
                other.fact()
            );
            let a = axis(self, dim)?;
            ensure!(
                self.dims()[a].is(3) && other.dims()[a].is(3),
                "dim {dim} of {} and of {} must have length 3",
                self.fact(),
                other.fact()
            );
            let (x, y) = b.promoted(self, other)?;
            let dtype = x.dtype();
            let (x, y) = (b.widen(&x)?, b.widen(&y)?);
            let mut columns = Vec::new();
            for i in 0..3 {
                let (j, k) = ((i + 1) % 3, (i + 2) % 3);
                let mut product = |i: i64, j: i64| {
                    let (p, q) = (b.narrow(&x, a, i, 1i64)?, b.narrow(&y, a, j, 1i64)?);
                    // PyTorch rounds the products of f16 and bf16.
                    let product = b.binary(Pw::Mul, &p, &q)?;
                    let product = b.cast(&product, dtype)?;
                    b.widen(&product)
                };
                let (plus, minus) = (product(j, k)?, product(k, j)?);
                columns.push(b.binary(Pw::Sub, &plus, &minus)?);
            }
            let y = b.concat(&columns, a)?;
            b.cast(&y, dtype)
        })
    }

    /// The Kronecker product: each element of this tensor times the whole other tensor, as blocks.
    pub fn kron(&self, other: impl AsTensor) -> Tensor {
        compose("kron", &[self, other], |b| {
            let (x, y) = b.promoted(self, other)?;
            let rank = x.ndim().max(y.ndim());
            let size = |t: &Tensor, i: usize| match (i + t.ndim()).checked_sub(rank) {
                Some(a) => t.dims()[a].clone(),
                None => Dim::ONE,
            };
            let (mut outer, mut inner, mut joined) = (Shape::new(), Shape::new(), Shape::new());
            for i in 0..rank {
                let (m, n) = (size(&x, i), size(&y, i));
                joined.push(&m * &n);
                outer.extend([m, Dim::ONE]);
                inner.extend([Dim::ONE, n]);
            }
            let (x, y) = (b.reshape(&x, &outer)?, b.reshape(&y, &inner)?);
            let product = b.times(&x, &y)?;
            b.reshape(&product, &joined)
        })
    }

    /// The powers `x⁰, …, xⁿ⁻¹` of each number in a new last dim (Vandermonde matrices), where n is the size of the
    /// last dim.
    pub fn vander(&self) -> Tensor {
        self.vander_with(None)
    }

    /// [`Tensor::vander`] with `n` powers.
    pub fn vander_with(&self, n: impl Into<MaybeInt>) -> Tensor {
        let n = n.0;
        compose("vander", &[self], |b| {
            ensure!(self.dtype() != DType::Bool, "is not defined on bool");
            let x = super::index::as_vector(b, self)?;
            let n = match n {
                Some(n) => n,
                None => known(&x, x.ndim() - 1)?,
            };
            ensure!(n > 1, "needs at least 2 powers, not {n}");
            let exponents = b.iota(&Dim::Const(n))?;
            let exponents = b.cast(&exponents, x.dtype())?;
            let column = b.unsqueeze(&x, x.ndim())?;
            b.binary(Pw::Pow, &column, &exponents)
        })
    }

    /// `x1 · weight · x2`: `[.., o]` for inputs `[.., i]` and `[.., j]` and a weight `[o, i, j]`.
    pub fn bilinear(&self, x2: impl AsTensor, weight: impl AsTensor) -> Tensor {
        self.bilinear_with(x2, weight, None::<Tensor>)
    }

    /// `x1 · weight · x2 + bias`, see [`Tensor::bilinear`], with a bias `[o]` if there is one.
    #[autocast]
    pub fn bilinear_with(
        &self,
        x2: impl AsTensor,
        weight: impl AsTensor,
        bias: impl MaybeTensor,
    ) -> Tensor {
        let mut operands = vec![self, x2, weight];
        operands.extend(bias);
        compose("bilinear", &operands, |b| {
            for (t, what) in [(x2, "second input"), (weight, "weight")] {
                check_alike(self, "input", t, what)?;
            }
            let (n, m) = (self.ndim(), x2.ndim());
            ensure!(
                n >= 1
                    && n == m
                    && weight.ndim() == 3
                    && self.dims()[..n - 1] == x2.dims()[..m - 1],
                "the inputs {} and {} and the weight {} must be [.., i], [.., j] and [o, i, j]",
                self.fact(),
                x2.fact(),
                weight.fact()
            );
            let [o, i, j] = [0, 1, 2].map(|a| weight.dims()[a].clone());
            ensure!(
                self.dims()[n - 1] == i && x2.dims()[n - 1] == j,
                "the inputs {} and {} do not fit the weight {}",
                self.fact(),
                x2.fact(),
                weight.fact()
            );
            let samples = numel(&self.dims()[..n - 1]);
            let x = b.reshape(self, &[samples.clone(), i.clone()])?;
            let y = b.reshape(x2, &[samples.clone(), Dim::ONE, j.clone()])?;
            let (x, y, w) = (b.widen(&x)?, b.widen(&y)?, b.widen(weight)?);
            let w = b.permute(&w, &[1, 0, 2])?;
            let w = b.reshape(&w, &[i, &o * &j])?;
            let half = b.product(&x, &w)?;
            let half = b.reshape(&half, &[samples, o.clone(), j])?;
            let product = b.binary(Pw::Mul, &half, &y)?;
            let mut out = b.sum(&product, &[2], false)?;
            if let Some(bias) = bias {
                check_alike(self, "input", bias, "bias")?;
                ensure!(
                    bias.ndim() == 1 && bias.dims()[0] == o,
                    "the bias must hold {o} numbers, not {}",
                    bias.fact()
                );
                let bias = b.cast(bias, out.dtype())?;
                out = b.binary(Pw::Add, &out, &bias)?;
            }
            let mut shape = Shape::from(&self.dims()[..n - 1]);
            shape.push(o);
            let out = b.reshape(&out, &shape)?;
            b.cast(&out, self.dtype())
        })
    }
}

/// Returns the axes of rows and columns that two dims name.
fn rows_and_columns(x: &Tensor, dims: &DimArgs) -> Result<[usize; 2], OpError> {
    check_float(x, "operand")?;
    let (rows, columns) = match &dims.0[..] {
        [] => (axis(x, -2)?, axis(x, -1)?),
        [rows, columns] => (axis(x, rows)?, axis(x, columns)?),
        dims => return Err(OpError(format!("a matrix has 2 dims, not {}", dims.len()))),
    };
    ensure!(rows != columns, "rows and columns are the same dim");
    Ok([rows, columns])
}

/// A norm of the singular values of the matrices that two dims form.
#[cfg(feature = "linalg")]
#[track_caller]
fn singular_norm(x: &Tensor, ord: MatrixNorm, reduced: &ReducedDims) -> Tensor {
    super::factors::one_on_host("matrix_norm", [x], |b, [x]| {
        let [rows, columns] = rows_and_columns(x, &reduced.dims)?;
        let batch_axes = (0..x.ndim()).filter(|a| *a != rows && *a != columns);
        let perm: Vec<usize> = batch_axes.chain([rows, columns]).collect();
        let wide = b.widen(x)?;
        let matrices = b.permute(&wide, &perm)?;
        let values = super::factors::singular_values(b, &matrices)?;
        let kind = match ord {
            MatrixNorm::Nuclear => Reduction::Sum,
            MatrixNorm::Order(p) if p < 0.0 => Reduction::Min,
            _ => Reduction::Max,
        };
        let norm = b.reduce(kind, &values, &[values.ndim() - 1], false)?;
        let norm = b.cast(&norm, x.dtype())?;
        if !reduced.keepdim {
            return Ok(norm);
        }
        let mut shape = Shape::from(x.dims());
        (shape[rows], shape[columns]) = (Dim::ONE, Dim::ONE);
        b.reshape(&norm, &shape)
    })
}

#[cfg(not(feature = "linalg"))]
#[track_caller]
fn singular_norm(x: &Tensor, ord: MatrixNorm, _: &ReducedDims) -> Tensor {
    compose("matrix_norm", &[x], |_| {
        Err(OpError(format!(
            "the norm {ord:?} needs singular values; turn on the feature `linalg` of this crate"
        )))
    })
}

#[cfg(feature = "linalg")]
#[track_caller]
fn inverse(x: &Tensor, _: i64) -> Tensor {
    super::factors::one_on_host("linalg.matrix_power", [x], |b, [x]| {
        super::factors::inverse(b, x)
    })
}

#[cfg(not(feature = "linalg"))]
#[track_caller]
fn inverse(x: &Tensor, n: i64) -> Tensor {
    compose("matrix_power", &[x], |_| {
        Err(OpError(format!(
            "the power {n} needs an inverse; turn on the feature `linalg` of this crate"
        )))
    })
}

fn check_square(x: &Tensor) -> Result<(), OpError> {
    let n = x.ndim();
    ensure!(
        n >= 2 && x.dims()[n - 1] == x.dims()[n - 2],
        "needs square matrices, not {}",
        x.fact()
    );
    Ok(())
}

/// An identity matrix of the size and dtype of x.
fn identity(b: &mut Recorder, x: &Tensor) -> Recorded {
    let (row, column) = coordinates(b, x.dims())?;
    let same = b.binary(Pw::Eq, &row, &column)?;
    b.cast(&same, x.dtype())
}

/// See [`Tensor::matrix_exp`]. The polynomial of degree 15 has an error of ½¹⁶ / 16!, below the precision of f64. It
/// is summed in groups of 4 powers (Paterson and Stockmeyer, 1973).
fn exponential(b: &mut Recorder, x: &Tensor) -> Recorded {
    const SQUARINGS: i64 = 16;
    let n = x.ndim();
    let size = b.unary(Pw::Abs, &x.detach())?;
    let column_sums = b.sum(&size, &[n - 2], true)?;
    let norm = b.reduce(Reduction::Max, &column_sums, &[n - 1], true)?;
    let times = b.with(Pw::Maximum, &norm, 0.5)?;
    let times = b.with(Pw::Mul, &times, 2.0)?;
    let times = b.unary(Pw::Log2, &times)?;
    let times = b.unary(Pw::Ceil, &times)?;
    let times = b.with(Pw::Minimum, &times, SQUARINGS as f64)?;
    let minus = b.unary(Pw::Neg, &times)?;
    let factor = b.unary(Pw::Exp2, &minus)?;
    let x = b.binary(Pw::Mul, x, &factor)?;

    let square = matmul(b, &x, &x)?;
    let cube = matmul(b, &square, &x)?;
    let fourth = matmul(b, &square, &square)?;
    let mut powers = vec![identity(b, &x)?, x.clone(), square, cube];
    powers[0] = b.broadcast_to(&powers[0], x.dims())?;
    let mut coefficient = [1f64; 16];
    for k in 1..16 {
        coefficient[k] = coefficient[k - 1] / k as f64;
    }
    let mut y: Option<Tensor> = None;
    for group in coefficient.chunks(4).rev() {
        if let Some(higher) = &y {
            y = Some(matmul(b, higher, &fourth)?);
        }
        for (c, power) in group.iter().zip(&powers) {
            let term = b.with(Pw::Mul, power, *c)?;
            y = Some(b.accumulate(Pw::Add, y, term)?);
        }
    }
    let Some(mut y) = y else {
        unreachable!("there are coefficients")
    };
    for done in 0..SQUARINGS {
        let squared = matmul(b, &y, &y)?;
        let more = b.with(Pw::Gt, &times, done as f64)?;
        y = b.select(&more, &squared, &y)?;
    }
    let beyond = b.with(Pw::Gt, &norm, 2f64.powi(SQUARINGS as i32 - 1))?;
    b.fill_where(&beyond, f64::NAN, &y)
}
