//! Convolutions.

use crate::layer::{self, each, invalid, run};
use crate::linear::reset_within;
use crate::print::{python, sizes};
use crate::{Forward, Module};
use kiln_tensor::{Conv, ConvTranspose, IntList, PadMode, Padding, Result, Tensor, Var};

/// The name of a padding mode, as PyTorch spells it.
fn mode_name(mode: PadMode) -> &'static str {
    match mode {
        PadMode::Constant(_) => "zeros",
        PadMode::Reflect => "reflect",
        PadMode::Replicate => "replicate",
        PadMode::Circular => "circular",
    }
}

/// The shape of a weight with `first` and `second` channels, `second` split into groups.
#[track_caller]
fn weight_shape(
    layer: &str,
    (in_channels, out_channels): (usize, usize),
    transposed: bool,
    groups: usize,
    kernel: &[usize],
) -> Result<Vec<usize>> {
    if groups == 0 || in_channels % groups != 0 || out_channels % groups != 0 {
        let message = format!(
            "{in_channels} input and {out_channels} output channels do not divide into {groups} groups"
        );
        return Err(invalid(layer, message));
    }
    let (first, second) = match transposed {
        true => (in_channels, out_channels),
        false => (out_channels, in_channels),
    };
    let mut shape = vec![first, second / groups];
    shape.extend(kernel);
    Ok(shape)
}

/// kaiming_uniform_ with a = √5: uniform within ±1/√fan_in, the bias too.
#[track_caller]
fn reset(weight: &Var, bias: Option<&Var>) -> Result<()> {
    let fan_in: usize = weight.shape()[1..].iter().product();
    let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
    reset_within(bound, weight, bias)
}

/// Pads the last dims as much as the convolution would, in another mode than zeros.
#[track_caller]
fn padded(
    x: &Tensor,
    padding: &Padding,
    kernel: &[usize],
    dilation: &[i64],
    mode: PadMode,
) -> Tensor {
    let n = kernel.len();
    let of = |list: &[i64], a: usize| list.get(a % list.len().max(1)).copied().unwrap_or(0);
    let mut pad = Vec::with_capacity(2 * n);
    for a in (0..n).rev() {
        let (front, back) = match padding {
            Padding::Sizes(sizes) => (of(&sizes.0, a), of(&sizes.0, a)),
            Padding::Same => {
                let total = of(dilation, a) * (kernel[a] as i64 - 1);
                (total / 2, total - total / 2)
            }
        };
        pad.extend([front, back]);
    }
    x.pad(pad, mode)
}

