//! Convolution, pooling and resizing.

use super::rows;
use kiln_tensor::{
    AvgPool, Conv, ConvTranspose, FractionalPool, GridMode, GridPadding, GridSample, Im2Col,
    InterpolateMode, InterpolateSize, PadMode, Padding, Pool, Result, Tensor, Unpool,
};

rows! {
    (x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, indices: &Tensor, grid: &Tensor, kernel: i64, stride: i64, padding: i64, dilation: i64, groups: i64, extra: i64, ceil: bool, align_corners: bool);
    "torch.nn.functional.conv1d" = { x.conv1d(weight) };
    "torch.nn.functional.conv1d(bias, stride, padding, …)" = { x.conv1d_with(weight, Conv::new().bias(bias).stride(stride).padding(padding).dilation(dilation).groups(groups)) };
    "torch.nn.functional.conv2d" = { x.conv2d(weight) };
    "torch.nn.functional.conv2d(bias, stride, padding, …)" = { x.conv2d_with(weight, Conv::new().bias(bias).stride(stride).padding(padding).dilation(dilation).groups(groups)) } "numbers, or one for each spatial dim: `[1, 2]`";
    "torch.nn.functional.conv2d(padding=\"same\")" = { x.conv2d_with(weight, Conv::new().bias(bias).padding(Padding::Same).dilation(dilation).groups(groups)) } "`\"valid\"` is 0";
    "torch.nn.functional.conv3d" = { x.conv3d(weight) };
    "torch.nn.functional.conv3d(bias, stride, padding, …)" = { x.conv3d_with(weight, Conv::new().bias(bias).stride(stride).padding(padding).dilation(dilation).groups(groups)) };
    "torch.nn.functional.conv_transpose1d" = { x.conv_transpose1d(weight) };
    "torch.nn.functional.conv_transpose1d(bias, stride, padding, …)" = { x.conv_transpose1d_with(weight, ConvTranspose::new().bias(bias).stride(stride).padding(padding).output_padding(extra).groups(groups).dilation(dilation)) };
    "torch.nn.functional.conv_transpose2d" = { x.conv_transpose2d(weight) };
    "torch.nn.functional.conv_transpose2d(bias, stride, padding, …)" = { x.conv_transpose2d_with(weight, ConvTranspose::new().bias(bias).stride(stride).padding(padding).output_padding(extra).groups(groups).dilation(dilation)) } "`extra` is `output_padding`";
    "torch.nn.functional.conv_transpose3d" = { x.conv_transpose3d(weight) };
    "torch.nn.functional.conv_transpose3d(bias, stride, padding, …)" = { x.conv_transpose3d_with(weight, ConvTranspose::new().bias(bias).stride(stride).padding(padding).output_padding(extra).groups(groups).dilation(dilation)) };
    "torch.nn.functional.unfold" = { x.im2col(Im2Col::new(kernel).stride(stride).padding(padding).dilation(dilation)) } "`Tensor::unfold` is `Tensor.unfold`";
    "torch.nn.functional.max_pool1d" = { x.max_pool1d(kernel) };
    "torch.nn.functional.max_pool1d(stride, padding, …)" = { x.max_pool1d(Pool::new(kernel).stride(stride).padding(padding).dilation(dilation).ceil_mode(ceil)) };
    "torch.nn.functional.max_pool2d" = { x.max_pool2d(kernel) };
    "torch.nn.functional.max_pool2d(stride, padding, …)" = { x.max_pool2d(Pool::new(kernel).padding(padding).dilation(dilation).ceil_mode(ceil)) };
    "torch.nn.functional.max_pool3d" = { x.max_pool3d(kernel) };
    "torch.nn.functional.max_pool3d(stride, padding, …)" = { x.max_pool3d(Pool::new(kernel).stride(stride).padding(padding).dilation(dilation).ceil_mode(ceil)) };
    "torch.nn.functional.max_pool1d(return_indices=True)" = { x.max_pool1d_with_indices(kernel) };
    "torch.nn.functional.max_pool2d(return_indices=True)" = { x.max_pool2d_with_indices(kernel) };
    "torch.nn.functional.fractional_max_pool2d" = { x.fractional_max_pool2d(FractionalPool::new(kernel).output_ratio(0.7)) } "`output_size`, `random_samples` likewise";
    "torch.nn.functional.fractional_max_pool2d(return_indices=True)" = { x.fractional_max_pool2d_with_indices(FractionalPool::new(kernel).output_size(13)) };
    "torch.nn.functional.fractional_max_pool3d" = { x.fractional_max_pool3d(FractionalPool::new(kernel).output_ratio(0.7)) };
    "torch.nn.functional.fractional_max_pool3d(return_indices=True)" = { x.fractional_max_pool3d_with_indices(FractionalPool::new(kernel).output_size(13)) };
    "torch.nn.functional.max_pool3d(return_indices=True)" = { x.max_pool3d_with_indices(kernel) };
    "torch.nn.functional.max_unpool1d" = { x.max_unpool1d(indices, Unpool::new(kernel).stride(stride).padding(padding)) };
    "torch.nn.functional.max_unpool2d" = { x.max_unpool2d(indices, Unpool::new(kernel).stride(stride).padding(padding)) } "and `.output_size(..)`";
    "torch.nn.functional.max_unpool3d" = { x.max_unpool3d(indices, Unpool::new(kernel).stride(stride).padding(padding)) };
    "torch.nn.functional.avg_pool1d" = { x.avg_pool1d(kernel) };
    "torch.nn.functional.avg_pool1d(stride, padding, …)" = { x.avg_pool1d(AvgPool::new(kernel).stride(stride).padding(padding).ceil_mode(ceil)) };
    "torch.nn.functional.avg_pool2d" = { x.avg_pool2d(kernel) };
    "torch.nn.functional.avg_pool2d(stride, padding, …)" = { x.avg_pool2d(AvgPool::new(kernel).stride(stride).padding(padding).ceil_mode(ceil)) } "and `.count_include_pad(false)`, `.divisor_override(3)`";
    "torch.nn.functional.avg_pool3d" = { x.avg_pool3d(kernel) };
    "torch.nn.functional.avg_pool3d(stride, padding, …)" = { x.avg_pool3d(AvgPool::new(kernel).stride(stride).padding(padding).ceil_mode(ceil)) };
    "torch.nn.functional.adaptive_avg_pool1d" = { x.adaptive_avg_pool1d(7) };
    "torch.nn.functional.adaptive_avg_pool2d" = { x.adaptive_avg_pool2d([Some(7), None]) };
    "torch.nn.functional.adaptive_avg_pool3d" = { x.adaptive_avg_pool3d(7) };
    "torch.nn.functional.adaptive_max_pool1d" = { x.adaptive_max_pool1d(7) };
    "torch.nn.functional.adaptive_max_pool2d" = { x.adaptive_max_pool2d(7) };
    "torch.nn.functional.adaptive_max_pool3d" = { x.adaptive_max_pool3d(7) };
    "torch.nn.functional.adaptive_max_pool1d(return_indices=True)" = { x.adaptive_max_pool1d_with_indices(7) };
    "torch.nn.functional.adaptive_max_pool2d(return_indices=True)" = { x.adaptive_max_pool2d_with_indices(7) };
    "torch.nn.functional.adaptive_max_pool3d(return_indices=True)" = { x.adaptive_max_pool3d_with_indices(7) };
    "torch.nn.functional.interpolate" = { x.interpolate(InterpolateSize::Size(14.into()), InterpolateMode::Nearest) } "`NearestExact`, `Area` likewise; no `antialias`";
    "torch.nn.functional.interpolate(mode=\"bilinear\")" = { x.interpolate(InterpolateSize::ScaleFactor(vec![2.0]), InterpolateMode::Linear { align_corners }) } "`linear` and `trilinear`, too, by the rank";
    "torch.nn.functional.interpolate(mode=\"bicubic\")" = { x.interpolate(InterpolateSize::Size([14, 14].into()), InterpolateMode::Bicubic { align_corners }) };
    "torch.nn.functional.grid_sample" = { x.grid_sample(grid) };
    "torch.nn.functional.grid_sample(mode, padding_mode, …)" = { x.grid_sample_with(grid, GridSample::new().mode(GridMode::Nearest).padding_mode(GridPadding::Border).align_corners(align_corners)) };
    "torch.nn.functional.pad" = { x.pad([1, 1], PadMode::ZEROS) } "`PadMode::Constant(value)`, `Reflect`, `Replicate`, `Circular`";
    "torch.nn.functional.pixel_shuffle", "torch.pixel_shuffle" = { x.pixel_shuffle(2) };
    "torch.nn.functional.pixel_unshuffle", "torch.pixel_unshuffle" = { x.pixel_unshuffle(2) };
    "torch.nn.functional.channel_shuffle", "torch.channel_shuffle" = { x.channel_shuffle(groups) };
}
