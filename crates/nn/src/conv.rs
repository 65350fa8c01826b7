//! Convolutions.

use crate::layer::{self, invalid, per_axis};
use crate::linear::reset_within;
use crate::print::sizes;
use crate::{Forward, Hooks, Module};
use kiln_tensor::{
    Conv, ConvTranspose, Int, IntList, PadMode, Padding, Result, Tensor, Var, options,
};

options! {
    /// The options of a convolution; a kernel size converts to it. The numbers are one for each spatial dim, or one for
    /// all.
    Kernel (
        /// The size of the kernel.
        kernel_size: IntList
    ) {
        /// The step from one window to the next (default 1).
        stride: IntList = 1,
        /// The padding on both sides of each dim (default 0), or [`Padding::Same`].
        padding: Padding = 0,
        /// The step from one element of a window to the next (default 1).
        dilation: IntList = 1,
        /// The number of groups into which the channels are split (default 1). A group does not see the others.
        groups: Int = 1,
        /// True if there is a bias (default yes).
        bias: bool = true,
        /// The content of the padding (default zeros).
        padding_mode: PadMode = PadMode::ZEROS,
    }
}

options! {
    /// The options of a transposed convolution; a kernel size converts to it. The numbers are one for each spatial dim,
    /// or one for all.
    TransposedKernel (
        /// The size of the kernel.
        kernel_size: IntList
    ) {
        /// The stride of the convolution that it transposes (default 1).
        stride: IntList = 1,
        /// The padding of the convolution that it transposes (default 0), which makes the result smaller.
        padding: IntList = 0,
        /// The elements added to the result at the end of each axis (default 0), where the convolution's stride leaves
        /// its input's size ambiguous.
        output_padding: IntList = 0,
        /// The number of groups into which the channels are split (default 1). A group does not see the others.
        groups: Int = 1,
        /// True if there is a bias (default yes).
        bias: bool = true,
        /// The dilation of the convolution that it transposes (default 1).
        dilation: IntList = 1,
    }
}

/// The checked options that both directions have.
#[derive(Clone, Copy)]
pub(crate) struct Filters<const D: usize> {
    in_channels: usize,
    out_channels: usize,
    kernel_size: [usize; D],
    stride: [usize; D],
    dilation: [usize; D],
    groups: usize,
}

impl<const D: usize> Filters<D> {
    #[track_caller]
    fn new(
        layer: &str,
        channels: [Int; 2],
        [kernel_size, stride, dilation]: [&IntList; 3],
        groups: Int,
    ) -> Result<Filters<D>> {
        if !(1..=3).contains(&D) {
            let message = format!("a convolution has 1 to 3 spatial dims, not {D}");
            return Err(invalid(layer, message));
        }
        let [in_channels, out_channels] = layer::feature_sizes(layer, channels)?;
        let groups = usize::try_from(groups.0).unwrap_or(0);
        if groups == 0 || in_channels % groups != 0 || out_channels % groups != 0 {
            let message = format!(
                "{in_channels} input and {out_channels} output channels do not divide into {groups} groups"
            );
            return Err(invalid(layer, message));
        }
        Ok(Filters {
            in_channels,
            out_channels,
            kernel_size: per_axis(layer, "the kernel size", kernel_size, 1)?,
            stride: per_axis(layer, "the stride", stride, 1)?,
            dilation: per_axis(layer, "the dilation", dilation, 1)?,
            groups,
        })
    }

    /// Makes a weight with these channels, the second of which are split into groups, and a bias if there is one.
    #[track_caller]
    fn parameters(&self, first: usize, second: usize, bias: bool) -> Result<(Var, Option<Var>)> {
        let mut shape = vec![first, second / self.groups];
        shape.extend(self.kernel_size);
        let weight = layer::filled(shape, 0.0)?;
        Ok((weight, layer::filled_if(bias, [self.out_channels], 0.0)?))
    }

    fn repr(&self) -> String {
        format!(
            "{}, {}, kernel_size={}, stride={}",
            self.in_channels,
            self.out_channels,
            sizes(&self.kernel_size, D),
            sizes(&self.stride, D)
        )
    }
}

/// `, name=(..)` for sizes that are not all the default.
fn unless_default<N: Copy + PartialEq + ToString>(
    name: &str,
    list: &[N],
    default: N,
    spatial: usize,
) -> String {
    match list.iter().all(|n| *n == default) {
        true => String::new(),
        false => format!(", {name}={}", sizes(list, spatial)),
    }
}

