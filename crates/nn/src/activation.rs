//! Activations as layers.

use crate::layer::{self, fact, input_error, invalid};
use crate::print::float;
use crate::{Forward, Hooks, Mode, Module, init};
use kiln_tensor::{Int, LocalResponse, Result, SoftPlus, Tensor, Var, where_};

macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Module)]
        pub struct $name {
            hooks: Hooks,
        }

        impl $name {
            /// The layer.
            pub fn new() -> $name {
                $name::default()
            }
        }

        impl Forward for $name {
            fn forward(&self, x: Tensor) -> Result<Tensor> {
                Ok(x.$op())
            }
        }
    )*};
}

plain! {
    /// [`Tensor::relu`] (`torch.nn.ReLU`).
    ReLU relu;
    /// [`Tensor::relu6`] (`torch.nn.ReLU6`).
    ReLU6 relu6;
    /// [`Tensor::selu`] (`torch.nn.SELU`).
    SELU selu;
    /// [`Tensor::silu`] (`torch.nn.SiLU`).
    SiLU silu;
    /// [`Tensor::mish`] (`torch.nn.Mish`).
    Mish mish;
    /// [`Tensor::sigmoid`] (`torch.nn.Sigmoid`).
    Sigmoid sigmoid;
    /// [`Tensor::logsigmoid`] (`torch.nn.LogSigmoid`).
    LogSigmoid logsigmoid;
    /// [`Tensor::tanh`] (`torch.nn.Tanh`).
    Tanh tanh;
    /// [`Tensor::tanhshrink`] (`torch.nn.Tanhshrink`).
    Tanhshrink tanhshrink;
    /// [`Tensor::softsign`] (`torch.nn.Softsign`).
    Softsign softsign;
    /// [`Tensor::hardsigmoid`] (`torch.nn.Hardsigmoid`).
    Hardsigmoid hardsigmoid;
    /// [`Tensor::hardswish`] (`torch.nn.Hardswish`).
    Hardswish hardswish;
}

/// [`Tensor::softmax`] over the channels of `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.Softmax2d`).
#[derive(Clone, Debug, Default, Module)]
pub struct Softmax2d {
    hooks: Hooks,
}

impl Softmax2d {
    /// The layer.
    pub fn new() -> Softmax2d {
        Softmax2d::default()
    }
}

impl Forward for Softmax2d {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        match x.ndim() {
            3 | 4 => Ok(x.softmax(-3)),
            n => input_error(
                self,
                format!("takes no input of {n} dims, such as {}", fact(&x)),
            ),
        }
    }
}

