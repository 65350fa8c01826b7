//! Dropout of elements and of whole channels.

use super::args::check_float;
use crate::Tensor;
use crate::random::numbers;
use crate::record::{Recorded, Recorder, compose};
use kiln_base::prim::RandomKind;
use kiln_base::{DType, Dim};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

#[on_cells]
impl Tensor {
    /// Zeroes each element with probability `p` and scales the others by 1 / (1 − p).
    pub fn dropout(&self, p: f64) -> Tensor {
        self.dropout_with(p, true)
    }

    /// [`Tensor::dropout`]; the identity unless `training`.
    pub fn dropout_with(&self, p: f64, training: bool) -> Tensor {
        compose("dropout", &[self], |b| {
            if !drops_elements(self, p, training)? {
                return Ok(self.clone());
            }
            let keep = keep_mask(b, self.dims(), p)?;
            let scale = b.scalar_like(scale(p), self)?;
            let scaled = b.pointwise(Pw::Mul, &[self.clone(), scale])?;
            let zero = b.scalar_like(0.0, self)?;
            b.pointwise(Pw::Select, &[keep, scaled, zero])
        })
    }

    /// [`Tensor::dropout`] of whole channels of `[n, c, l]` or `[c, l]` (Tompson et al., 2015).
    pub fn dropout1d(&self, p: f64) -> Tensor {
        self.dropout1d_with(p, true)
    }

    /// [`Tensor::dropout1d`]; the identity unless `training`.
    pub fn dropout1d_with(&self, p: f64, training: bool) -> Tensor {
        compose("dropout1d", &[self], |b| {
            let fits = matches!(self.ndim(), 2 | 3);
            ensure!(fits, "takes [c, l] or [n, c, l], not {}", self.fact());
            drop_channels(b, self, p, training, self.ndim() - 1)
        })
    }

    /// [`Tensor::dropout`] of whole channels of `[n, c, h, w]`. Other ranks are also interpreted as `[n, c, ..]`, so
    /// three dims are `[n, c, l]`.
    pub fn dropout2d(&self, p: f64) -> Tensor {
        self.dropout2d_with(p, true)
    }

    /// [`Tensor::dropout2d`]; the identity unless `training`.
    pub fn dropout2d_with(&self, p: f64, training: bool) -> Tensor {
        compose("dropout2d", &[self], |b| {
            drop_channels(b, self, p, training, 2)
        })
    }

    /// [`Tensor::dropout`] of whole channels of `[n, c, d, h, w]`. Other ranks are interpreted as `[c, ..]`, such as
    /// `[c, d, h, w]`.
    pub fn dropout3d(&self, p: f64) -> Tensor {
        self.dropout3d_with(p, true)
    }

    /// [`Tensor::dropout3d`]; the identity unless `training`.
    pub fn dropout3d_with(&self, p: f64, training: bool) -> Tensor {
        compose("dropout3d", &[self], |b| {
            let own = if self.ndim() == 5 { 2 } else { 1 };
            drop_channels(b, self, p, training, own)
        })
    }

    /// Sets elements to SELU's limit at −∞ with probability `p`, then scales and shifts all so that standard normal
    /// inputs keep their mean and variance (Klambauer et al., 2017).
    pub fn alpha_dropout(&self, p: f64) -> Tensor {
        self.alpha_dropout_with(p, true)
    }

    /// [`Tensor::alpha_dropout`]; the identity unless `training`.
    pub fn alpha_dropout_with(&self, p: f64, training: bool) -> Tensor {
        compose("alpha_dropout", &[self], |b| {
            if !drops_elements(self, p, training)? {
                return Ok(self.clone());
            }
            alpha_dropout(b, self, self.dims(), p)
        })
    }

    /// [`Tensor::alpha_dropout`] of whole channels of `[n, c, ..]`.
    pub fn feature_alpha_dropout(&self, p: f64) -> Tensor {
        self.feature_alpha_dropout_with(p, true)
    }

    /// [`Tensor::feature_alpha_dropout`]; the identity unless `training`.
    pub fn feature_alpha_dropout_with(&self, p: f64, training: bool) -> Tensor {
        compose("feature_alpha_dropout", &[self], |b| {
            if !drops_elements(self, p, training)? {
                return Ok(self.clone());
            }
            alpha_dropout(b, self, &channel_shape(self, 2)?, p)
        })
    }
}

/// True if elements are dropped. Checks the probability in any case.
fn drops_elements(x: &Tensor, p: f64, training: bool) -> Result<bool, OpError> {
    ensure!(
        (0.0..=1.0).contains(&p),
        "the probability must lie in 0..=1, not {p}"
    );
    let drops = training && p != 0.0;
    if drops {
        check_float(x, "input")?;
    }
    Ok(drops)
}

/// The factor of the elements that are kept.
fn scale(p: f64) -> f64 {
    if p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) }
}

/// A mask of the elements of a shape that are kept.
fn keep_mask(b: &mut Recorder, shape: &[Dim], p: f64) -> Recorded {
    let noise = numbers(b, RandomKind::Uniform, DType::F32, shape)?;
    b.with(Pw::Ge, &noise, p)
}

/// The shape with one decision for each channel; the channels are the last of the first `own` dims.
fn channel_shape(x: &Tensor, own: usize) -> Result<Shape, OpError> {
    ensure!(
        x.ndim() >= own,
        "needs at least {own} dims to have channels, not {}",
        x.fact()
    );
    let size = |(axis, d): (usize, &Dim)| if axis < own { d.clone() } else { Dim::ONE };
    Ok(x.dims().iter().enumerate().map(size).collect())
}

fn drop_channels(b: &mut Recorder, x: &Tensor, p: f64, training: bool, own: usize) -> Recorded {
    if !drops_elements(x, p, training)? {
        return Ok(x.clone());
    }
    let keep = keep_mask(b, &channel_shape(x, own)?, p)?;
    let keep = b.cast(&keep, x.dtype())?;
    let factor = b.with(Pw::Mul, &keep, scale(p))?;
    b.binary(Pw::Mul, x, &factor)
}

/// Alpha dropout with one decision for each element of `shape`, which broadcasts to x.
fn alpha_dropout(b: &mut Recorder, x: &Tensor, shape: &[Dim], p: f64) -> Recorded {
    /// SELU's limit at −∞, negated.
    const LIMIT: f64 = 1.758_099_340_847_376_6;
    let scale = match p {
        1.0 => 0.0,
        p => ((LIMIT * LIMIT * p + 1.0) * (1.0 - p)).powf(-0.5),
    };
    let keep_mask = keep_mask(b, shape, p)?;
    let keep_mask = b.cast(&keep_mask, x.dtype())?;
    // Dropped elements become −LIMIT, then all are scaled and shifted.
    let dropped = b.with(Pw::Sub, &keep_mask, 1.0)?;
    let shift = b.with(Pw::Mul, &dropped, LIMIT * scale)?;
    let shift = b.with(Pw::Add, &shift, LIMIT * scale * p)?;
    let factor = b.with(Pw::Mul, &keep_mask, scale)?;
    let scaled = b.binary(Pw::Mul, x, &factor)?;
    b.binary(Pw::Add, &scaled, &shift)
}