macro_rules! convolutions {
    ($($(#[$doc:meta])* $name:ident $op:ident $spatial:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// Weight and bias start uniform within ±1/√fan_in, where `fan_in` is the number of inputs of
        /// one output.
        #[derive(Module)]
        #[module(extra_repr, reset_parameters)]
        pub struct $name {
            /// `[out_channels, in_channels / groups, kernel ..]`.
            pub weight: Var,
            /// `[out_channels]`.
            pub bias: Option<Var>,
            /// Input channels.
            pub in_channels: usize,
            /// Output channels.
            pub out_channels: usize,
            kernel: Vec<usize>,
            stride: IntList,
            #[skip]
            padding: Padding,
            dilation: IntList,
            groups: usize,
            #[skip]
            padding_mode: PadMode,
        }

        impl $name {
            /// A layer of stride 1 without padding, with a bias. The kernel size is one number for each
            /// spatial dim, or one for all.
            ///
            /// # Errors
            /// If a size is impossible.
            #[track_caller]
            pub fn new(
                in_channels: usize,
                out_channels: usize,
                kernel_size: impl Into<IntList>,
            ) -> Result<$name> {
                let layer = stringify!($name);
                let kernel = each(layer, "the kernel size", &kernel_size.into(), $spatial, 1)?;
                let shape = weight_shape(layer, (in_channels, out_channels), false, 1, &kernel)?;
                let conv = $name {
                    weight: layer::constant(shape, 0.0)?,
                    bias: Some(layer::constant([out_channels], 0.0)?),
                    in_channels,
                    out_channels,
                    kernel,
                    stride: 1.into(),
                    padding: 0.into(),
                    dilation: 1.into(),
                    groups: 1,
                    padding_mode: PadMode::ZEROS,
                };
                conv.reset_parameters()?;
                Ok(conv)
            }

            /// The layer with this stride (default 1).
            pub fn stride(mut self, stride: impl Into<IntList>) -> $name {
                self.stride = stride.into();
                self
            }

            /// The layer with this padding (default 0), or [`Padding::Same`].
            pub fn padding(mut self, padding: impl Into<Padding>) -> $name {
                self.padding = padding.into();
                self
            }

            /// The layer with this dilation (default 1).
            pub fn dilation(mut self, dilation: impl Into<IntList>) -> $name {
                self.dilation = dilation.into();
                self
            }

            /// The layer with this kind of padding (default zeros).
            pub fn padding_mode(mut self, mode: PadMode) -> $name {
                self.padding_mode = mode;
                self
            }

            /// The layer with or without its bias (default with).
            pub fn bias(mut self, bias: bool) -> $name {
                self.bias = self.bias.filter(|_| bias);
                self
            }

            /// The layer with its channels in groups (default 1), its parameters drawn anew.
            ///
            /// # Errors
            /// If the channels do not divide into them.
            #[track_caller]
            pub fn groups(mut self, groups: usize) -> Result<$name> {
                let channels = (self.in_channels, self.out_channels);
                let shape =
                    weight_shape(stringify!($name), channels, false, groups, &self.kernel)?;
                self.groups = groups;
                self.weight = layer::constant(shape, 0.0)?;
                self.reset_parameters()?;
                Ok(self)
            }

            #[track_caller]
            fn reset_parameters(&self) -> Result<()> {
                reset(&self.weight, self.bias.as_ref())
            }

            fn extra_repr(&self) -> String {
                let kernel: Vec<i64> = self.kernel.iter().map(|k| *k as i64).collect();
                let mut s = format!(
                    "{}, {}, kernel_size={}, stride={}",
                    self.in_channels,
                    self.out_channels,
                    sizes(&kernel, $spatial),
                    sizes(&self.stride.0, $spatial)
                );
                match &self.padding {
                    Padding::Same => s += ", padding=same",
                    Padding::Sizes(p) if p.0.iter().any(|n| *n != 0) => {
                        s += &format!(", padding={}", sizes(&p.0, $spatial));
                    }
                    Padding::Sizes(_) => {}
                }
                if self.dilation.0.iter().any(|n| *n != 1) {
                    s += &format!(", dilation={}", sizes(&self.dilation.0, $spatial));
                }
                if self.groups != 1 {
                    s += &format!(", groups={}", self.groups);
                }
                if self.bias.is_none() {
                    s += &format!(", bias={}", python(false));
                }
                if mode_name(self.padding_mode) != "zeros" {
                    s += &format!(", padding_mode={}", mode_name(self.padding_mode));
                }
                s
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                run(self, &[x], || {
                    let (weight, bias) = (self.weight.get(), self.bias.as_ref().map(Var::get));
                    let (mut x, mut padding) = (x.clone(), self.padding.clone());
                    if self.padding_mode != PadMode::ZEROS {
                        let dilation = &self.dilation.0;
                        x = padded(&x, &padding, &self.kernel, dilation, self.padding_mode);
                        padding = 0.into();
                    }
                    let how = Conv::new()
                        .bias(bias.as_ref())
                        .stride(self.stride.clone())
                        .padding(padding)
                        .dilation(self.dilation.clone())
                        .groups(self.groups as i64);
                    x.$op(&weight, how)
                })
            }
        }
    )*};
}

convolutions! {
    /// Cross-correlation of `[n, in, l]` (or `[in, l]`) to `[n, out, l']` (`torch.nn.Conv1d`).
    Conv1d conv1d_with 1;
    /// Cross-correlation of `[n, in, h, w]` (or `[in, h, w]`) to `[n, out, h', w']`
    /// (`torch.nn.Conv2d`).
    ///
    /// ```
    /// use kiln_nn::{Conv2d, Forward};
    /// use kiln_tensor::{DType, Tensor};
    /// let x = Tensor::zeros([16, 1, 32, 32], DType::F32);
    /// assert_eq!(Conv2d::new(1, 6, 5)?.forward(&x).shape()?, [16, 6, 28, 28]);
    /// assert_eq!(Conv2d::new(1, 6, [3, 5])?.padding([1, 2]).forward(&x).shape()?, [16, 6, 32, 32]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    Conv2d conv2d_with 2;
    /// Cross-correlation of `[n, in, d, h, w]` (or `[in, d, h, w]`) to `[n, out, d', h', w']`
    /// (`torch.nn.Conv3d`).
    Conv3d conv3d_with 3;
}

macro_rules! transposed_convolutions {
    ($($(#[$doc:meta])* $name:ident $op:ident $spatial:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// Weight and bias start uniform within ±1/√fan_in, where `fan_in` is
        /// `out_channels / groups · kernel ..`.
        #[derive(Module)]
        #[module(extra_repr, reset_parameters)]
        pub struct $name {
            /// `[in_channels, out_channels / groups, kernel ..]`.
            pub weight: Var,
            /// `[out_channels]`.
            pub bias: Option<Var>,
            /// Input channels.
            pub in_channels: usize,
            /// Output channels.
            pub out_channels: usize,
            kernel: Vec<usize>,
            stride: IntList,
            padding: IntList,
            output_padding: IntList,
            dilation: IntList,
            groups: usize,
        }

        impl $name {
            /// A layer of stride 1 without padding, with a bias. The kernel size is one number for each
            /// spatial dim, or one for all.
            ///
            /// # Errors
            /// If a size is impossible.
            #[track_caller]
            pub fn new(
                in_channels: usize,
                out_channels: usize,
                kernel_size: impl Into<IntList>,
            ) -> Result<$name> {
                let layer = stringify!($name);
                let kernel = each(layer, "the kernel size", &kernel_size.into(), $spatial, 1)?;
                let shape = weight_shape(layer, (in_channels, out_channels), true, 1, &kernel)?;
                let conv = $name {
                    weight: layer::constant(shape, 0.0)?,
                    bias: Some(layer::constant([out_channels], 0.0)?),
                    in_channels,
                    out_channels,
                    kernel,
                    stride: 1.into(),
                    padding: 0.into(),
                    output_padding: 0.into(),
                    dilation: 1.into(),
                    groups: 1,
                };
                conv.reset_parameters()?;
                Ok(conv)
            }

            /// The layer with this stride (default 1).
            pub fn stride(mut self, stride: impl Into<IntList>) -> $name {
                self.stride = stride.into();
                self
            }

            /// The layer with the padding of the convolution that it transposes (default 0), which makes
            /// its result smaller.
            pub fn padding(mut self, padding: impl Into<IntList>) -> $name {
                self.padding = padding.into();
                self
            }

            /// The layer whose result is this much larger behind each axis (default 0): where the
            /// convolution's stride leaves its input's size open.
            pub fn output_padding(mut self, output_padding: impl Into<IntList>) -> $name {
                self.output_padding = output_padding.into();
                self
            }

            /// The layer with this dilation (default 1).
            pub fn dilation(mut self, dilation: impl Into<IntList>) -> $name {
                self.dilation = dilation.into();
                self
            }

            /// The layer with or without its bias (default with).
            pub fn bias(mut self, bias: bool) -> $name {
                self.bias = self.bias.filter(|_| bias);
                self
            }

            /// The layer with its channels in groups (default 1), its parameters drawn anew.
            ///
            /// # Errors
            /// If the channels do not divide into them.
            #[track_caller]
            pub fn groups(mut self, groups: usize) -> Result<$name> {
                let channels = (self.in_channels, self.out_channels);
                let shape = weight_shape(stringify!($name), channels, true, groups, &self.kernel)?;
                self.groups = groups;
                self.weight = layer::constant(shape, 0.0)?;
                self.reset_parameters()?;
                Ok(self)
            }

            #[track_caller]
            fn reset_parameters(&self) -> Result<()> {
                reset(&self.weight, self.bias.as_ref())
            }

            fn extra_repr(&self) -> String {
                let kernel: Vec<i64> = self.kernel.iter().map(|k| *k as i64).collect();
                let mut s = format!(
                    "{}, {}, kernel_size={}, stride={}",
                    self.in_channels,
                    self.out_channels,
                    sizes(&kernel, $spatial),
                    sizes(&self.stride.0, $spatial)
                );
                for (name, list, default) in [
                    ("padding", &self.padding, 0),
                    ("dilation", &self.dilation, 1),
                    ("output_padding", &self.output_padding, 0),
                ] {
                    if list.0.iter().any(|n| *n != default) {
                        s += &format!(", {name}={}", sizes(&list.0, $spatial));
                    }
                }
                if self.groups != 1 {
                    s += &format!(", groups={}", self.groups);
                }
                if self.bias.is_none() {
                    s += &format!(", bias={}", python(false));
                }
                s
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                run(self, &[x], || {
                    let bias = self.bias.as_ref().map(Var::get);
                    let how = ConvTranspose::new()
                        .bias(bias.as_ref())
                        .stride(self.stride.clone())
                        .padding(self.padding.clone())
                        .output_padding(self.output_padding.clone())
                        .groups(self.groups as i64)
                        .dilation(self.dilation.clone());
                    x.$op(&self.weight.get(), how)
                })
            }
        }
    )*};
}

transposed_convolutions! {
    /// The transpose of [`Conv1d`] on `[n, in, l]` (or `[in, l]`) (`torch.nn.ConvTranspose1d`).
    ConvTranspose1d conv_transpose1d_with 1;
    /// The transpose of [`Conv2d`] on `[n, in, h, w]` (or `[in, h, w]`) (`torch.nn.ConvTranspose2d`).
    ConvTranspose2d conv_transpose2d_with 2;
    /// The transpose of [`Conv3d`] on `[n, in, d, h, w]` (or `[in, d, h, w]`)
    /// (`torch.nn.ConvTranspose3d`).
    ConvTranspose3d conv_transpose3d_with 3;
}