/// A layer of numbers, with their defaults in parentheses behind its name.
macro_rules! with_numbers {
    ($($(#[$doc:meta])* $name:ident $(($($default:expr),*))? { $($(#[$about:meta])* $field:ident: $ty:ty),* }
        |$layer:ident, $x:ident| $body:expr; $repr:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            $($field: $ty,)*
            hooks: Hooks,
        }

        impl $name {
            /// Makes the layer with these numbers.
            pub fn new($($field: $ty),*) -> $name {
                let hooks = Hooks::new();
                $name { $($field,)* hooks }
            }

            $($(#[$about])*
            pub fn $field(&self) -> $ty {
                self.$field
            })*

            fn extra_repr(&self) -> String {
                let $layer = self;
                $repr
            }
        }

        $(/// PyTorch's numbers.
        impl Default for $name {
            fn default() -> $name {
                $name::new($($default),*)
            }
        })?

        impl Forward for $name {
            fn forward(&self, $x: Tensor) -> Result<Tensor> {
                let $layer = self;
                Ok($body)
            }
        }
    )*};
}

with_numbers! {
    /// [`Tensor::leaky_relu`] (`torch.nn.LeakyReLU`).
    LeakyReLU(0.01) {
        /// The slope below 0.
        negative_slope: f64
    } |l, x| x.leaky_relu_with(l.negative_slope);
        format!("negative_slope={}", float(l.negative_slope));
    /// [`Tensor::elu_with`] (`torch.nn.ELU`).
    ELU(1.0) {
        /// The negated limit at −∞.
        alpha: f64
    } |l, x| x.elu_with(l.alpha); format!("alpha={}", float(l.alpha));
    /// [`Tensor::celu`] (`torch.nn.CELU`).
    CELU(1.0) {
        /// The negated limit at −∞.
        alpha: f64
    } |l, x| x.celu_with(l.alpha); format!("alpha={}", float(l.alpha));
    /// [`Tensor::softplus_with`] (`torch.nn.Softplus`).
    Softplus(1.0, 20.0) {
        /// The sharpness.
        beta: f64,
        /// The threshold above which it is linear.
        threshold: f64
    } |l, x| x.softplus_with(SoftPlus::new().beta(l.beta).threshold(l.threshold));
        format!("beta={}, threshold={}", float(l.beta), float(l.threshold));
    /// [`Tensor::hardtanh`] (`torch.nn.Hardtanh`).
    Hardtanh(-1.0, 1.0) {
        /// The lower limit.
        min_val: f64,
        /// The upper limit.
        max_val: f64
    } |l, x| x.hardtanh_with(l.min_val, l.max_val);
        format!("min_val={}, max_val={}", float(l.min_val), float(l.max_val));
    /// [`Tensor::hardshrink`] (`torch.nn.Hardshrink`).
    Hardshrink(0.5) {
        /// The largest |x| whose result is 0.
        lambd: f64
    } |l, x| x.hardshrink_with(l.lambd); float(l.lambd);
    /// [`Tensor::softshrink`] (`torch.nn.Softshrink`).
    Softshrink(0.5) {
        /// The distance that x moves towards 0.
        lambd: f64
    } |l, x| x.softshrink_with(l.lambd); float(l.lambd);
    /// [`Tensor::glu`] (`torch.nn.GLU`).
    GLU(-1) {
        /// The dim that is split.
        dim: i64
    } |l, x| x.glu(l.dim); format!("dim={}", l.dim);
    /// x where it is above `threshold`, `value` elsewhere (`torch.nn.Threshold`).
    Threshold {
        /// The limit.
        threshold: f64,
        /// The value that replaces x.
        value: f64
    } |l, x| x.threshold(l.threshold, l.value);
        format!("threshold={}, value={}", float(l.threshold), float(l.value));
}

/// [`Tensor::local_response_norm`] (`torch.nn.LocalResponseNorm`).
#[derive(Clone, Debug, Module)]
#[module(extra_repr)]
pub struct LocalResponseNorm {
    #[skip]
    options: LocalResponse,
    hooks: Hooks,
}

impl LocalResponseNorm {
    /// Makes the layer over `size` neighbouring channels.
    ///
    /// # Errors
    /// If the size is not positive.
    #[track_caller]
    pub fn new(size: impl Into<LocalResponse>) -> Result<LocalResponseNorm> {
        let (options, hooks) = (size.into(), Hooks::new());
        match options.size.0 > 0 {
            true => Ok(LocalResponseNorm { options, hooks }),
            false => {
                let message = format!("size must be at least 1, not {}", options.size.0);
                Err(invalid("LocalResponseNorm", message))
            }
        }
    }

    /// Returns the number of channels, and the constants of the divisor.
    pub fn options(&self) -> &LocalResponse {
        &self.options
    }

    fn extra_repr(&self) -> String {
        let [alpha, beta, k] = [self.options.alpha, self.options.beta, self.options.k].map(float);
        format!("{}, alpha={alpha}, beta={beta}, k={k}", self.options.size.0)
    }
}

impl Forward for LocalResponseNorm {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(x.local_response_norm(self.options.clone()))
    }
}

