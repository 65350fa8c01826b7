//! Layers of torchvision that PyTorch lacks (`torchvision.ops`).

use kiln::nn::{
    AdaptiveAvgPool2d, BatchNorm, BatchNorm2d, Conv2d, Forward, Hooks, Kernel, Mode, Module,
    Sequential, module, sequential,
};
use kiln::{Affine, Error, IntList, Result, Tensor, Var, default_dtype};

/// Makes a convolution without bias and a batch norm: `torchvision.ops.Conv2dNormActivation` without its activation,
/// which the caller adds.
pub(crate) fn conv_norm(
    from: usize,
    to: usize,
    kernel: Kernel,
    norm: BatchNorm,
) -> Result<Sequential> {
    sequential![
        Conv2d::new(from, to, kernel.bias(false)),
        BatchNorm2d::with(to, norm),
    ]
}

/// Returns a kernel of odd size whose results are as large as its input, except for the stride.
pub(crate) fn same_size(size: usize) -> Kernel {
    Kernel::new(size).padding(size / 2)
}

/// Returns the nearest multiple of 8 that is at least nine tenths of a number of channels, and at least 8.
pub(crate) fn make_divisible(channels: f64) -> usize {
    let rounded = (((channels + 4.0) as usize) / 8 * 8).max(8);
    if (rounded as f64) < 0.9 * channels {
        rounded + 8
    } else {
        rounded
    }
}

module!(
    /// A convolution without bias, a batch norm with an eps of 0.001, and ReLU, as in GoogLeNet and Inception.
    pub(crate) struct BasicConv2d(from: usize, to: usize, kernel: Kernel) {
        conv: Conv2d = Conv2d::new(from, to, kernel.bias(false)),
        bn: BatchNorm2d = BatchNorm2d::with(to, BatchNorm::new().eps(1e-3)),
    }
);

impl Forward for BasicConv2d {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(self.bn.call(self.conv.call(x)).relu())
    }
}

/// Scales the channels of `[n, c, h, w]` by weights computed from their means (`torchvision.ops.SqueezeExcitation`; Hu
/// et al., "Squeeze-and-Excitation Networks", 2017).
///
/// ```
/// use kiln::nn::{Forward, ReLU, Sigmoid};
/// use kiln::{DType, Tensor};
/// use kiln_models::ops::SqueezeExcitation;
///
/// let weighs = SqueezeExcitation::new(16, 4, ReLU::new(), Sigmoid::new())?;
/// let x = Tensor::rand([2, 16, 5, 7], DType::F32);
/// assert_eq!(weighs.call(&x).shape()?, [2, 16, 5, 7]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct SqueezeExcitation {
    avgpool: AdaptiveAvgPool2d,
    fc1: Conv2d,
    fc2: Conv2d,
    activation: Box<dyn Forward>,
    scale_activation: Box<dyn Forward>,
    hooks: Hooks,
}

impl SqueezeExcitation {
    /// Makes a layer for `input_channels` channels, with `squeeze_channels` in between. `activation` follows the first
    /// convolution, and `scale_activation` computes the weights.
    ///
    /// # Errors
    /// Inside `compile`: make layers before.
    pub fn new(
        input_channels: usize,
        squeeze_channels: usize,
        activation: impl Forward,
        scale_activation: impl Forward,
    ) -> Result<SqueezeExcitation> {
        Ok(SqueezeExcitation {
            avgpool: AdaptiveAvgPool2d::new(1)?,
            fc1: Conv2d::new(input_channels, squeeze_channels, 1)?,
            fc2: Conv2d::new(squeeze_channels, input_channels, 1)?,
            activation: Box::new(activation),
            scale_activation: Box::new(scale_activation),
            hooks: Hooks::new(),
        })
    }
}

impl Forward for SqueezeExcitation {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let y = self.activation.call(self.fc1.call(self.avgpool.call(&x)));
        Ok(x * self.scale_activation.call(self.fc2.call(&y)))
    }
}

