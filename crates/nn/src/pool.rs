//! Pooling.

use crate::forward::{Output, dispatch};
use crate::layer::{check_accepts, per_axis};
use crate::print::{python, sizes};
use crate::{Forward, Hooks, Module};
use kiln_tensor::{AvgPool, IntList, OutputSize, Pool, Result, Tensor};

/// Formats a size as PyTorch does for the given list: `5`, or `(5, 3)`.
pub(crate) fn format_size(list: &IntList) -> String {
    match &list.0[..] {
        [one] => one.to_string(),
        all => sizes(all, all.len()),
    }
}

/// Returns the stride, which is the kernel size unless given.
pub(crate) fn stride_or_kernel<'a>(stride: &'a IntList, kernel: &'a IntList) -> &'a IntList {
    if stride.0.is_empty() { kernel } else { stride }
}

/// Returns the shape of an input with one window: 1, 1, and the extent of a window in each of `D` dims.
#[track_caller]
pub(crate) fn window<const D: usize>(
    layer: &str,
    kernel: &IntList,
    dilation: &IntList,
) -> Result<Vec<usize>> {
    let kernel: [usize; D] = per_axis(layer, "the kernel size", kernel, 1)?;
    let dilation: [usize; D] = per_axis(layer, "the dilation", dilation, 1)?;
    let extent = |a: usize| {
        (kernel[a] - 1)
            .saturating_mul(dilation[a])
            .saturating_add(1)
    };
    Ok([1, 1].into_iter().chain((0..D).map(extent)).collect())
}

/// Getters of the settings of windows.
macro_rules! windows {
    ($name:ident $($padding:ident)?) => {
        impl $name {
            /// The size of a window.
            pub fn kernel_size(&self) -> &IntList {
                &self.windows.kernel_size
            }

            /// Returns the step from one window to the next.
            pub fn stride(&self) -> &IntList {
                $crate::pool::stride_or_kernel(&self.windows.stride, &self.windows.kernel_size)
            }

            $(/// Returns the padding on both sides of each dim.
            pub fn $padding(&self) -> &IntList {
                &self.windows.$padding
            })?
        }
    };
}
pub(crate) use windows;

macro_rules! pools {
    ($($(#[$doc:meta])* $name:ident $windows:ident $spatial:literal |$x:ident, $options:ident| $body:expr;
        $repr:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            #[skip]
            windows: $windows,
            hooks: Hooks,
        }

        impl $name {
            /// Makes a layer with these windows; a window size converts into them.
            ///
            /// # Errors
            /// If the windows are impossible.
            #[track_caller]
            pub fn new(windows: impl Into<$windows>) -> Result<$name> {
                let (windows, hooks) = (windows.into(), Hooks::new());
                let shape = windows.one_window::<$spatial>(stringify!($name))?;
                check_accepts($name { windows, hooks }, &shape)
            }

            /// True if windows that reach beyond the end count.
            pub fn ceil_mode(&self) -> bool {
                self.windows.ceil_mode
            }

            fn extra_repr(&self) -> String {
                $repr(&self.windows)
            }
        }

        windows!($name padding);

        impl Forward for $name {
            fn forward(&self, $x: Tensor) -> Result<Tensor> {
                let $options = self.windows.clone();
                Ok($body)
            }
        }
    )*};
}

/// Returns the shape of an input with one window.
trait Windows {
    fn one_window<const D: usize>(&self, layer: &str) -> Result<Vec<usize>>;
}

impl Windows for Pool {
    #[track_caller]
    fn one_window<const D: usize>(&self, layer: &str) -> Result<Vec<usize>> {
        window::<D>(layer, &self.kernel_size, &self.dilation)
    }
}

impl Windows for AvgPool {
    #[track_caller]
    fn one_window<const D: usize>(&self, layer: &str) -> Result<Vec<usize>> {
        window::<D>(layer, &self.kernel_size, &1.into())
    }
}

fn max_repr(pool: &Pool) -> String {
    format!(
        "kernel_size={}, stride={}, padding={}, dilation={}, ceil_mode={}",
        format_size(&pool.kernel_size),
        format_size(stride_or_kernel(&pool.stride, &pool.kernel_size)),
        format_size(&pool.padding),
        format_size(&pool.dilation),
        python(pool.ceil_mode)
    )
}

fn average_repr(pool: &AvgPool) -> String {
    format!(
        "kernel_size={}, stride={}, padding={}",
        format_size(&pool.kernel_size),
        format_size(stride_or_kernel(&pool.stride, &pool.kernel_size)),
        format_size(&pool.padding)
    )
}

