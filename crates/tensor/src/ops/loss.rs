//! The reduction of losses, and elementwise losses.

use super::args::{check_float, named_values};
use crate::operand::AsTensor;
use crate::options::{Settings, options};
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor, promote};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, ensure};

/// The reduction that a loss applies to its elements.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// None: one number for each element.
    None,
    /// Their mean, weighted where the loss has weights of classes.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

named_values! {
    Reduction, "reduction":
    "none" => None,
    "mean" => Mean,
    "sum" => Sum,
}

pub(super) fn reduce_loss(b: &mut Recorder, loss: &Tensor, reduction: Reduction) -> Recorded {
    let axes: Vec<usize> = (0..loss.ndim()).collect();
    match reduction {
        Reduction::None => Ok(loss.clone()),
        Reduction::Mean => b.mean(loss, &axes, false),
        Reduction::Sum => b.sum(loss, &axes, false),
    }
}

/// A loss of two promoted float tensors that broadcast, computed wide and rounded once.
#[track_caller]
fn elementwise(
    called: &'static str,
    input: &Tensor,
    target: &Tensor,
    reduction: Reduction,
    f: impl FnOnce(&mut Recorder, &Tensor, &Tensor) -> Recorded,
) -> Tensor {
    compose(called, &[input, target], |b| {
        let (x, y) = b.promoted(input, target)?;
        check_float(&x, "input")?;
        let dtype = x.dtype();
        let (x, y) = (b.widen(&x)?, b.widen(&y)?);
        let loss = f(b, &x, &y)?;
        let loss = reduce_loss(b, &loss, reduction)?;
        b.cast(&loss, dtype)
    })
}

/// Returns the float dtype that tensors promote to, and the tensors widened from it.
pub(super) fn widen_floats(
    b: &mut Recorder,
    tensors: &[&Tensor],
) -> Result<(DType, Vec<Tensor>), OpError> {
    let dtype = promote::float_dtype(promote::common_dtype(tensors)?);
    let wide = super::short::wide(dtype);
    let tensors = tensors.iter().map(|t| b.cast(t, wide));
    Ok((dtype, tensors.collect::<Result<_, _>>()?))
}

options! {
    /// The options of [`Tensor::smooth_l1_loss`].
    SmoothL1 () {
        /// The distance above which the loss is linear (default 1).
        beta: f64 = 1.0,
        /// The reduction of the elements (default their mean).
        reduction: Reduction = Reduction::Mean,
    }
}

options! {
    /// The options of [`Tensor::huber_loss`].
    Huber () {
        /// The distance above which the loss is linear (default 1).
        delta: f64 = 1.0,
        /// The reduction of the elements (default their mean).
        reduction: Reduction = Reduction::Mean,
    }
}

options! {
    /// The options of [`Tensor::kl_div`].
    KlDiv () {
        /// True if the target is in log space too (default false).
        log_target: bool = false,
        /// The reduction of the elements (default their mean, over all of them).
        reduction: Reduction = Reduction::Mean,
    }
}

impl Settings for SmoothL1 {
    fn check(&self) -> Result<(), OpError> {
        let beta = self.beta;
        ensure!(beta >= 0.0, "beta must not be negative, but is {beta}");
        Ok(())
    }
}

impl Settings for Huber {
    fn check(&self) -> Result<(), OpError> {
        let delta = self.delta;
        ensure!(delta > 0.0, "delta must be positive, but is {delta}");
        Ok(())
    }
}

impl Settings for Reduction {}
impl Settings for KlDiv {}

fn distance(b: &mut Recorder, x: &Tensor, y: &Tensor) -> Recorded {
    let difference = b.binary(Pw::Sub, x, y)?;
    b.unary(Pw::Abs, &difference)
}

