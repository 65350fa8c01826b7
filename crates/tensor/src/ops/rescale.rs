//! Scaling by norms.

use super::args::{DimArg, DimArgs, Int, axis, check_float};
use super::reduce::norm;
use crate::Tensor;
use crate::options::options;
use crate::record::compose;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, ensure};

/// The maximum number of channels on either side that a local response norm adds; each is recorded separately.
const MAX_WINDOW: i64 = 1 << 12;

options! {
    /// The norm of [`Tensor::normalize_with`].
    Normalize () {
        /// Its order (default 2).
        p: f64 = 2.0,
        /// The minimum of the norm that vectors are divided by (default 1e-12).
        eps: f64 = 1e-12,
    }
}

options! {
    /// The divisor of [`Tensor::local_response_norm`]; a number of channels converts into it.
    LocalResponse (
        /// The number of neighbouring channels.
        size: Int
    ) {
        /// The factor of their mean square (default 1e-4).
        alpha: f64 = 1e-4,
        /// The exponent (default 0.75).
        beta: f64 = 0.75,
        /// A number that is added (default 1).
        k: f64 = 1.0,
    }
}

#[on_cells]
impl Tensor {
    /// Each vector along the dims divided by its Euclidean norm.
    pub fn normalize(&self, dims: impl Into<DimArgs>) -> Tensor {
        self.normalize_with(dims, Normalize::new())
    }

    /// [`Tensor::normalize`] by another norm.
    pub fn normalize_with(&self, dims: impl Into<DimArgs>, options: Normalize) -> Tensor {
        let Normalize { p, eps } = options;
        compose("normalize", &[self], |b| {
            check_float(self, "operand")?;
            let axes = dims.axes_or_all(self)?;
            let x = b.widen(self)?;
            let norm = norm(b, &x, p, &axes, true)?;
            let norm = b.with(Pw::Maximum, &norm, eps)?;
            let y = b.binary(Pw::Div, &x, &norm)?;
            b.cast(&y, self.dtype())
        })
    }

    /// `x / (k + alpha · mean of x² over neighbouring channels)^beta` of `[n, c, ..]` (Krizhevsky et al., 2012).
    /// [`LocalResponse`] gives the number of channels, alpha, beta and k.
    pub fn local_response_norm(&self, size: impl Into<LocalResponse>) -> Tensor {
        let LocalResponse { alpha, beta, k, .. } = size;
        let size = size.size.0;
        compose("local_response_norm", &[self], |b| {
            ensure!(self.ndim() >= 3, "{} has fewer than 3 dims", self.fact());
            ensure!(size > 0, "the size must be positive, not {size}");
            if self.fact().numel().is(0) {
                return Ok(self.clone());
            }
            check_float(self, "input")?;
            let x = b.widen(self)?;
            let square = b.unary(Pw::Square, &x)?;
            // Beyond the number of channels there is only padding with zeros.
            let channels = self.dims()[1].as_const().unwrap_or(MAX_WINDOW);
            let (low, high) = ((size / 2).min(channels), ((size - 1) / 2).min(channels));
            ensure!(
                low.max(high) <= MAX_WINDOW,
                "windows of {size} channels are too large"
            );
            let padded = b.pad_axis(&square, 1, low, high, 0.0)?;
            let mut sum: Option<Tensor> = None;
            for i in 0..=low + high {
                let shifted = b.narrow(&padded, 1, i, self.dims()[1].clone())?;
                sum = Some(b.accumulate(Pw::Add, sum, shifted)?);
            }
            let sum = sum.ok_or_else(|| OpError::new("the size must be positive"))?;
            let mean = b.with(Pw::Mul, &sum, alpha / size as f64)?;
            let base = b.with(Pw::Add, &mean, k)?;
            let divisor = b.with(Pw::Pow, &base, beta)?;
            let y = b.binary(Pw::Div, &x, &divisor)?;
            b.cast(&y, self.dtype())
        })
    }

    /// The slices of a dim, each scaled down to the p-norm `maxnorm` if its norm is larger. With `dim` 0 and p 2 this
    /// is the step that PyTorch's `embedding` with a `max_norm` applies before the lookup.
    #[autocast]
    pub fn renorm(&self, p: f64, dim: impl Into<DimArg>, maxnorm: f64) -> Tensor {
        compose("renorm", &[self], |b| {
            check_float(self, "operand")?;
            ensure!(
                self.ndim() > 1,
                "needs at least 2 dims, not {}",
                self.fact()
            );
            ensure!(p > 0.0, "the order of a norm must be positive, not {p}");
            ensure!(
                maxnorm >= 0.0,
                "maxnorm must not be negative, but is {maxnorm}"
            );
            let a = axis(self, &dim)?;
            let axes: Vec<usize> = (0..self.ndim()).filter(|i| *i != a).collect();
            let x = b.widen(self)?;
            let norm = norm(b, &x, p, &axes, true)?;
            let large = b.with(Pw::Gt, &norm, maxnorm)?;
            let divisor = b.with(Pw::Add, &norm, 1e-7)?;
            let limit = b.scalar_like(maxnorm, &norm)?;
            let factor = b.binary(Pw::Div, &limit, &divisor)?;
            let unit = b.scalar_like(1.0, &norm)?;
            let factor = b.select(&large, &factor, &unit)?;
            let y = b.binary(Pw::Mul, &x, &factor)?;
            b.cast(&y, self.dtype())
        })
    }
}