/// Initialises as kaiming_uniform_ with a = √5 does: uniform within ±1/√fan_in, the bias too.
#[track_caller]
fn reset_filters(weight: &Var, bias: Option<&Var>) -> Result<()> {
    let fan_in: usize = weight.shape()?[1..].iter().product();
    let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
    reset_within(bound, weight, bias)
}

/// Getters of the settings that both directions have.
macro_rules! settings {
    () => {
        /// Input channels.
        pub fn in_channels(&self) -> usize {
            self.filters.in_channels
        }

        /// Output channels.
        pub fn out_channels(&self) -> usize {
            self.filters.out_channels
        }

        /// The size of the kernel.
        pub fn kernel_size(&self) -> [usize; D] {
            self.filters.kernel_size
        }

        /// Returns the step from one window to the next.
        pub fn stride(&self) -> [usize; D] {
            self.filters.stride
        }

        /// Returns the step from one element of a window to the next.
        pub fn dilation(&self) -> [usize; D] {
            self.filters.dilation
        }

        /// Returns the number of groups into which the channels are split.
        pub fn groups(&self) -> usize {
            self.filters.groups
        }

        #[track_caller]
        fn reset_parameters(&self) -> Result<()> {
            reset_filters(&self.weight, self.bias.as_ref())
        }
    };
}

/// Cross-correlation over `D` spatial dims, 1 to 3. The layer for each has a name of its own: see [`Conv2d`].
///
/// Weight and bias start uniform within ±1/√fan_in, where `fan_in` is the number of inputs of one output.
#[derive(Module)]
#[module(name, extra_repr, reset_parameters)]
pub struct ConvNd<const D: usize> {
    /// `[out_channels, in_channels / groups, kernel ..]`.
    pub weight: Var,
    /// `[out_channels]`.
    pub bias: Option<Var>,
    #[skip]
    filters: Filters<D>,
    #[skip]
    padding: Padding,
    #[skip]
    padding_mode: PadMode,
    hooks: Hooks,
}

/// Cross-correlation of `[n, in, l]` (or `[in, l]`) to `[n, out, l']` (`torch.nn.Conv1d`).
pub type Conv1d = ConvNd<1>;

/// Cross-correlation of `[n, in, h, w]` (or `[in, h, w]`) to `[n, out, h', w']` (`torch.nn.Conv2d`).
///
/// ```
/// use kiln_nn::{Conv2d, Forward, Kernel};
/// use kiln_tensor::{DType, Tensor};
/// let x = Tensor::zeros([16, 1, 32, 32], DType::F32);
/// assert_eq!(Conv2d::new(1, 6, 5)?.call(&x).shape()?, [16, 6, 28, 28]);
/// let conv = Conv2d::new(1, 6, Kernel::new([3, 5]).padding([1, 2]).bias(false))?;
/// assert_eq!(conv.call(&x).shape()?, [16, 6, 32, 32]);
/// assert_eq!((conv.kernel_size(), conv.stride()), ([3, 5], [1, 1]));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub type Conv2d = ConvNd<2>;

/// Cross-correlation of `[n, in, d, h, w]` (or `[in, d, h, w]`) to `[n, out, d', h', w']`
/// (`torch.nn.Conv3d`).
pub type Conv3d = ConvNd<3>;

impl<const D: usize> ConvNd<D> {
    pub(crate) const NAME: &str = match D {
        1 => "Conv1d",
        2 => "Conv2d",
        _ => "Conv3d",
    };

    /// Makes a layer from `in_channels` to `out_channels`, with this kernel: its size, or a [`Kernel`].
    ///
    /// # Errors
    /// If a size is impossible, the channels do not divide into the groups, or inside `compile`: make layers
    /// before.
    #[track_caller]
    pub fn new(
        in_channels: impl Into<Int>,
        out_channels: impl Into<Int>,
        kernel: impl Into<Kernel>,
    ) -> Result<ConvNd<D>> {
        let options = kernel.into();
        let filters = Self::filters([in_channels.into(), out_channels.into()], &options)?;
        let (weight, bias) =
            filters.parameters(filters.out_channels, filters.in_channels, options.bias)?;
        let conv = ConvNd {
            weight,
            bias,
            filters,
            padding: options.padding,
            padding_mode: options.padding_mode,
            hooks: Hooks::new(),
        };
        conv.reset_parameters()?;
        Ok(conv)
    }

