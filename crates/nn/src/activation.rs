//! Activations as layers.

use crate::layer::{self, fact, run, wrong};
use crate::print::float;
use crate::{Forward, Module, init};
use kiln_tensor::{Int, Result, Tensor, Var};

macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident |$x:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Module)]
        pub struct $name;

        impl $name {
            /// The layer.
            pub fn new() -> $name {
                $name
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, $x: &Tensor) -> Tensor {
                run(self, &[$x], || $body)
            }
        }
    )*};
}

plain! {
    /// [`Tensor::relu`] (`torch.nn.ReLU`).
    ReLU |x| x.relu();
    /// [`Tensor::relu6`] (`torch.nn.ReLU6`).
    ReLU6 |x| x.relu6();
    /// [`Tensor::selu`] (`torch.nn.SELU`).
    SELU |x| x.selu();
    /// [`Tensor::silu`] (`torch.nn.SiLU`).
    SiLU |x| x.silu();
    /// [`Tensor::mish`] (`torch.nn.Mish`).
    Mish |x| x.mish();
    /// [`Tensor::sigmoid`] (`torch.nn.Sigmoid`).
    Sigmoid |x| x.sigmoid();
    /// [`Tensor::logsigmoid`] (`torch.nn.LogSigmoid`).
    LogSigmoid |x| x.logsigmoid();
    /// [`Tensor::tanh`] (`torch.nn.Tanh`).
    Tanh |x| x.tanh();
    /// [`Tensor::tanhshrink`] (`torch.nn.Tanhshrink`).
    Tanhshrink |x| x.tanhshrink();
    /// [`Tensor::softsign`] (`torch.nn.Softsign`).
    Softsign |x| x.softsign();
    /// [`Tensor::hardsigmoid`] (`torch.nn.Hardsigmoid`).
    Hardsigmoid |x| x.hardsigmoid();
    /// [`Tensor::hardswish`] (`torch.nn.Hardswish`).
    Hardswish |x| x.hardswish();
    /// [`Tensor::softmax`] over the channels of `[n, c, h, w]` (or `[c, h, w]`)
    /// (`torch.nn.Softmax2d`).
    Softmax2d |x| match x.ndim() {
        3 | 4 => x.softmax(-3),
        n => wrong(&Softmax2d, format!("takes no input of {n} dims, such as {}", fact(x))),
    };
}

/// A layer of public hyperparameters, made by `new` of some of them and with defaults for all.
macro_rules! with_numbers {
    ($($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $ty:ty = $default:expr),* }
        |$layer:ident, $x:ident| $body:expr; $repr:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            $($(#[$about])* pub $field: $ty,)*
        }

        impl $name {
            /// The layer with these numbers; `default()` has PyTorch's.
            pub fn new($($field: $ty),*) -> $name {
                $name { $($field),* }
            }

            fn extra_repr(&self) -> String {
                let $layer = self;
                $repr
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default),* }
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, $x: &Tensor) -> Tensor {
                run(self, &[$x], || {
                    let $layer = self;
                    $body
                })
            }
        }
    )*};
}

with_numbers! {
    /// [`Tensor::leaky_relu`] (`torch.nn.LeakyReLU`).
    LeakyReLU {
        /// The slope below 0.
        negative_slope: f64 = 0.01
    } |l, x| x.leaky_relu(l.negative_slope);
        format!("negative_slope={}", float(l.negative_slope));
    /// [`Tensor::elu_alpha`] (`torch.nn.ELU`).
    ELU {
        /// What it goes to at −∞, negated.
        alpha: f64 = 1.0
    } |l, x| x.elu_alpha(l.alpha); format!("alpha={}", float(l.alpha));
    /// [`Tensor::celu`] (`torch.nn.CELU`).
    CELU {
        /// What it goes to at −∞, negated.
        alpha: f64 = 1.0
    } |l, x| x.celu(l.alpha); format!("alpha={}", float(l.alpha));
    /// [`Tensor::softplus_beta`] (`torch.nn.Softplus`).
    Softplus {
        /// The sharpness.
        beta: f64 = 1.0,
        /// Where it becomes linear.
        threshold: f64 = 20.0
    } |l, x| x.softplus_beta(l.beta, l.threshold);
        format!("beta={}, threshold={}", float(l.beta), float(l.threshold));
    /// [`Tensor::hardtanh`] (`torch.nn.Hardtanh`).
    Hardtanh {
        /// The lower limit.
        min_val: f64 = -1.0,
        /// The upper limit.
        max_val: f64 = 1.0
    } |l, x| x.hardtanh(l.min_val, l.max_val);
        format!("min_val={}, max_val={}", float(l.min_val), float(l.max_val));
    /// [`Tensor::hardshrink`] (`torch.nn.Hardshrink`).
    Hardshrink {
        /// Up to which |x| the result is 0.
        lambd: f64 = 0.5
    } |l, x| x.hardshrink(l.lambd); float(l.lambd);
    /// [`Tensor::softshrink`] (`torch.nn.Softshrink`).
    Softshrink {
        /// How far x moves towards 0.
        lambd: f64 = 0.5
    } |l, x| x.softshrink(l.lambd); float(l.lambd);
    /// [`Tensor::local_response_norm`] (`torch.nn.LocalResponseNorm`).
    LocalResponseNorm {
        /// How many neighbouring channels count.
        size: i64 = 5,
        /// The factor of their squares.
        alpha: f64 = 1e-4,
        /// The power.
        beta: f64 = 0.75,
        /// Added to them.
        k: f64 = 1.0
    } |l, x| x.local_response_norm(l.size, l.alpha, l.beta, l.k);
        format!("{}, alpha={}, beta={}, k={}", l.size, float(l.alpha), float(l.beta), float(l.k));
    /// [`Tensor::glu`] (`torch.nn.GLU`).
    GLU {
        /// The dim that is split.
        dim: i64 = -1
    } |l, x| x.glu(l.dim); format!("dim={}", l.dim);
}