/// Zeroes whole samples of a batch with probability `p` in training, and divides the others by 1 − p, in the branch
/// beside a shortcut (`torchvision.ops.StochasticDepth` of mode `row`; Huang et al., "Deep Networks with Stochastic
/// Depth", 2016).
///
/// ```
/// use kiln::nn::Forward;
/// use kiln::{DType, Tensor};
/// use kiln_models::ops::StochasticDepth;
///
/// let drop = StochasticDepth::new(0.5)?;
/// let y = drop.call(Tensor::ones([4, 3], DType::F32)).to_vec::<f32>()?;
/// assert!(y.chunks(3).all(|row| row == [0.0; 3] || row == [2.0; 3]));
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
#[module(extra_repr)]
pub struct StochasticDepth {
    p: f64,
    mode: Mode,
    hooks: Hooks,
}

impl StochasticDepth {
    /// Makes a layer with this probability of a zero.
    ///
    /// # Errors
    /// If it lies outside `0..=1`.
    pub fn new(p: f64) -> Result<StochasticDepth> {
        if !(0.0..=1.0).contains(&p) {
            let message = format!("the probability must lie in 0..=1, not {p}");
            return Err(Error::invalid("StochasticDepth", message));
        }
        let (mode, hooks) = (Mode::new(), Hooks::new());
        Ok(StochasticDepth { p, mode, hooks })
    }

    /// The probability of a zero.
    pub fn p(&self) -> f64 {
        self.p
    }

    fn extra_repr(&self) -> String {
        format!("p={:?}, mode=row", self.p)
    }
}

impl Forward for StochasticDepth {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        if self.p == 0.0 || !self.mode.is_training() {
            return Ok(x);
        }
        // One random number per sample, for any other dims.
        let mut sample = x.detach();
        for dim in 1..x.ndim() {
            sample = sample.narrow(dim, 0, 1);
        }
        Ok(x * sample.ones_like().dropout_with(self.p, true))
    }
}

/// Permutes the dims (`torchvision.ops.Permute`).
#[derive(Module)]
#[module(extra_repr)]
pub struct Permute {
    dims: IntList,
    hooks: Hooks,
}

impl Permute {
    /// Makes a layer whose result's dim `i` is the input's dim `dims[i]`.
    pub fn new(dims: impl Into<IntList>) -> Permute {
        let (dims, hooks) = (dims.into(), Hooks::new());
        Permute { dims, hooks }
    }

    fn extra_repr(&self) -> String {
        format!("dims={:?}", self.dims.0)
    }
}

impl Forward for Permute {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(x.permute(&self.dims.0[..]))
    }
}

/// Normalisation of each position of `[n, c, h, w]` over its channels, then `· weight + bias`, which start at 1 and 0
/// (torchvision's `LayerNorm2d`).
#[derive(Module)]
#[module(extra_repr)]
pub struct LayerNorm2d {
    /// `[c]`.
    pub weight: Var,
    /// `[c]`.
    pub bias: Var,
    channels: usize,
    eps: f64,
    hooks: Hooks,
}

impl LayerNorm2d {
    /// Makes a layer for `channels` channels; `eps` is added to the variance.
    ///
    /// # Errors
    /// Inside `compile`: make layers before.
    pub fn new(channels: usize, eps: f64) -> Result<LayerNorm2d> {
        Ok(LayerNorm2d {
            weight: Var::parameter(Tensor::ones([channels], default_dtype()))?,
            bias: Var::parameter(Tensor::zeros([channels], default_dtype()))?,
            channels,
            eps,
            hooks: Hooks::new(),
        })
    }

    fn extra_repr(&self) -> String {
        format!(
            "({},), eps={:?}, elementwise_affine=True",
            self.channels, self.eps
        )
    }
}

impl Forward for LayerNorm2d {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let options = Affine::new().weight(&self.weight).bias(&self.bias);
        let last = x.permute([0, 2, 3, 1]);
        let y = last.layer_norm_with(self.channels, options.eps(self.eps));
        Ok(y.permute([0, 3, 1, 2]))
    }
}
