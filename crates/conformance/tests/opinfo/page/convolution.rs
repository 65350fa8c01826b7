//! Convolution, pooling and resizing.

use super::rows;
use kiln_tensor::{
    GridMode, GridPadding, InterpolateMode, InterpolateSize, PadMode, Padding, Result, Tensor,
};

rows! {
    (x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, indices: &Tensor, grid: &Tensor, kernel: i64, stride: i64, padding: i64, dilation: i64, groups: i64, extra: i64, ceil: bool, align_corners: bool);
    "torch.nn.functional.conv1d" = { x.conv1d(weight, bias, stride, padding, dilation, groups) };
    "torch.nn.functional.conv2d" = { x.conv2d(weight, bias, stride, padding, dilation, groups) } "numbers, or one for each spatial dim: `[1, 2]`";
    "torch.nn.functional.conv2d(padding=\"same\")" = { x.conv2d(weight, bias, 1, Padding::Same, dilation, groups) } "`\"valid\"` is 0";
    "torch.nn.functional.conv3d" = { x.conv3d(weight, bias, stride, padding, dilation, groups) };
    "torch.nn.functional.conv_transpose1d" = { x.conv_transpose1d(weight, bias, stride, padding, extra, groups, dilation) };
    "torch.nn.functional.conv_transpose2d" = { x.conv_transpose2d(weight, bias, stride, padding, extra, groups, dilation) } "`extra` is `output_padding`";
    "torch.nn.functional.conv_transpose3d" = { x.conv_transpose3d(weight, bias, stride, padding, extra, groups, dilation) };
    "torch.nn.functional.unfold" = { x.im2col(kernel, dilation, padding, stride) } "`Tensor::unfold` is `Tensor.unfold`";
    "torch.nn.functional.max_pool1d" = { x.max_pool1d(kernel, stride, padding, dilation, ceil) };
    "torch.nn.functional.max_pool2d" = { x.max_pool2d(kernel, (), padding, dilation, ceil) } "`()` as the stride is the kernel's size";
    "torch.nn.functional.max_pool3d" = { x.max_pool3d(kernel, stride, padding, dilation, ceil) };
    "torch.nn.functional.max_pool1d(return_indices=True)" = { x.max_pool1d_with_indices(kernel, stride, padding, dilation, ceil) };
    "torch.nn.functional.max_pool2d(return_indices=True)" = { x.max_pool2d_with_indices(kernel, stride, padding, dilation, ceil) };
    "torch.nn.functional.max_pool3d(return_indices=True)" = { x.max_pool3d_with_indices(kernel, stride, padding, dilation, ceil) };
    "torch.nn.functional.max_unpool1d" = { x.max_unpool1d(indices, kernel, stride, padding, ()) };
    "torch.nn.functional.max_unpool2d" = { x.max_unpool2d(indices, kernel, stride, padding, ()) } "`()` as the output size is the default";
    "torch.nn.functional.max_unpool3d" = { x.max_unpool3d(indices, kernel, stride, padding, ()) };
    "torch.nn.functional.avg_pool1d" = { x.avg_pool1d(kernel, stride, padding, ceil, true, None) };
    "torch.nn.functional.avg_pool2d" = { x.avg_pool2d(kernel, stride, padding, ceil, true, None) } "`count_include_pad`, then `divisor_override`";
    "torch.nn.functional.avg_pool3d" = { x.avg_pool3d(kernel, stride, padding, ceil, true, None) };
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
    "torch.nn.functional.grid_sample" = { x.grid_sample(grid, GridMode::Bilinear, GridPadding::Zeros, align_corners) };
    "torch.nn.functional.pad" = { x.pad([1, 1], PadMode::ZEROS) } "`PadMode::Constant(value)`, `Reflect`, `Replicate`, `Circular`";
    "torch.nn.functional.pixel_shuffle", "torch.pixel_shuffle" = { x.pixel_shuffle(2) };
    "torch.nn.functional.pixel_unshuffle", "torch.pixel_unshuffle" = { x.pixel_unshuffle(2) };
    "torch.nn.functional.channel_shuffle", "torch.channel_shuffle" = { x.channel_shuffle(groups) };
}