/// A layer along a dim that has no default.
macro_rules! along_a_dim {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            /// The dim that sums to 1.
            pub dim: i64,
        }

        impl $name {
            /// The layer along a dim.
            pub fn new(dim: impl Into<Int>) -> $name {
                $name { dim: dim.into().0 }
            }

            fn extra_repr(&self) -> String {
                format!("dim={}", self.dim)
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                run(self, &[x], || x.$op(self.dim))
            }
        }
    )*};
}

along_a_dim! {
    /// [`Tensor::softmax`] (`torch.nn.Softmax`).
    Softmax softmax;
    /// [`Tensor::log_softmax`] (`torch.nn.LogSoftmax`).
    LogSoftmax log_softmax;
    /// [`Tensor::softmin`] (`torch.nn.Softmin`).
    Softmin softmin;
}

/// x where it is above `threshold`, `value` elsewhere (`torch.nn.Threshold`).
#[derive(Clone, Copy, Debug, Module)]
#[module(extra_repr)]
pub struct Threshold {
    /// The limit.
    pub threshold: f64,
    /// What replaces x.
    pub value: f64,
}

impl Threshold {
    /// The layer.
    pub fn new(threshold: f64, value: f64) -> Threshold {
        Threshold { threshold, value }
    }

    fn extra_repr(&self) -> String {
        format!(
            "threshold={}, value={}",
            float(self.threshold),
            float(self.value)
        )
    }
}

impl Forward for Threshold {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(self, &[x], || x.threshold(self.threshold, self.value))
    }
}

/// x · Φ(x) (`torch.nn.GELU`): with the error function, or approximated with tanh.
#[derive(Clone, Copy, Debug, Default, Module)]
#[module(extra_repr)]
pub struct GELU {
    /// Whether tanh approximates the error function.
    pub tanh: bool,
}

impl GELU {
    /// The layer with the error function.
    pub fn new() -> GELU {
        GELU::default()
    }

    /// The layer with the approximation, `approximate="tanh"`.
    pub fn approximate_tanh() -> GELU {
        GELU { tanh: true }
    }

    fn extra_repr(&self) -> String {
        let name = if self.tanh { "tanh" } else { "none" };
        format!("approximate='{name}'")
    }
}

impl Forward for GELU {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(
            self,
            &[x],
            || if self.tanh { x.gelu_tanh() } else { x.gelu() },
        )
    }
}

/// [`Tensor::prelu`] (`torch.nn.PReLU`) with a learnt slope below 0, which starts at 0.25.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct PReLU {
    /// `[num_parameters]`.
    pub weight: Var,
}

impl PReLU {
    /// The layer with one slope for all channels (1), or one for each.
    ///
    /// # Errors
    /// Inside `compile`: make layers before.
    #[track_caller]
    pub fn new(num_parameters: impl Into<Int>) -> Result<PReLU> {
        let [num_parameters] = layer::sizes("PReLU", [num_parameters.into()])?;
        let weight = layer::constant([num_parameters], 0.25)?;
        Ok(PReLU { weight })
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        init::constant_(&self.weight, 0.25)
    }

    fn extra_repr(&self) -> String {
        format!("num_parameters={}", self.weight.shape()[0])
    }
}

impl Forward for PReLU {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(self, &[x], || x.prelu(self.weight.get()))
    }
}