/// A layer along a dim that has no default.
macro_rules! along_a_dim {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            dim: i64,
            hooks: Hooks,
        }

        impl $name {
            /// The layer along a dim.
            pub fn new(dim: impl Into<Int>) -> $name {
                let hooks = Hooks::new();
                $name { dim: dim.into().0, hooks }
            }

            /// The dim that sums to 1.
            pub fn dim(&self) -> i64 {
                self.dim
            }

            fn extra_repr(&self) -> String {
                format!("dim={}", self.dim)
            }
        }

        impl Forward for $name {
            fn forward(&self, x: Tensor) -> Result<Tensor> {
                Ok(x.$op(self.dim))
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

/// x · Φ(x) (`torch.nn.GELU`): with the error function, or approximated with tanh.
#[derive(Clone, Debug, Default, Module)]
#[module(extra_repr)]
pub struct GELU {
    tanh: bool,
    hooks: Hooks,
}

impl GELU {
    /// The layer with the error function.
    pub fn new() -> GELU {
        GELU::default()
    }

    /// The layer with the approximation, `approximate="tanh"`.
    pub fn approximate_tanh() -> GELU {
        GELU {
            tanh: true,
            hooks: Hooks::new(),
        }
    }

    /// Returns the approximation of the error function: `"none"` or `"tanh"`.
    pub fn approximate(&self) -> &'static str {
        if self.tanh { "tanh" } else { "none" }
    }

    fn extra_repr(&self) -> String {
        format!("approximate='{}'", self.approximate())
    }
}

impl Forward for GELU {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(if self.tanh { x.gelu_tanh() } else { x.gelu() })
    }
}

/// A leaky ReLU whose slope below 0 is drawn for each element in training, and is the mean in evaluation
/// (`torch.nn.RReLU`; Xu et al., 2015).
#[derive(Clone, Debug, Module)]
#[module(extra_repr)]
pub struct RReLU {
    lower: f64,
    upper: f64,
    mode: Mode,
    hooks: Hooks,
}

impl RReLU {
    /// The layer with slopes within these limits; `default()` has PyTorch's, 1/8 and 1/3.
    ///
    /// # Errors
    /// If they are not in order.
    #[track_caller]
    pub fn new(lower: f64, upper: f64) -> Result<RReLU> {
        if !(lower <= upper && lower.is_finite() && upper.is_finite()) {
            let message = format!("slopes can't lie within {lower} and {upper}");
            return Err(invalid("RReLU", message));
        }
        let relu = RReLU::default();
        Ok(RReLU {
            lower,
            upper,
            ..relu
        })
    }

    /// The smallest slope.
    pub fn lower(&self) -> f64 {
        self.lower
    }

    /// The greatest slope.
    pub fn upper(&self) -> f64 {
        self.upper
    }

    fn extra_repr(&self) -> String {
        format!("lower={}, upper={}", self.lower, self.upper)
    }
}

impl Default for RReLU {
    fn default() -> RReLU {
        RReLU {
            lower: 0.125,
            upper: 1.0 / 3.0,
            mode: Mode::new(),
            hooks: Hooks::new(),
        }
    }
}

impl Forward for RReLU {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        if !self.mode.is_training() {
            return Ok(x.leaky_relu_with((self.lower + self.upper) / 2.0));
        }
        let slope = x.detach().rand_like() * (self.upper - self.lower) + self.lower;
        Ok(where_(x.ge(0.0), &x, &x * slope))
    }
}

/// [`Tensor::prelu`] (`torch.nn.PReLU`) with a learnt slope below 0, which starts at 0.25.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct PReLU {
    /// `[num_parameters]`.
    pub weight: Var,
    #[skip]
    init: f64,
    hooks: Hooks,
}

impl PReLU {
    /// Makes the layer with one slope for all channels (1), or one for each.
    ///
    /// # Errors
    /// Inside `compile`: make layers before.
    #[track_caller]
    pub fn new(num_parameters: impl Into<Int>) -> Result<PReLU> {
        PReLU::with(num_parameters, 0.25)
    }

    /// Makes the layer whose slopes start at `init`.
    ///
    /// # Errors
    /// As [`PReLU::new`].
    #[track_caller]
    pub fn with(num_parameters: impl Into<Int>, init: f64) -> Result<PReLU> {
        let [num_parameters] = layer::feature_sizes("PReLU", [num_parameters.into()])?;
        let weight = layer::filled([num_parameters], init)?;
        let hooks = Hooks::new();
        Ok(PReLU {
            weight,
            init,
            hooks,
        })
    }

    /// Returns the number of slopes.
    pub fn num_parameters(&self) -> usize {
        layer::shape(&self.weight)[0]
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        init::constant_(&self.weight, self.init)
    }

    fn extra_repr(&self) -> String {
        format!("num_parameters={}", self.num_parameters())
    }
}

impl Forward for PReLU {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(x.prelu(&self.weight))
    }
}