pools! {
    /// The maxima of windows over `[n, c, l]` (or `[c, l]`) (`torch.nn.MaxPool1d`).
    MaxPool1d Pool 1 |x, options| x.max_pool1d(options); max_repr;
    /// The maxima of windows over `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.MaxPool2d`).
    MaxPool2d Pool 2 |x, options| x.max_pool2d(options); max_repr;
    /// The maxima of windows over `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.MaxPool3d`).
    MaxPool3d Pool 3 |x, options| x.max_pool3d(options); max_repr;
    /// The means of windows over `[n, c, l]` (or `[c, l]`) (`torch.nn.AvgPool1d`).
    AvgPool1d AvgPool 1 |x, options| x.avg_pool1d(options); average_repr;
    /// The means of windows over `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.AvgPool2d`).
    AvgPool2d AvgPool 2 |x, options| x.avg_pool2d(options); average_repr;
    /// The means of windows over `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.AvgPool3d`).
    AvgPool3d AvgPool 3 |x, options| x.avg_pool3d(options); average_repr;
}

macro_rules! with_indices {
    ($($name:ident $op:ident;)*) => {$(
        impl $name {
            /// Returns the step from one element of a window to the next.
            pub fn dilation(&self) -> &IntList {
                &self.windows.dilation
            }

            /// Returns the maxima and their positions in their plane, as i64 (`return_indices=True`).
            #[track_caller]
            pub fn call_with_indices(&self, x: impl kiln_tensor::AsTensor) -> (Tensor, Tensor) {
                let both = |x: Tensor| Ok(x.$op(self.windows.clone()));
                dispatch(self, x.as_tensor().into_owned(), both).unwrap_or_else(|e| Output::of_error(&e))
            }
        }
    )*};
}

with_indices! {
    MaxPool1d max_pool1d_with_indices;
    MaxPool2d max_pool2d_with_indices;
    MaxPool3d max_pool3d_with_indices;
}

/// An output size as PyTorch prints it.
fn output_size_repr(size: &OutputSize) -> String {
    let dim_repr = |d: &Option<i64>| d.map_or("None".to_string(), |d| d.to_string());
    match &size.0[..] {
        [size] => dim_repr(size),
        sizes => format!(
            "({})",
            sizes.iter().map(dim_repr).collect::<Vec<_>>().join(", ")
        ),
    }
}

macro_rules! adaptive_pools {
    ($($(#[$doc:meta])* $name:ident $spatial:literal $op:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            #[skip]
            output_size: OutputSize,
            hooks: Hooks,
        }

        impl $name {
            /// Makes a layer whose result has this size: one number for each spatial dim, or one for all; `None` keeps
            /// the input's.
            ///
            /// # Errors
            /// If there are too many numbers, or one is negative.
            #[track_caller]
            pub fn new(output_size: impl Into<OutputSize>) -> Result<$name> {
                let (output_size, hooks) = (output_size.into(), Hooks::new());
                check_accepts($name { output_size, hooks }, &[1; 2 + $spatial])
            }

            /// The size of the result.
            pub fn output_size(&self) -> &OutputSize {
                &self.output_size
            }

            fn extra_repr(&self) -> String {
                format!("output_size={}", output_size_repr(&self.output_size))
            }
        }

        impl Forward for $name {
            fn forward(&self, x: Tensor) -> Result<Tensor> {
                Ok(x.$op(self.output_size.clone()))
            }
        }
    )*};
}

adaptive_pools! {
    /// The means of windows over `[n, c, l]`, for a given output size (`torch.nn.AdaptiveAvgPool1d`).
    AdaptiveAvgPool1d 1 adaptive_avg_pool1d;
    /// The means of windows over `[n, c, h, w]`, for a given output size (`torch.nn.AdaptiveAvgPool2d`).
    AdaptiveAvgPool2d 2 adaptive_avg_pool2d;
    /// The means of windows over `[n, c, d, h, w]`, for a given output size (`torch.nn.AdaptiveAvgPool3d`).
    AdaptiveAvgPool3d 3 adaptive_avg_pool3d;
    /// The maxima of windows over `[n, c, l]`, for a given output size (`torch.nn.AdaptiveMaxPool1d`).
    AdaptiveMaxPool1d 1 adaptive_max_pool1d;
    /// The maxima of windows over `[n, c, h, w]`, for a given output size (`torch.nn.AdaptiveMaxPool2d`).
    AdaptiveMaxPool2d 2 adaptive_max_pool2d;
    /// The maxima of windows over `[n, c, d, h, w]`, for a given output size (`torch.nn.AdaptiveMaxPool3d`).
    AdaptiveMaxPool3d 3 adaptive_max_pool3d;
}
