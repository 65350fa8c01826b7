//! Losses as modules of two arguments.

use crate::Module;
use crate::layer::run;
use kiln_tensor::{Reduction, Tensor};

macro_rules! losses {
    ($($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $ty:ty = $default:expr),* }
        |$loss:ident, $input:ident, $target:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            /// What becomes of the elements.
            #[skip]
            pub reduction: Reduction,
            $($(#[$about])* #[skip] pub $field: $ty,)*
        }

        impl $name {
            /// The loss with PyTorch's defaults; its fields change them.
            pub fn new() -> $name {
                $name {
                    reduction: Reduction::Mean,
                    $($field: $default,)*
                }
            }

            /// The loss of an input and a target.
            #[track_caller]
            pub fn forward(&self, $input: &Tensor, $target: &Tensor) -> Tensor {
                run(self, &[$input, $target], || {
                    let $loss = self;
                    $body
                })
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::new()
            }
        }
    )*};
}

losses! {
    /// [`Tensor::mse_loss`] (`torch.nn.MSELoss`).
    MSELoss {} |l, x, y| x.mse_loss(y, l.reduction);
    /// [`Tensor::l1_loss`] (`torch.nn.L1Loss`).
    L1Loss {} |l, x, y| x.l1_loss(y, l.reduction);
    /// [`Tensor::smooth_l1_loss`] (`torch.nn.SmoothL1Loss`).
    SmoothL1Loss {
        /// Where it becomes linear.
        beta: f64 = 1.0
    } |l, x, y| x.smooth_l1_loss(y, l.reduction, l.beta);
    /// [`Tensor::huber_loss`] (`torch.nn.HuberLoss`).
    HuberLoss {
        /// Where it becomes linear.
        delta: f64 = 1.0
    } |l, x, y| x.huber_loss(y, l.reduction, l.delta);
    /// [`Tensor::kl_div`] (`torch.nn.KLDivLoss`).
    KLDivLoss {
        /// Whether the target holds logarithms.
        log_target: bool = false
    } |l, x, y| x.kl_div(y, l.reduction, l.log_target);
    /// [`Tensor::binary_cross_entropy`] of probabilities (`torch.nn.BCELoss`).
    BCELoss {
        /// A factor for each element.
        weight: Option<Tensor> = None
    } |l, x, y| x.binary_cross_entropy(y, l.weight.as_ref(), l.reduction);
    /// [`Tensor::binary_cross_entropy_with_logits`] (`torch.nn.BCEWithLogitsLoss`).
    BCEWithLogitsLoss {
        /// A factor for each element.
        weight: Option<Tensor> = None,
        /// A factor for the positives of each class.
        pos_weight: Option<Tensor> = None
    } |l, x, y| {
        let (weight, positive) = (l.weight.as_ref(), l.pos_weight.as_ref());
        x.binary_cross_entropy_with_logits(y, weight, l.reduction, positive)
    };
    /// [`Tensor::nll_loss`] of log-probabilities (`torch.nn.NLLLoss`).
    NLLLoss {
        /// A factor for each class.
        weight: Option<Tensor> = None,
        /// The target that counts for nothing.
        ignore_index: i64 = -100
    } |l, x, y| x.nll_loss(y, l.weight.as_ref(), l.ignore_index, l.reduction);
    /// [`Tensor::cross_entropy`] of logits (`torch.nn.CrossEntropyLoss`).
    ///
    /// ```
    /// use kiln_nn::CrossEntropyLoss;
    /// use kiln_tensor::Tensor;
    /// let logits = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [3, 3]);
    /// let weight = Some(Tensor::from_slice(&[0.2f32, 0.4, 1.0], [3]));
    /// let loss = CrossEntropyLoss { weight, ..CrossEntropyLoss::new() };
    /// let loss = loss.forward(&logits, &Tensor::from_slice(&[0i64, 1, 2], [3]));
    /// assert!((loss.item::<f32>()? - 0.9076).abs() < 1e-4);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    CrossEntropyLoss {
        /// A factor for each class.
        weight: Option<Tensor> = None,
        /// The target that counts for nothing.
        ignore_index: i64 = -100,
        /// How much of each target is spread over all classes.
        label_smoothing: f64 = 0.0
    } |l, x, y| x.cross_entropy(y, l.weight.as_ref(), l.ignore_index, l.reduction, l.label_smoothing);
}
