//! Activations with parameters, and softmax.

use super::args::{DimArg, axis, check_float};
use super::index::as_vector;
use crate::operand::AsTensor;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Scalar, Tensor};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure, ops};

options! {
    /// The parameters of [`Tensor::softplus_with`].
    SoftPlus () {
        /// The sharpness of its bend (default 1).
        beta: f64 = 1.0,
        /// The value of `beta · x` above which the result is x (default 20).
        threshold: f64 = 20.0,
    }
}

#[on_cells]
impl Tensor {
    /// `eˣ / Σ eˣ` along a dim of a float tensor.
    #[autocast]
    pub fn softmax(&self, dim: impl Into<DimArg>) -> Tensor {
        compose("softmax", &[self], |b| softmax(b, self, dim, false))
    }

    /// The logarithm of [`Tensor::softmax`].
    #[autocast]
    pub fn log_softmax(&self, dim: impl Into<DimArg>) -> Tensor {
        compose("log_softmax", &[self], |b| softmax(b, self, dim, true))
    }

    /// The softmax of −x.
    pub fn softmin(&self, dim: impl Into<DimArg>) -> Tensor {
        compose("softmin", &[self], |b| {
            let x = b.unary(Pw::Neg, self)?;
            softmax(b, &x, dim, false)
        })
    }

    /// x where it is positive, x / 100 elsewhere.
    pub fn leaky_relu(&self) -> Tensor {
        self.leaky_relu_with(0.01)
    }

    /// x where it is positive, `negative_slope · x` elsewhere.
    pub fn leaky_relu_with(&self, negative_slope: f64) -> Tensor {
        compose("leaky_relu", &[self], |b| {
            check_float(self, "operand")?;
            let low = b.with(Pw::Mul, self, negative_slope)?;
            let positive = b.with(Pw::Gt, self, 0.0)?;
            b.select(&positive, self, &low)
        })
    }

    /// Like [`Tensor::leaky_relu`] with a learnt slope: one, or one for each channel (dim 1).
    #[autocast]
    pub fn prelu(&self, weight: impl AsTensor) -> Tensor {
        compose("prelu", &[self, weight], |b| {
            check_float(self, "operand")?;
            super::args::check_alike(self, "operand", weight, "weight")?;
            let channels = self.dims().get(1).cloned().unwrap_or(Dim::ONE);
            let has_one_element = weight.fact().numel().is(1);
            ensure!(
                weight.ndim() <= 1
                    && (has_one_element || self.ndim() > 0 && weight.dims()[0] == channels),
                "the weight must hold 1 or {channels} numbers for {}, not {}",
                self.fact(),
                weight.fact()
            );
            let mut shape = Shape::from_elem(Dim::ONE, self.ndim());
            if !has_one_element {
                shape[1] = channels;
            }
            let slope = b.reshape(weight, &shape)?;
            let low = b.binary(Pw::Mul, self, &slope)?;
            let positive = b.with(Pw::Gt, self, 0.0)?;
            b.select(&positive, self, &low)
        })
    }

    /// x where it is positive, `alpha · (eˣ − 1)` elsewhere.
    pub fn elu_with(&self, alpha: f64) -> Tensor {
        compose("elu", &[self], |b| exponential(b, self, 1.0, alpha))
    }

    /// x where it is positive, `eˣ − 1` elsewhere.
    pub fn celu(&self) -> Tensor {
        self.celu_with(1.0)
    }

    /// x where it is positive, `alpha · (e^(x / alpha) − 1)` elsewhere.
    pub fn celu_with(&self, alpha: f64) -> Tensor {
        compose("celu", &[self], |b| {
            ensure!(alpha != 0.0, "alpha can't be 0");
            exponential(b, self, alpha, alpha)
        })
    }

    /// x clamped to −1..=1.
    pub fn hardtanh(&self) -> Tensor {
        self.hardtanh_with(-1, 1)
    }

    /// x clamped to `min_val..=max_val`.
    pub fn hardtanh_with(&self, min_val: impl Into<Scalar>, max_val: impl Into<Scalar>) -> Tensor {
        compose("hardtanh", &[self], |b| {
            ensure!(self.dtype() != DType::Bool, "is not defined on bool");
            ensure!(
                min_val.as_f64() <= max_val.as_f64(),
                "min_val {min_val} is greater than max_val {max_val}"
            );
            let below = b.with(Pw::Le, self, min_val)?;
            let above = b.with(Pw::Ge, self, max_val)?;
            let y = b.fill_where(&below, min_val, self)?;
            b.fill_where(&above, max_val, &y)
        })
    }

    /// x where it is above `threshold`, `value` elsewhere.
    pub fn threshold(&self, threshold: impl Into<Scalar>, value: impl Into<Scalar>) -> Tensor {
        compose("threshold", &[self], |b| {
            let low = b.with(Pw::Le, self, threshold)?;
            b.fill_where(&low, value, self)
        })
    }

    /// x where |x| is above ½, 0 elsewhere.
    pub fn hardshrink(&self) -> Tensor {
        self.hardshrink_with(0.5)
    }

