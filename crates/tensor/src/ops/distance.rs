//! Distances and angles between vectors.

use super::args::{DimArg, DimArgs, check_alike, check_float, check_listable, known};
use super::reduce::norm;
use super::short::wide;
use crate::operand::{AsTensor, listed};
use crate::options::options;
use crate::record::{Recorder, compose};
use crate::{DType, Tensor, autocast, promote};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, ensure};

options! {
    /// The options of [`Tensor::cosine_similarity`].
    Cosine () {
        /// The dim of the vectors (default 1).
        dim: DimArg = 1,
        /// The minimum norm (default 1e-8); smaller norms are replaced by it.
        eps: f64 = 1e-8,
    }
}

options! {
    /// The options of [`Tensor::pairwise_distance`].
    Pairwise () {
        /// The order of the norm (default 2).
        p: f64 = 2.0,
        /// A number added to each difference (default 1e-6).
        eps: f64 = 1e-6,
        /// True if the dim is kept with size 1 (default false).
        keepdim: bool = false,
    }
}

#[on_cells]
impl Tensor {
    /// The cosine of the angle between vectors along dim 1.
    pub fn cosine_similarity(&self, x2: impl AsTensor) -> Tensor {
        self.cosine_similarity_with(x2, Cosine::new())
    }

    /// [`Tensor::cosine_similarity`] along another dim or with another minimum norm.
    #[autocast]
    pub fn cosine_similarity_with(&self, x2: impl AsTensor, options: Cosine) -> Tensor {
        compose("cosine_similarity", &[self, x2], |b| {
            let (x, y) = b.promoted(self, x2)?;
            check_float(&x, "operand")?;
            let dtype = x.dtype();
            let (x, y) = (b.widen(&x)?, b.widen(&y)?);
            let shape = kiln_ir::broadcast_shapes([x.dims(), y.dims()]).ok_or_else(|| {
                OpError(format!(
                    "{} and {} do not broadcast",
                    self.fact(),
                    x2.fact()
                ))
            })?;
            let (x, y) = (b.broadcast_to(&x, &shape)?, b.broadcast_to(&y, &shape)?);
            let axes = DimArgs::from(&options.dim).axes(&x)?;
            let unit = |b: &mut Recorder, v: &Tensor| {
                let norm = norm(b, v, 2.0, &axes, true)?;
                let norm = b.with(Pw::Maximum, &norm, options.eps)?;
                b.binary(Pw::Div, v, &norm)
            };
            let (x, y) = (unit(b, &x)?, unit(b, &y)?);
            let product = b.binary(Pw::Mul, &x, &y)?;
            let cosine = b.sum(&product, &axes, false)?;
            b.cast(&cosine, dtype)
        })
    }

    /// The Euclidean norm of `x1 − x2 + 1e-6` along the last dim.
    pub fn pairwise_distance(&self, x2: impl AsTensor) -> Tensor {
        self.pairwise_distance_with(x2, Pairwise::new())
    }

    /// [`Tensor::pairwise_distance`] with another norm: the p-norm of `x1 − x2 + eps`.
    pub fn pairwise_distance_with(&self, x2: impl AsTensor, options: Pairwise) -> Tensor {
        compose("pairwise_distance", &[self, x2], |b| {
            let (x, y) = b.promoted(self, x2)?;
            let dtype = promote::float_dtype(x.dtype());
            let wide = wide(dtype);
            let (x, y) = (b.cast(&x, wide)?, b.cast(&y, wide)?);
            let difference = b.binary(Pw::Sub, &x, &y)?;
            let difference = b.with(Pw::Add, &difference, options.eps)?;
            ensure!(difference.ndim() > 0, "needs vectors, not numbers");
            let last = difference.ndim() - 1;
            let norm = norm(b, &difference, options.p, &[last], options.keepdim)?;
            b.cast(&norm, dtype)
        })
    }

    /// The Euclidean norm of `self − other`, flattened.
    pub fn dist(&self, other: impl AsTensor) -> Tensor {
        self.dist_with(other, 2.0)
    }

    /// [`Tensor::dist`] with the p-norm.
    #[autocast]
    pub fn dist_with(&self, other: impl AsTensor, p: f64) -> Tensor {
        compose("dist", &[self, other], |b| {
            check_alike(self, "operand", other, "other operand")?;
            check_float(self, "operand")?;
            let (x, y) = (b.widen(self)?, b.widen(other)?);
            let difference = b.binary(Pw::Sub, &x, &y)?;
            let flat = b.reshape(&difference, &[difference.fact().numel()])?;
            let norm = norm(b, &flat, p, &[0], false)?;
            b.cast(&norm, self.dtype())
        })
    }
}

#[on_cells]
impl Tensor {
    /// The Euclidean distances of the rows of a matrix, `[n · (n − 1) / 2]`: row 0 to rows 1, 2, …, then
    /// row 1, and so on.
    pub fn pdist(&self) -> Tensor {
        self.pdist_with(2.0)
    }

    /// [`Tensor::pdist`] with the p-norm.
    #[autocast]
    pub fn pdist_with(&self, p: f64) -> Tensor {
        compose("pdist", &[self], |b| {
            check_float(self, "operand")?;
            ensure!(self.ndim() == 2, "expected a matrix, not {}", self.fact());
            ensure!(p >= 0.0, "the order of a distance can't be negative ({p})");
            let n = known(self, 0)?;
            check_listable(
                n.checked_mul(n).map(|n| n / 2),
                &format!("the pairs of the {n} rows of {}", self.fact()),
            )?;
            let pairs = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
            let (rows_a, rows_b): (Vec<i64>, Vec<i64>) = pairs.unzip();
            let (rows_a, rows_b) = (
                b.list(&rows_a, &[rows_a.len()], DType::I64)?,
                b.list(&rows_b, &[rows_b.len()], DType::I64)?,
            );
            let x = b.index_select(self, 0, &rows_a)?;
            let y = b.index_select(self, 0, &rows_b)?;
            let difference = b.binary(Pw::Sub, &x, &y)?;
            norm(b, &difference, p, &[1], false)
        })
    }
}

/// The Euclidean distances of each row of x1 `[.., p, m]` to each row of x2 `[.., r, m]`: `[.., p, r]`.
#[track_caller]
pub fn cdist(x1: impl AsTensor, x2: impl AsTensor) -> Tensor {
    cdist_with(x1, x2, 2.0)
}

/// [`cdist`] with the p-norm.
#[track_caller]
pub fn cdist_with(x1: impl AsTensor, x2: impl AsTensor, p: f64) -> Tensor {
    let mut both = listed([&*x1.as_tensor(), &*x2.as_tensor()]);
    autocast::cast_all("cdist", &mut both);
    let (x1, x2) = (&both[0], &both[1]);
    compose("cdist", &[x1, x2], |b| {
        check_float(x1, "operand")?;
        check_alike(x1, "first operand", x2, "second")?;
        ensure!(p >= 0.0, "the order of a distance can't be negative ({p})");
        let (n, m) = (x1.ndim(), x2.ndim());
        ensure!(
            n >= 2 && m >= 2,
            "{} and {} must have at least 2 dims",
            x1.fact(),
            x2.fact()
        );
        ensure!(
            x1.dims()[n - 1] == x2.dims()[m - 1],
            "the rows of {} and {} differ in length",
            x1.fact(),
            x2.fact()
        );
        let x = b.unsqueeze(x1, n - 1)?;
        let y = b.unsqueeze(x2, m - 2)?;
        let difference = b.binary(Pw::Sub, &x, &y)?;
        let last = difference.ndim() - 1;
        norm(b, &difference, p, &[last], false)
    })
}
