//! The focal loss.

use super::boxes::reduce_loss;
use kiln_tensor::{BinaryCrossEntropyWithLogits, Reduction, Result, Tensor, options};

options! {
    /// Options of [`sigmoid_focal_loss_with`].
    FocalLoss () {
        /// The weight of positive examples, between 0 and 1; negative for no weights.
        alpha: f64 = 0.25,
        /// The exponent that reduces the loss of easy examples.
        gamma: f64 = 2.0,
        /// The reduction.
        reduction: Reduction = Reduction::None,
    }
}

/// The focal loss of Lin et al. (2017) of scores and targets between 0 and 1, for each element.
///
/// # Errors
/// If the shapes or dtypes don't fit.
#[track_caller]
pub fn sigmoid_focal_loss(inputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
    sigmoid_focal_loss_with(inputs, targets, FocalLoss::new())
}

/// [`sigmoid_focal_loss`] with other numbers or a reduction.
///
/// ```
/// use kiln_tensor::{Reduction, Tensor};
/// use kiln_vision::ops::{FocalLoss, sigmoid_focal_loss_with};
/// let (scores, targets) = (Tensor::from([0.0f32, 0.0]), Tensor::from([1.0f32, 0.0]));
/// let options = FocalLoss::new().alpha(-1.0).reduction(Reduction::Mean);
/// let loss = sigmoid_focal_loss_with(&scores, &targets, options)?;
/// assert!((loss.item::<f32>()? - 0.25 * 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`sigmoid_focal_loss`].
#[track_caller]
pub fn sigmoid_focal_loss_with(
    inputs: &Tensor,
    targets: &Tensor,
    options: FocalLoss,
) -> Result<Tensor> {
    let unreduced = BinaryCrossEntropyWithLogits::new().reduction(Reduction::None);
    let entropy = inputs.binary_cross_entropy_with_logits_with(targets, unreduced);
    let p = inputs.sigmoid();
    let wrong = &p + targets - 2.0 * &p * targets;
    let loss = entropy * wrong.pow(options.gamma);
    let loss = match options.alpha >= 0.0 {
        true => loss * (options.alpha * targets + (1.0 - options.alpha) * (1.0 - targets)),
        false => loss,
    };
    reduce_loss(loss, options.reduction).check().cloned()
}