    /// x where |x| is above `lambd`, 0 elsewhere.
    pub fn hardshrink_with(&self, lambd: f64) -> Tensor {
        compose("hardshrink", &[self], |b| {
            check_float(self, "operand")?;
            let above = b.with(Pw::Ge, self, -lambd)?;
            let below = b.with(Pw::Le, self, lambd)?;
            let inside = b.binary(Pw::And, &above, &below)?;
            b.fill_where(&inside, 0.0, self)
        })
    }

    /// x moved towards 0 by ½; 0 where |x| ≤ ½.
    pub fn softshrink(&self) -> Tensor {
        self.softshrink_with(0.5)
    }

    /// x moved towards 0 by `lambd`; 0 where |x| ≤ `lambd`.
    pub fn softshrink_with(&self, lambd: f64) -> Tensor {
        compose("softshrink", &[self], |b| {
            check_float(self, "operand")?;
            ensure!(lambd >= 0.0, "lambd must not be negative, but is {lambd}");
            let x = b.widen(self)?;
            let (low, high) = (b.scalar_like(-lambd, &x)?, b.scalar_like(lambd, &x)?);
            let above = b.binary(Pw::Ge, &x, &low)?;
            let below = b.binary(Pw::Le, &x, &high)?;
            let inside = b.binary(Pw::And, &above, &below)?;
            let core = b.pointwise(Pw::Clip, &[x.clone(), low, high])?;
            // For infinities, the difference is ∞ − λ = ∞ as wanted.
            let y = b.binary(Pw::Sub, &x, &core)?;
            let y = b.fill_where(&inside, 0.0, &y)?;
            b.cast(&y, self.dtype())
        })
    }

    /// x − tanh x.
    pub fn tanhshrink(&self) -> Tensor {
        compose("tanhshrink", &[self], |b| {
            let dtype = crate::promote::float_dtype(self.dtype());
            let x = b.cast(self, super::short::wide(dtype))?;
            let tanh = b.unary(Pw::Tanh, &x)?;
            let y = b.binary(Pw::Sub, &x, &tanh)?;
            b.cast(&y, dtype)
        })
    }

    /// `log(1 + e^(beta · x)) / beta`, and x where `beta · x` is above the threshold.
    #[autocast]
    pub fn softplus_with(&self, options: SoftPlus) -> Tensor {
        let SoftPlus { beta, threshold } = options;
        compose("softplus", &[self], |b| {
            check_float(self, "operand")?;
            let x = b.widen(self)?;
            let scaled = b.with(Pw::Mul, &x, beta)?;
            let smooth = b.unary(Pw::Softplus, &scaled)?;
            let smooth = b.with(Pw::Div, &smooth, beta)?;
            let high = b.with(Pw::Gt, &scaled, threshold)?;
            let y = b.select(&high, &x, &smooth)?;
            b.cast(&y, self.dtype())
        })
    }

    /// The first half of a dim times the sigmoid of the second.
    pub fn glu(&self, dim: impl Into<DimArg>) -> Tensor {
        compose("glu", &[self], |b| {
            check_float(self, "operand")?;
            let a = axis(self, &dim)?;
            let half = self.dims()[a].div_exact(&Dim::Const(2));
            let half = half
                .map_err(|e| OpError(format!("dim {dim} can't be split into two halves: {e}")))?;
            let x = b.widen(self)?;
            let value = b.narrow(&x, a, 0i64, half.clone())?;
            let gate = b.narrow(&x, a, half.clone(), half)?;
            let gate = b.unary(Pw::Sigmoid, &gate)?;
            let y = b.binary(Pw::Mul, &value, &gate)?;
            b.cast(&y, self.dtype())
        })
    }
}

pub(crate) fn softmax(b: &mut Recorder, x: &Tensor, dim: impl Into<DimArg>, log: bool) -> Recorded {
    check_float(x, "operand")?;
    let lifted = as_vector(b, x)?;
    let axis = axis(&lifted, dim)?;
    let y = b.op(ops::Softmax { axis, log }, &[lifted])?;
    b.reshape(&y, x.dims())
}

/// x where it is positive, `height · (e^(x / width) − 1)` elsewhere.
fn exponential(b: &mut Recorder, t: &Tensor, width: f64, height: f64) -> Recorded {
    check_float(t, "operand")?;
    let x = b.widen(t)?;
    // NaN is not low. Where the exponential is not selected, it is computed of 0, since its derivative is multiplied
    // by 0.
    let low = b.with(Pw::Le, &x, 0.0)?;
    let zero = b.scalar_like(0.0, &x)?;
    let mut scaled = b.select(&low, &x, &zero)?;
    if width != 1.0 {
        scaled = b.with(Pw::Div, &scaled, width)?;
    }
    let curve = b.unary(Pw::Expm1, &scaled)?;
    let curve = b.with(Pw::Mul, &curve, height)?;
    let y = b.select(&low, &curve, &x)?;
    b.cast(&y, t.dtype())
}
