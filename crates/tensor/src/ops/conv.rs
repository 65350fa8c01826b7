//! Convolutions.

use super::args::{IntList, check_alike, known};
use crate::operand::AsTensor;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor, quantization};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::ops::{self, Axes};
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

/// The padding of a convolution's input with zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Padding {
    /// The same number before and after each axis.
    Sizes(IntList),
    /// As many as keep the input's size, with an odd one after the axis. Needs strides of 1.
    Same,
}

impl<T: Into<IntList>> From<T> for Padding {
    fn from(sizes: T) -> Padding {
        Padding::Sizes(sizes.into())
    }
}

options! {
    /// The options of a convolution. Numbers are given one for each spatial dim, or one for all.
    ///
    /// ```
    /// use kiln_tensor::{Conv, DType, Tensor};
    /// let x = Tensor::zeros([16, 1, 32, 32], DType::F32);
    /// let weight = Tensor::zeros([6, 1, 5, 5], DType::F32);
    /// assert_eq!(x.conv2d(&weight).shape()?, [16, 6, 28, 28]);
    /// let options = Conv::new().bias(&Tensor::ones([6], DType::F32)).stride(2).padding(2);
    /// assert_eq!(x.conv2d_with(&weight, options).shape()?, [16, 6, 16, 16]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    Conv () {
        /// The distance between windows (default 1).
        stride: IntList = 1,
        /// The zeros on both sides of each dim (default 0), or [`Padding::Same`].
        padding: Padding = 0,
        /// The distance between elements of a window (default 1).
        dilation: IntList = 1,
        /// The number of independent groups that the channels are split into (default 1).
        groups: i64 = 1,
        ;
        /// The bias of the output channels, `[out]`.
        bias,
    }
}

options! {
    /// The options of a transposed convolution. Numbers are given one for each spatial dim, or one for all.
    ConvTranspose () {
        /// The stride of the convolution that it transposes (default 1).
        stride: IntList = 1,
        /// The padding of the convolution that it transposes (default 0). It makes the result smaller.
        padding: IntList = 0,
        /// The extra size of the result at the end of each axis (default 0), for strides that leave the size of the
        /// convolution's input ambiguous.
        output_padding: IntList = 0,
        /// The number of independent groups that the channels are split into (default 1).
        groups: i64 = 1,
        /// The dilation of the convolution that it transposes (default 1).
        dilation: IntList = 1,
        ;
        /// The bias of the output channels, `[out]`.
        bias,
    }
}

