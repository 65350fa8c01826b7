//! Dropout.

use crate::layer::{fact, run, wrong};
use crate::print::float;
use crate::{Forward, Mode, Module};
use kiln_tensor::Tensor;

macro_rules! dropouts {
    ($($(#[$doc:meta])* $name:ident |$layer:ident, $x:ident, $training:ident| $body:expr;)*) => {$(
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
            fn forward(&self, $x: &Tensor) -> Tensor {
                run(self, &[$x], || {
                    let ($layer, $training) = (self, self.mode.is_training());
                    $body
                })
            }
        }
    )*};
}

dropouts! {
    /// Zeroes elements with probability `p` in training and scales the others by 1 / (1 − p)
    /// (`torch.nn.Dropout`).
    Dropout |layer, x, training| x.dropout(layer.p, training);
    /// [`Dropout`] of whole channels of `[n, c, l]` (or `[c, l]`) (`torch.nn.Dropout1d`).
    Dropout1d |layer, x, training| channels(layer, x, layer.p, training, 1);
    /// [`Dropout`] of whole channels of `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.Dropout2d`).
    Dropout2d |layer, x, training| channels(layer, x, layer.p, training, 2);
    /// [`Dropout`] of whole channels of `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.Dropout3d`).
    Dropout3d |layer, x, training| channels(layer, x, layer.p, training, 3);
    /// Sets elements to SELU's limit at −∞ with probability `p` in training, and moves all so that mean
    /// and variance of standard normal inputs stay (`torch.nn.AlphaDropout`; Klambauer et al., 2017).
    AlphaDropout |layer, x, training| alpha(x, x, layer.p, training);
    /// [`AlphaDropout`] of whole channels of `[n, c, ..]` (`torch.nn.FeatureAlphaDropout`).
    FeatureAlphaDropout |layer, x, training| {
        if x.ndim() < 2 {
            return wrong(layer, format!("takes [n, c, ..], not {}", fact(x)));
        }
        alpha(x, &one_a_channel(x, x.ndim() - 2), layer.p, training)
    };
}

/// The first element of each channel.
fn one_a_channel(x: &Tensor, spatial: usize) -> Tensor {
    let mut one = x.detach();
    for d in x.ndim() - spatial..x.ndim() {
        one = one.narrow(d as i64, 0, 1);
    }
    one
}

/// Alpha dropout with one decision for each element of `like`.
fn alpha(x: &Tensor, like: &Tensor, p: f64, training: bool) -> Tensor {
    /// SELU's limit at −∞, negated.
    const LIMIT: f64 = 1.758_099_340_847_376_6;
    if !training || p == 0.0 {
        return x.clone();
    }
    let kept = like
        .ones_like()
        .dropout(p, true)
        .ne(0.0)
        .to_dtype(x.dtype());
    let scale = match p {
        1.0 => 0.0,
        p => ((LIMIT * LIMIT * p + 1.0) * (1.0 - p)).powf(-0.5),
    };
    // Dropped elements are −LIMIT, then all are scaled and moved.
    let shift = (&kept - 1.0) * (LIMIT * scale) + LIMIT * scale * p;
    x * &(&kept * scale) + shift
}

fn channels(layer: &dyn Module, x: &Tensor, p: f64, training: bool, spatial: usize) -> Tensor {
    if x.ndim() != spatial + 1 && x.ndim() != spatial + 2 {
        let message = format!("takes no input of {} dims, such as {}", x.ndim(), fact(x));
        return wrong(layer, message);
    }
    if !training || p == 0.0 {
        return x.clone();
    }
    x * &one_a_channel(x, spatial).ones_like().dropout(p, true)
}
