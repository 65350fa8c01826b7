//! Pooling by norms, and pooling undone.

use crate::layer::{run, run_lookup};
use crate::pool::{given, stride_or_kernel};
use crate::print::{float, python};
use crate::{Forward, Module};
use kiln_tensor::{AvgPool, IntList, Tensor, Unpool};

macro_rules! power_pools {
    ($($(#[$doc:meta])* $name:ident $average:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            /// The order of the norm.
            pub norm_type: f64,
            kernel_size: IntList,
            stride: IntList,
            ceil_mode: bool,
        }

        impl $name {
            /// A layer whose stride is its kernel size. An impossible size gives results that carry that
            /// error.
            pub fn new(norm_type: f64, kernel_size: impl Into<IntList>) -> $name {
                $name {
                    norm_type,
                    kernel_size: kernel_size.into(),
                    stride: ().into(),
                    ceil_mode: false,
                }
            }

            /// The layer with this stride (default the kernel size).
            pub fn stride(mut self, stride: impl Into<IntList>) -> $name {
                self.stride = stride.into();
                self
            }

            /// Whether windows that reach beyond the end count (default no).
            pub fn ceil_mode(mut self, ceil_mode: bool) -> $name {
                self.ceil_mode = ceil_mode;
                self
            }

            fn extra_repr(&self) -> String {
                format!(
                    "norm_type={}, kernel_size={}, stride={}, ceil_mode={}",
                    float(self.norm_type),
                    given(&self.kernel_size),
                    stride_or_kernel(&self.stride, &self.kernel_size),
                    python(self.ceil_mode)
                )
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                run(self, &[x], || {
                    // Sums: windows beyond the end have fewer elements.
                    let windows = AvgPool::new(self.kernel_size.clone())
                        .stride(self.stride.clone())
                        .ceil_mode(self.ceil_mode)
                        .divisor_override(1);
                    let sums = x.pow(self.norm_type).$average(windows);
                    (sums.sign() * sums.abs().relu()).pow(1.0 / self.norm_type)
                })
            }
        }
    )*};
}

power_pools! {
    /// `(Σ xᵖ)^(1/p)` of windows over `[n, c, l]` (or `[c, l]`) (`torch.nn.LPPool1d`).
    LPPool1d avg_pool1d;
    /// `(Σ xᵖ)^(1/p)` of windows over `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.LPPool2d`).
    LPPool2d avg_pool2d;
    /// `(Σ xᵖ)^(1/p)` of windows over `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.LPPool3d`).
    LPPool3d avg_pool3d;
}

macro_rules! unpools {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            /// The windows of what was pooled.
            #[skip]
            pub windows: Unpool,
        }

        impl $name {
            /// A layer with these windows; their size alone stands for them.
            pub fn new(windows: impl Into<Unpool>) -> $name {
                $name {
                    windows: windows.into(),
                }
            }

            /// Zeros with the maxima where they were.
            #[track_caller]
            pub fn forward(&self, x: &Tensor, indices: &Tensor) -> Tensor {
                self.forward_with(x, indices, self.windows.output_size.clone())
            }

            /// The same with the spatial size of what was pooled, where several sizes pool to one.
            #[track_caller]
            pub fn forward_with(
                &self,
                x: &Tensor,
                indices: &Tensor,
                output_size: impl Into<IntList>,
            ) -> Tensor {
                let windows = self.windows.clone().output_size(output_size);
                run_lookup(self, &[x, indices], || x.$op(indices, windows))
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
    )*};
}

unpools! {
    /// The partial inverse of [`MaxPool1d`](crate::MaxPool1d) (`torch.nn.MaxUnpool1d`).
    MaxUnpool1d max_unpool1d;
    /// The partial inverse of [`MaxPool2d`](crate::MaxPool2d) (`torch.nn.MaxUnpool2d`).
    MaxUnpool2d max_unpool2d;
    /// The partial inverse of [`MaxPool3d`](crate::MaxPool3d) (`torch.nn.MaxUnpool3d`).
    MaxUnpool3d max_unpool3d;
}
