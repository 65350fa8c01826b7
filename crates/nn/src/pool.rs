//! Pooling.

use crate::layer::run;
use crate::print::{python, sizes};
use crate::{Forward, Module};
use kiln_tensor::{AvgPool, IntList, OutputSize, Pool, Tensor};

/// `5`, or `(5, 3)`, as PyTorch prints what the user gave.
pub(crate) fn given(list: &IntList) -> String {
    match &list.0[..] {
        [one] => one.to_string(),
        all => sizes(all, all.len()),
    }
}

/// The stride, which is the kernel size unless given.
pub(crate) fn stride_or_kernel(stride: &IntList, kernel: &IntList) -> String {
    given(if stride.0.is_empty() { kernel } else { stride })
}

macro_rules! max_pools {
    ($($(#[$doc:meta])* $name:ident $op:ident $with_indices:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            /// The windows.
            #[skip]
            pub windows: Pool,
        }

        impl $name {
            /// A layer with these windows; their size alone stands for them. Impossible ones give results that
            /// carry that error.
            pub fn new(windows: impl Into<Pool>) -> $name {
                $name {
                    windows: windows.into(),
                }
            }

            /// The maxima and where they are in their plane, as i64 (`return_indices`).
            #[track_caller]
            pub fn forward_with_indices(&self, x: &Tensor) -> (Tensor, Tensor) {
                let [y, indices] = crate::layer::run_all(self, &[x], || {
                    x.$with_indices(self.windows.clone()).into()
                });
                (y, indices)
            }

            fn extra_repr(&self) -> String {
                let pool = &self.windows;
                format!(
                    "kernel_size={}, stride={}, padding={}, dilation={}, ceil_mode={}",
                    given(&pool.kernel_size),
                    stride_or_kernel(&pool.stride, &pool.kernel_size),
                    given(&pool.padding),
                    given(&pool.dilation),
                    python(pool.ceil_mode)
                )
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                run(self, &[x], || x.$op(self.windows.clone()))
            }
        }
    )*};
}

max_pools! {
    /// The maxima of windows over `[n, c, l]` (or `[c, l]`) (`torch.nn.MaxPool1d`).
    MaxPool1d max_pool1d max_pool1d_with_indices;
    /// The maxima of windows over `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.MaxPool2d`).
    MaxPool2d max_pool2d max_pool2d_with_indices;
    /// The maxima of windows over `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.MaxPool3d`).
    MaxPool3d max_pool3d max_pool3d_with_indices;
}

macro_rules! average_pools {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            /// The windows.
            #[skip]
            pub windows: AvgPool,
        }

        impl $name {
            /// A layer with these windows; their size alone stands for them. Impossible ones give results that
            /// carry that error.
            pub fn new(windows: impl Into<AvgPool>) -> $name {
                $name {
                    windows: windows.into(),
                }
            }

            fn extra_repr(&self) -> String {
                let pool = &self.windows;
                format!(
                    "kernel_size={}, stride={}, padding={}",
                    given(&pool.kernel_size),
                    stride_or_kernel(&pool.stride, &pool.kernel_size),
                    given(&pool.padding)
                )
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                run(self, &[x], || x.$op(self.windows.clone()))
            }
        }
    )*};
}

average_pools! {
    /// The means of windows over `[n, c, l]` (or `[c, l]`) (`torch.nn.AvgPool1d`).
    AvgPool1d avg_pool1d;
    /// The means of windows over `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.AvgPool2d`).
    AvgPool2d avg_pool2d;
    /// The means of windows over `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.AvgPool3d`).
    AvgPool3d avg_pool3d;
}

/// An output size as PyTorch prints it.
fn kept(size: &OutputSize) -> String {
    let one = |d: &Option<i64>| d.map_or("None".to_string(), |d| d.to_string());
    match &size.0[..] {
        [size] => one(size),
        all => format!("({})", all.iter().map(one).collect::<Vec<_>>().join(", ")),
    }
}

macro_rules! adaptive_pools {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            #[skip]
            output_size: OutputSize,
        }

        impl $name {
            /// A layer whose result has this size, one number for each spatial dim, or one for all; `None`
            /// keeps the input's.
            pub fn new(output_size: impl Into<OutputSize>) -> $name {
                $name {
                    output_size: output_size.into(),
                }
            }

            fn extra_repr(&self) -> String {
                format!("output_size={}", kept(&self.output_size))
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                run(self, &[x], || x.$op(self.output_size.clone()))
            }
        }
    )*};
}

adaptive_pools! {
    /// The means of as many windows as asked for over `[n, c, l]` (`torch.nn.AdaptiveAvgPool1d`).
    AdaptiveAvgPool1d adaptive_avg_pool1d;
    /// The means of as many windows as asked for over `[n, c, h, w]` (`torch.nn.AdaptiveAvgPool2d`).
    AdaptiveAvgPool2d adaptive_avg_pool2d;
    /// The means of as many windows as asked for over `[n, c, d, h, w]`
    /// (`torch.nn.AdaptiveAvgPool3d`).
    AdaptiveAvgPool3d adaptive_avg_pool3d;
    /// The maxima of as many windows as asked for over `[n, c, l]` (`torch.nn.AdaptiveMaxPool1d`).
    AdaptiveMaxPool1d adaptive_max_pool1d;
    /// The maxima of as many windows as asked for over `[n, c, h, w]` (`torch.nn.AdaptiveMaxPool2d`).
    AdaptiveMaxPool2d adaptive_max_pool2d;
    /// The maxima of as many windows as asked for over `[n, c, d, h, w]`
    /// (`torch.nn.AdaptiveMaxPool3d`).
    AdaptiveMaxPool3d adaptive_max_pool3d;
}