macro_rules! convolutions {
    ($($(#[$doc:meta])* $name:ident $with:ident $spatial:literal;)*) => {
        #[on_cells]
        impl Tensor {
            $($(#[$doc])*
            pub fn $name(&self, weight: impl AsTensor) -> Tensor {
                self.$with(weight, Conv::new())
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] with a bias, strides and the like.")]
            #[autocast(options)]
            pub fn $with(&self, weight: impl AsTensor, options: Conv) -> Tensor {
                convolution(stringify!($name), $spatial, self, weight, &options)
            })*
        }
    };
}

convolutions! {
    /// Cross-correlation of `[n, c, l]` (or `[c, l]`) with a weight `[o, c / groups, k]`.
    conv1d conv1d_with 1;
    /// Cross-correlation of `[n, c, h, w]` (or `[c, h, w]`) with a weight
    /// `[o, c / groups, kh, kw]`; see [`Conv`].
    conv2d conv2d_with 2;
    /// Cross-correlation of `[n, c, d, h, w]` (or `[c, d, h, w]`) with a weight
    /// `[o, c / groups, kd, kh, kw]`.
    conv3d conv3d_with 3;
}

#[track_caller]
fn convolution(
    called: &'static str,
    spatial: usize,
    x: &Tensor,
    weight: &Tensor,
    p: &Conv,
) -> Tensor {
    let bias = p.bias.as_ref();
    let of_bytes = quantization::convolution(
        (called, x, weight),
        p,
        || {
            check_operands(spatial, x, weight, bias)?;
            if let Some(bias) = bias {
                check_bias(bias, &weight.dims()[0])?;
            }
            Ok(conv_op(spatial, weight, p)?.padding)
        },
        |x, weight, p| convolution(called, spatial, x, weight, p),
    );
    if let Some(y) = of_bytes {
        return y;
    }
    let mut operands = vec![x, weight];
    operands.extend(bias);
    compose(called, &operands, |b| {
        check_operands(spatial, x, weight, bias)?;
        let op = conv_op(spatial, weight, p)?;
        with_batch_dim(b, spatial, x, |b, x| {
            let (wide_x, wide_weight) = widen_for_bias(b, x, weight, bias)?;
            let y = b.op(op, &[wide_x, wide_weight])?;
            with_bias(b, &y, bias, x.dtype())
        })
    })
}

fn conv_op(spatial: usize, weight: &Tensor, p: &Conv) -> Result<ops::Conv, OpError> {
    let stride = p.stride.for_axes(spatial, "the stride", 1)?;
    let dilation = p.dilation.for_axes(spatial, "the dilation", 1)?;
    ensure!(p.groups > 0, "groups must be at least 1, not {}", p.groups);
    let padding = match &p.padding {
        Padding::Sizes(sizes) => {
            let sizes = sizes.for_axes(spatial, "the padding", 0)?;
            sizes.iter().map(|n| (*n, *n)).collect()
        }
        Padding::Same => {
            ensure!(
                stride.iter().all(|s| *s == 1),
                "padding that keeps the size needs strides of 1, not {stride:?}"
            );
            same_padding(weight, &dilation)?
        }
    };
    Ok(ops::Conv {
        stride,
        padding,
        dilation,
        groups: p.groups as usize,
    })
}

fn same_padding(weight: &Tensor, dilation: &Axes) -> Result<Vec<(usize, usize)>, OpError> {
    let pair = |(a, d): (usize, &usize)| {
        let total = *d * (known(weight, a + 2)?.max(1) as usize - 1);
        Ok((total / 2, total - total / 2))
    };
    dilation.iter().enumerate().map(pair).collect()
}

fn check_operands(
    spatial: usize,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<(), OpError> {
    check_alike(x, "input", weight, "weight")?;
    check_rank(spatial, x)?;
    ensure!(
        weight.ndim() == spatial + 2,
        "the weight must have {} dims, not {}",
        spatial + 2,
        weight.fact()
    );
    if let Some(bias) = bias {
        check_alike(x, "input", bias, "bias")?;
    }
    Ok(())
}

/// Returns an error unless a tensor is `[n, c, ..]` or `[c, ..]`.
pub(crate) fn check_rank(spatial: usize, x: &Tensor) -> Result<(), OpError> {
    ensure!(
        x.ndim() == spatial + 1 || x.ndim() == spatial + 2,
        "the input must have {} dims, or {} without a batch, not {}",
        spatial + 2,
        spatial + 1,
        x.fact()
    );
    Ok(())
}

/// Applies a function of `[n, c, ..]` to a tensor of this shape or of shape `[c, ..]`.
pub(crate) fn with_batch_dim(
    b: &mut Recorder,
    spatial: usize,
    x: &Tensor,
    f: impl FnOnce(&mut Recorder, &Tensor) -> Recorded,
) -> Recorded {
    if x.ndim() > spatial + 1 {
        return f(b, x);
    }
    let x = b.unsqueeze(x, 0)?;
    let y = f(b, &x)?;
    let shape = Shape::from(&y.dims()[1..]);
    b.reshape(&y, &shape)
}

/// Returns the operands of a product that a bias is added to: widened, so that the sum is rounded once.
pub(crate) fn widen_for_bias(
    b: &mut Recorder,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<(Tensor, Tensor), OpError> {
    match bias {
        Some(_) => Ok((b.widen(x)?, b.widen(weight)?)),
        None => Ok((x.clone(), weight.clone())),
    }
}

fn check_bias(bias: &Tensor, channels: &Dim) -> Result<(), OpError> {
    ensure!(
        bias.ndim() == 1 && bias.dims()[0] == *channels,
        "the bias must hold {channels} numbers, one for each output channel, not {}",
        bias.fact()
    );
    Ok(())
}

fn with_bias(b: &mut Recorder, y: &Tensor, bias: Option<&Tensor>, dtype: DType) -> Recorded {
    let Some(bias) = bias else {
        return Ok(y.clone());
    };
    check_bias(bias, &y.dims()[1])?;
    let column = b.reshape_along(bias, 0, y.ndim() - 1)?;
    let column = b.cast(&column, y.dtype())?;
    let sum = b.binary(Pw::Add, y, &column)?;
    b.cast(&sum, dtype)
}

macro_rules! transposed_convolutions {
    ($($(#[$doc:meta])* $name:ident $with:ident $spatial:literal;)*) => {
        #[on_cells]
        impl Tensor {
            $($(#[$doc])*
            pub fn $name(&self, weight: impl AsTensor) -> Tensor {
                self.$with(weight, ConvTranspose::new())
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] with a bias, strides and the like.")]
            #[autocast(options)]
            pub fn $with(&self, weight: impl AsTensor, options: ConvTranspose) -> Tensor {
                let bias = options.bias.as_ref();
                let mut operands = vec![self, weight];
                operands.extend(bias);
                compose(stringify!($name), &operands, |b| {
                    check_operands($spatial, self, weight, bias)?;
                    with_batch_dim(b, $spatial, self, |b, x| {
                        let y = conv_transpose(b, $spatial, x, weight, &options)?;
                        with_bias(b, &y, bias, x.dtype())
                    })
                })
            })*
        }
    };
}

transposed_convolutions! {
    /// The transpose of [`Tensor::conv1d`]: `[n, c, l]` (or `[c, l]`) with a weight `[c, o / groups, k]` gives length
    /// `(l − 1) · stride − 2 · padding + dilation · (k − 1) + output_padding + 1`.
    conv_transpose1d conv_transpose1d_with 1;
    /// The transpose of [`Tensor::conv2d`], see [`Tensor::conv_transpose1d`].
    conv_transpose2d conv_transpose2d_with 2;
    /// The transpose of [`Tensor::conv3d`], see [`Tensor::conv_transpose1d`].
    conv_transpose3d conv_transpose3d_with 3;
}

/// The transpose of a convolution. The sizes of the convolution's input follow from those of `x`, so that padding at
/// the end of each axis leaves no remainder. Where `output_padding` exceeds the padding, the excess is zeros.
fn conv_transpose(
    b: &mut Recorder,
    spatial: usize,
    x: &Tensor,
    weight: &Tensor,
    p: &ConvTranspose,
) -> Recorded {
    let bias = p.bias.as_ref();
    let stride = p.stride.for_axes(spatial, "the stride", 1)?;
    let padding = p.padding.for_axes(spatial, "the padding", 0)?;
    let extra = p
        .output_padding
        .for_axes(spatial, "the output padding", 0)?;
    let dilation = p.dilation.for_axes(spatial, "the dilation", 1)?;
    ensure!(p.groups > 0, "groups must be at least 1, not {}", p.groups);
    ensure!(
        x.dims()[1] == weight.dims()[0],
        "the input {} has {} channels, but the weight {} takes {}",
        x.fact(),
        x.dims()[1],
        weight.fact(),
        weight.dims()[0]
    );
    let mut borders = Vec::new();
    let mut input = Shape::new();
    for a in 0..spatial {
        ensure!(
            extra[a] < stride[a].max(dilation[a]),
            "the output padding {} must be smaller than the stride or the dilation",
            extra[a]
        );
        let trailing_padding = padding[a] - extra[a].min(padding[a]);
        let last = &(&x.dims()[a + 2] - &Dim::ONE) * &Dim::from(stride[a]);
        let reach = &Dim::from(dilation[a]) * &Dim::Const(known(weight, a + 2)? - 1);
        let hidden = &Dim::from(padding[a]) + &Dim::from(trailing_padding);
        let extent = &(&(&last + &reach) + &Dim::ONE) - &hidden;
        ensure!(
            extent.as_const().is_none_or(|n| n >= 0),
            "the padding leaves nothing of dim {} of {}",
            a + 2,
            x.fact()
        );
        borders.push((padding[a], trailing_padding));
        input.push(extent);
    }
    let conv = ops::Conv {
        stride,
        padding: borders,
        dilation,
        groups: p.groups as usize,
    };
    let op = ops::ConvTranspose { conv, input };
    let (x, weight) = widen_for_bias(b, x, weight, bias)?;
    let mut y = b.op(op, &[x, weight])?;
    for a in 0..spatial {
        let zeros = extra[a] - extra[a].min(padding[a]);
        y = b.pad_axis(&y, a + 2, 0i64, zeros, 0i64)?;
    }
    Ok(y)
}
