//! Losses that are negative log likelihoods of distributions.

use super::loss::{reduce_loss, widen_floats};
use crate::operand::AsTensor;
use crate::options::{Settings, options};
use crate::record::compose;
use crate::{Reduction, Tensor};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};
use std::f64::consts::TAU;

options! {
    /// The options of [`Tensor::gaussian_nll_loss`].
    GaussianNll () {
        /// True to add the constant term `½ log 2π` (default false).
        full: bool = false,
        /// The minimum variance (default 1e-6).
        eps: f64 = 1e-6,
        /// The reduction of the elements (default their mean).
        reduction: Reduction = Reduction::Mean,
    }
}

options! {
    /// The options of [`Tensor::poisson_nll_loss`].
    PoissonNll () {
        /// True if the input is the logarithm of the rate (the default).
        log_input: bool = true,
        /// True to add Stirling's approximation of `log target!` where the target is above 1 (default false).
        full: bool = false,
        /// A number added to a rate before its logarithm is taken (default 1e-8).
        eps: f64 = 1e-8,
        /// The reduction of the elements (default their mean).
        reduction: Reduction = Reduction::Mean,
    }
}

impl Settings for GaussianNll {
    fn check(&self) -> Result<(), OpError> {
        let eps = self.eps;
        ensure!(eps >= 0.0, "eps must not be negative, but is {eps}");
        Ok(())
    }
}

impl Settings for PoissonNll {}

#[on_cells]
impl Tensor {
    /// The negative log likelihood of a target under normal distributions with these means (this tensor) and
    /// variances: `½ (log var + (input − target)² / var)`. Variances below [`GaussianNll::eps`] are replaced by it,
    /// but keep their gradient. `var` has the input's shape, or lacks its last dim, or has size 1 there.
    ///
    /// A negative variance is a data error.
    pub fn gaussian_nll_loss(&self, target: impl AsTensor, var: impl AsTensor) -> Tensor {
        self.gaussian_nll_loss_with(target, var, GaussianNll::new())
    }

    /// [`Tensor::gaussian_nll_loss`] with the constant term, another minimum variance or another reduction.
    pub fn gaussian_nll_loss_with(
        &self,
        target: impl AsTensor,
        var: impl AsTensor,
        options: GaussianNll,
    ) -> Tensor {
        let eps = options.eps;
        compose("gaussian_nll_loss", &[self, target, var], |b| {
            options.check()?;
            let var_shape = variance_shape(self, var)?;
            let (dtype, x) = widen_floats(b, &[self, target, var])?;
            let var = b.reshape(&x[2], &var_shape)?;
            let below = b.with(Pw::Lt, &var, 0.0)?;
            let fine = b.unary(Pw::Not, &below)?;
            let var = b.require(&fine, &var, "the variance has negative elements")?;
            // The clamped value, with the gradient of the unclamped one.
            let bounded = b.with(Pw::Maximum, &var.detach(), eps)?;
            let nothing = b.binary(Pw::Sub, &var, &var.detach())?;
            let var = b.binary(Pw::Add, &bounded, &nothing)?;
            let difference = b.binary(Pw::Sub, &x[0], &x[1])?;
            let square = b.unary(Pw::Square, &difference)?;
            let distance = b.binary(Pw::Div, &square, &var)?;
            let log = b.unary(Pw::Log, &var)?;
            let sum = b.binary(Pw::Add, &log, &distance)?;
            let mut loss = b.with(Pw::Mul, &sum, 0.5)?;
            if options.full {
                loss = b.with(Pw::Add, &loss, 0.5 * TAU.ln())?;
            }
            let loss = reduce_loss(b, &loss, options.reduction)?;
            b.cast(&loss, dtype)
        })
    }

    /// The negative log likelihood of counts under Poisson distributions: `e^input − target · input`, where the input
    /// is the logarithm of the rates.
    pub fn poisson_nll_loss(&self, target: impl AsTensor) -> Tensor {
        self.poisson_nll_loss_with(target, PoissonNll::new())
    }

    /// [`Tensor::poisson_nll_loss`] with options; for an input of rates it is `input − target · log(input + eps)`.
    #[autocast]
    pub fn poisson_nll_loss_with(&self, target: impl AsTensor, options: PoissonNll) -> Tensor {
        compose("poisson_nll_loss", &[self, target], |b| {
            let (dtype, operands) = widen_floats(b, &[self, target])?;
            let (x, t) = (&operands[0], &operands[1]);
            let (rate, log) = match options.log_input {
                true => (b.unary(Pw::Exp, x)?, x.clone()),
                false => {
                    let positive = b.with(Pw::Add, x, options.eps)?;
                    (x.clone(), b.unary(Pw::Log, &positive)?)
                }
            };
            let product = b.binary(Pw::Mul, t, &log)?;
            let mut loss = b.binary(Pw::Sub, &rate, &product)?;
            if options.full {
                // t log t − t + ½ log 2πt
                let small = b.with(Pw::Le, t, 1.0)?;
                let t = b.fill_where(&small, 1.0, t)?;
                let log = b.unary(Pw::Log, &t)?;
                let product = b.binary(Pw::Mul, &t, &log)?;
                let sum = b.binary(Pw::Sub, &product, &t)?;
                let half = b.with(Pw::Mul, &log, 0.5)?;
                let sum = b.binary(Pw::Add, &sum, &half)?;
                let sum = b.with(Pw::Add, &sum, 0.5 * TAU.ln())?;
                let stirling = b.fill_where(&small, 0.0, &sum)?;
                loss = b.binary(Pw::Add, &loss, &stirling)?;
            }
            let loss = reduce_loss(b, &loss, options.reduction)?;
            b.cast(&loss, dtype)
        })
    }
}

/// The shape with which a variance broadcasts against the input.
fn variance_shape(input: &Tensor, var: &Tensor) -> Result<Shape, OpError> {
    let mut shape = Shape::from(var.dims());
    if var.ndim() == 0 || var.dims() == input.dims() {
        return Ok(shape);
    }
    let off = &input.dims()[..input.ndim().saturating_sub(1)];
    if var.dims() == off {
        shape.push(Dim::ONE);
    }
    ensure!(
        shape.len() == input.ndim() && shape[..off.len()] == *off && shape[off.len()].is(1),
        "a variance {} does not fit the input {}",
        var.fact(),
        input.fact()
    );
    Ok(shape)
}