    /// Checks a layer's options, and returns its filters.
    #[track_caller]
    pub(crate) fn filters(channels: [Int; 2], options: &Kernel) -> Result<Filters<D>> {
        let name = Self::NAME;
        let sizes = [&options.kernel_size, &options.stride, &options.dilation];
        let filters = Filters::new(name, channels, sizes, options.groups)?;
        match &options.padding {
            Padding::Sizes(padding) => drop(per_axis::<D>(name, "the padding", padding, 0)?),
            Padding::Same if filters.stride == [1; D] => {}
            Padding::Same => {
                let message = "padding that keeps the size needs strides of 1";
                let message = format!("{message}, not {:?}", filters.stride);
                return Err(invalid(name, message));
            }
        }
        Ok(filters)
    }

    settings!();

    /// Returns the padding on both sides of each dim.
    pub fn padding(&self) -> &Padding {
        &self.padding
    }

    /// Returns the content of the padding.
    pub fn padding_mode(&self) -> PadMode {
        self.padding_mode
    }

    fn name(&self) -> &str {
        Self::NAME
    }

    fn extra_repr(&self) -> String {
        let mut s = self.filters.repr();
        match &self.padding {
            Padding::Same => s += ", padding=same",
            Padding::Sizes(p) => s += &unless_default("padding", &p.0, 0, D),
        }
        s += &unless_default("dilation", &self.filters.dilation, 1, D);
        if self.filters.groups != 1 {
            s += &format!(", groups={}", self.filters.groups);
        }
        if self.bias.is_none() {
            s += ", bias=False";
        }
        match self.padding_mode {
            PadMode::Constant(_) => s,
            PadMode::Reflect => s + ", padding_mode=reflect",
            PadMode::Replicate => s + ", padding_mode=replicate",
            PadMode::Circular => s + ", padding_mode=circular",
        }
    }

    /// Pads the last dims as much as the convolution would.
    fn pad(&self, x: &Tensor) -> Tensor {
        let mut pad = Vec::with_capacity(2 * D);
        for a in (0..D).rev() {
            let (before, after) = match &self.padding {
                Padding::Sizes(sizes) => [sizes.0[a % sizes.0.len()]; 2].into(),
                Padding::Same => {
                    let total = self.filters.dilation[a] * (self.filters.kernel_size[a] - 1);
                    ((total / 2) as i64, (total - total / 2) as i64)
                }
            };
            pad.extend([before, after]);
        }
        x.pad(pad, self.padding_mode)
    }
}

impl<const D: usize> Forward for ConvNd<D> {
    fn forward(&self, mut x: Tensor) -> Result<Tensor> {
        let (weight, bias) = (self.weight.get(), self.bias.as_ref().map(Var::get));
        let mut padding = self.padding.clone();
        if self.padding_mode != PadMode::ZEROS {
            (x, padding) = (self.pad(&x), 0.into());
        }
        let options = Conv::new()
            .bias(bias.as_ref())
            .stride(self.filters.stride)
            .padding(padding)
            .dilation(self.filters.dilation)
            .groups(self.filters.groups as i64);
        Ok(match D {
            1 => x.conv1d_with(&weight, options),
            2 => x.conv2d_with(&weight, options),
            _ => x.conv3d_with(&weight, options),
        })
    }
}

/// The transpose of a convolution over `D` spatial dims, 1 to 3. The layer for each has a name of its own: see
/// [`ConvTranspose2d`].
///
/// Weight and bias start uniform within ±1/√fan_in, where `fan_in` is `out_channels / groups · kernel ..`.
#[derive(Module)]
#[module(name, extra_repr, reset_parameters)]
pub struct ConvTransposeNd<const D: usize> {
    /// `[in_channels, out_channels / groups, kernel ..]`.
    pub weight: Var,
    /// `[out_channels]`.
    pub bias: Option<Var>,
    #[skip]
    filters: Filters<D>,
    #[skip]
    padding: [usize; D],
    #[skip]
    output_padding: [usize; D],
    hooks: Hooks,
}

/// The transpose of [`Conv1d`] on `[n, in, l]` (or `[in, l]`) (`torch.nn.ConvTranspose1d`).
pub type ConvTranspose1d = ConvTransposeNd<1>;

