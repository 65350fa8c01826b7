//! Dropout.

use crate::layer::check_probability;
use crate::print::float;
use crate::{Forward, Hooks, Mode, Module};
use kiln_tensor::{Result, Tensor};

macro_rules! dropouts {
    ($($(#[$doc:meta])* $name:ident $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            p: f64,
            mode: Mode,
            hooks: Hooks,
        }

        impl $name {
            /// Makes a layer with this probability of a zero; 0.5, the default, is PyTorch's.
            ///
            /// # Errors
            /// If it lies outside `0..=1`.
            #[track_caller]
            pub fn new(p: f64) -> Result<$name> {
                let p = check_probability(stringify!($name), p)?;
                Ok($name { p, ..$name::default() })
            }

            /// The probability of a zero.
            pub fn p(&self) -> f64 {
                self.p
            }

            fn extra_repr(&self) -> String {
                format!("p={}", float(self.p))
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name {
                    p: 0.5,
                    mode: Mode::new(),
                    hooks: Hooks::new(),
                }
            }
        }

        impl Forward for $name {
            fn forward(&self, x: Tensor) -> Result<Tensor> {
                Ok(x.$function(self.p, self.mode.is_training()))
            }
        }
    )*};
}

dropouts! {
    /// Zeroes elements with probability `p` in training and scales the others by 1 / (1 − p)
    /// (`torch.nn.Dropout`).
    Dropout dropout_with;
    /// [`Dropout`] of whole channels of `[n, c, l]` or `[c, l]` (`torch.nn.Dropout1d`).
    Dropout1d dropout1d_with;
    /// [`Dropout`] of whole channels of `[n, c, h, w]`, or of `[n, c, ..]` in general
    /// (`torch.nn.Dropout2d`).
    Dropout2d dropout2d_with;
    /// [`Dropout`] of whole channels of `[n, c, d, h, w]` or `[c, d, h, w]` (`torch.nn.Dropout3d`).
    Dropout3d dropout3d_with;
    /// Sets elements to SELU's limit at −∞ with probability `p` in training, and shifts and scales all elements so that
    /// standard normal inputs keep their mean and variance (`torch.nn.AlphaDropout`; Klambauer et al., 2017).
    AlphaDropout alpha_dropout_with;
    /// [`AlphaDropout`] of whole channels of `[n, c, ..]` (`torch.nn.FeatureAlphaDropout`).
    FeatureAlphaDropout feature_alpha_dropout_with;
}
