//! Dropout.

use crate::layer::run;
use crate::print::float;
use crate::{Forward, Mode, Module};
use kiln_tensor::Tensor;

macro_rules! dropouts {
    ($($(#[$doc:meta])* $name:ident $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Module)]
        #[module(extra_repr)]
        pub struct $name {
            /// The probability of a zero.
            pub p: f64,
            mode: Mode,
        }

        impl $name {
            /// A layer with this probability of a zero; 0.5 is PyTorch's default. One outside `0..=1`
            /// gives results that carry that error.
            pub fn new(p: f64) -> $name {
                $name {
                    p,
                    mode: Mode::new(),
                }
            }

            fn extra_repr(&self) -> String {
                format!("p={}", float(self.p))
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::new(0.5)
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                run(self, &[x], || x.$function(self.p, self.mode.is_training()))
            }
        }
    )*};
}

dropouts! {
    /// Zeroes elements with probability `p` in training and scales the others by 1 / (1 − p)
    /// (`torch.nn.Dropout`).
    Dropout dropout;
    /// [`Dropout`] of whole channels of `[n, c, l]` or `[c, l]` (`torch.nn.Dropout1d`).
    Dropout1d dropout1d;
    /// [`Dropout`] of whole channels of `[n, c, h, w]`, or of `[n, c, ..]` in general
    /// (`torch.nn.Dropout2d`).
    Dropout2d dropout2d;
    /// [`Dropout`] of whole channels of `[n, c, d, h, w]` or `[c, d, h, w]` (`torch.nn.Dropout3d`).
    Dropout3d dropout3d;
    /// Sets elements to SELU's limit at −∞ with probability `p` in training, and moves all so that mean
    /// and variance of standard normal inputs stay (`torch.nn.AlphaDropout`; Klambauer et al., 2017).
    AlphaDropout alpha_dropout;
    /// [`AlphaDropout`] of whole channels of `[n, c, ..]` (`torch.nn.FeatureAlphaDropout`).
    FeatureAlphaDropout feature_alpha_dropout;
}