/// The transpose of [`Conv2d`] on `[n, in, h, w]` (or `[in, h, w]`) (`torch.nn.ConvTranspose2d`).
///
/// ```
/// use kiln_nn::{ConvTranspose2d, Forward, TransposedKernel};
/// use kiln_tensor::{DType, Tensor};
/// let up = ConvTranspose2d::new(8, 4, TransposedKernel::new(2).stride(2))?;
/// let x = Tensor::zeros([1, 8, 5, 7], DType::F32);
/// assert_eq!(up.call(&x).shape()?, [1, 4, 10, 14]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub type ConvTranspose2d = ConvTransposeNd<2>;

/// The transpose of [`Conv3d`] on `[n, in, d, h, w]` (or `[in, d, h, w]`)
/// (`torch.nn.ConvTranspose3d`).
pub type ConvTranspose3d = ConvTransposeNd<3>;

impl<const D: usize> ConvTransposeNd<D> {
    pub(crate) const NAME: &str = match D {
        1 => "ConvTranspose1d",
        2 => "ConvTranspose2d",
        _ => "ConvTranspose3d",
    };

    /// Makes a layer from `in_channels` to `out_channels`, with this kernel: its size, or a [`TransposedKernel`].
    ///
    /// # Errors
    /// If a size is impossible, the channels do not divide into the groups, or inside `compile`: make layers
    /// before.
    #[track_caller]
    pub fn new(
        in_channels: impl Into<Int>,
        out_channels: impl Into<Int>,
        kernel: impl Into<TransposedKernel>,
    ) -> Result<ConvTransposeNd<D>> {
        let options = kernel.into();
        let channels = [in_channels.into(), out_channels.into()];
        let (filters, [padding, output_padding]) = Self::filters(channels, &options)?;
        let (weight, bias) =
            filters.parameters(filters.in_channels, filters.out_channels, options.bias)?;
        let conv = ConvTransposeNd {
            weight,
            bias,
            filters,
            padding,
            output_padding,
            hooks: Hooks::new(),
        };
        conv.reset_parameters()?;
        Ok(conv)
    }

    /// Checks a layer's options, and returns its filters with the padding of the input and of the output.
    #[track_caller]
    pub(crate) fn filters(
        channels: [Int; 2],
        options: &TransposedKernel,
    ) -> Result<(Filters<D>, [[usize; D]; 2])> {
        let name = Self::NAME;
        let sizes = [&options.kernel_size, &options.stride, &options.dilation];
        let filters: Filters<D> = Filters::new(name, channels, sizes, options.groups)?;
        let padding = per_axis(name, "the padding", &options.padding, 0)?;
        let output_padding: [usize; D] =
            per_axis(name, "the output padding", &options.output_padding, 0)?;
        for (a, extra) in output_padding.iter().enumerate() {
            let (stride, dilation) = (filters.stride[a], filters.dilation[a]);
            if *extra >= stride.max(dilation) {
                let message = format!(
                    "the output padding must be less than the stride {stride} or the dilation {dilation}, not {extra}"
                );
                return Err(invalid(name, message));
            }
        }
        Ok((filters, [padding, output_padding]))
    }

    settings!();

    /// The padding of the convolution that it transposes.
    pub fn padding(&self) -> [usize; D] {
        self.padding
    }

    /// Returns the number of elements added to the result at the end of each axis.
    pub fn output_padding(&self) -> [usize; D] {
        self.output_padding
    }

    fn name(&self) -> &str {
        Self::NAME
    }

    fn extra_repr(&self) -> String {
        let mut s = self.filters.repr();
        s += &unless_default("padding", &self.padding, 0, D);
        s += &unless_default("dilation", &self.filters.dilation, 1, D);
        s += &unless_default("output_padding", &self.output_padding, 0, D);
        if self.filters.groups != 1 {
            s += &format!(", groups={}", self.filters.groups);
        }
        if self.bias.is_none() {
            s += ", bias=False";
        }
        s
    }
}

impl<const D: usize> Forward for ConvTransposeNd<D> {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let (weight, bias) = (self.weight.get(), self.bias.as_ref().map(Var::get));
        let options = ConvTranspose::new()
            .bias(bias.as_ref())
            .stride(self.filters.stride)
            .padding(self.padding)
            .output_padding(self.output_padding)
            .groups(self.filters.groups as i64)
            .dilation(self.filters.dilation);
        Ok(match D {
            1 => x.conv_transpose1d_with(&weight, options),
            2 => x.conv_transpose2d_with(&weight, options),
            _ => x.conv_transpose3d_with(&weight, options),
        })
    }
}