#[on_cells]
impl Tensor {
    /// (input − target)².
    ///
    /// ```
    /// use kiln_tensor::{Reduction, Tensor};
    /// let (x, y) = (Tensor::from([1.0f32, 2.0]), Tensor::from([1.0f32, 4.0]));
    /// assert_eq!(x.mse_loss(&y).item::<f32>()?, 2.0);
    /// assert_eq!(x.mse_loss_with(&y, Reduction::Sum).item::<f32>()?, 4.0);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn mse_loss(&self, target: impl AsTensor) -> Tensor {
        self.mse_loss_with(target, Reduction::Mean)
    }

    /// [`Tensor::mse_loss`] with another reduction.
    #[autocast]
    pub fn mse_loss_with(&self, target: impl AsTensor, reduction: Reduction) -> Tensor {
        elementwise("mse_loss", self, target, reduction, |b, x, y| {
            let difference = b.binary(Pw::Sub, x, y)?;
            b.unary(Pw::Square, &difference)
        })
    }

    /// |input − target|.
    pub fn l1_loss(&self, target: impl AsTensor) -> Tensor {
        self.l1_loss_with(target, Reduction::Mean)
    }

    /// [`Tensor::l1_loss`] with another reduction.
    #[autocast]
    pub fn l1_loss_with(&self, target: impl AsTensor, reduction: Reduction) -> Tensor {
        elementwise("l1_loss", self, target, reduction, distance)
    }

    /// `½ d² / beta` where d = |input − target| is below beta (1), `d − ½ beta` elsewhere.
    pub fn smooth_l1_loss(&self, target: impl AsTensor) -> Tensor {
        self.smooth_l1_loss_with(target, SmoothL1::new())
    }

    /// [`Tensor::smooth_l1_loss`] with another beta or reduction.
    #[autocast]
    pub fn smooth_l1_loss_with(&self, target: impl AsTensor, options: SmoothL1) -> Tensor {
        elementwise(
            "smooth_l1_loss",
            self,
            target,
            options.reduction,
            |b, x, y| {
                options.check()?;
                let beta = options.beta;
                if beta == 0.0 {
                    return distance(b, x, y);
                }
                huber(b, x, y, beta, 1.0 / beta)
            },
        )
    }

    /// `½ d²` where d = |input − target| is at most delta (1), `delta · (d − ½ delta)` elsewhere.
    pub fn huber_loss(&self, target: impl AsTensor) -> Tensor {
        self.huber_loss_with(target, Huber::new())
    }

    /// [`Tensor::huber_loss`] with another delta or reduction.
    #[autocast]
    pub fn huber_loss_with(&self, target: impl AsTensor, options: Huber) -> Tensor {
        elementwise("huber_loss", self, target, options.reduction, |b, x, y| {
            options.check()?;
            huber(b, x, y, options.delta, 1.0)
        })
    }

    /// The divergence D(target ‖ input), elementwise `target · (log target − input)`, for an input in log space.
    pub fn kl_div(&self, target: impl AsTensor) -> Tensor {
        self.kl_div_with(target, KlDiv::new())
    }

    /// [`Tensor::kl_div`] with a target in log space or another reduction.
    #[autocast]
    pub fn kl_div_with(&self, target: impl AsTensor, options: KlDiv) -> Tensor {
        elementwise("kl_div", self, target, options.reduction, |b, x, y| {
            if options.log_target {
                let p = b.unary(Pw::Exp, y)?;
                let difference = b.binary(Pw::Sub, y, x)?;
                return b.binary(Pw::Mul, &p, &difference);
            }
            let entropy = b.binary(Pw::Xlogy, y, y)?;
            let cross = b.binary(Pw::Mul, y, x)?;
            b.binary(Pw::Sub, &entropy, &cross)
        })
    }

    /// `log(1 + e^(−target · input))`.
    pub fn soft_margin_loss(&self, target: impl AsTensor) -> Tensor {
        self.soft_margin_loss_with(target, Reduction::Mean)
    }

    /// [`Tensor::soft_margin_loss`] with another reduction.
    #[autocast]
    pub fn soft_margin_loss_with(&self, target: impl AsTensor, reduction: Reduction) -> Tensor {
        elementwise("soft_margin_loss", self, target, reduction, |b, x, y| {
            let product = b.binary(Pw::Mul, x, y)?;
            let minus = b.unary(Pw::Neg, &product)?;
            b.unary(Pw::Softplus, &minus)
        })
    }
}

/// `scale · ½ d²` up to an edge, then linear with the slope at the edge.
fn huber(b: &mut Recorder, x: &Tensor, y: &Tensor, edge: f64, scale: f64) -> Recorded {
    // Squares the signed difference: its absolute value would have no second derivative at 0.
    let difference = b.binary(Pw::Sub, x, y)?;
    let d = b.unary(Pw::Abs, &difference)?;
    let square = b.unary(Pw::Square, &difference)?;
    let quadratic = b.with(Pw::Mul, &square, 0.5 * scale)?;
    let linear = b.with(Pw::Sub, &d, 0.5 * edge)?;
    let linear = b.with(Pw::Mul, &linear, edge * scale)?;
    let inside = b.with(Pw::Lt, &d, edge)?;
    b.select(&inside, &quadratic, &linear)
}
