//! Pooling by norms, and pooling undone.

use crate::layer::{run, run_lookup};
use crate::pool::{given, stride_or_kernel};
use crate::print::{float, python};
use crate::{Forward, Module};
use kiln_tensor::{IntList, Tensor};

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
                let (k, s) = (self.kernel_size.clone(), self.stride.clone());
                run(self, &[x], || {
                    // Sums: windows beyond the end have fewer elements.
                    let powers = x.pow(self.norm_type);
                    let sums = powers.$average(k, s, 0, self.ceil_mode, true, Some(1));
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
            kernel_size: IntList,
            stride: IntList,
            padding: IntList,
        }

        impl $name {
            /// A layer whose stride is its kernel size.
            pub fn new(kernel_size: impl Into<IntList>) -> $name {
                $name {
                    kernel_size: kernel_size.into(),
                    stride: ().into(),
                    padding: 0.into(),
                }
            }

            /// The layer with this stride (default the kernel size).
            pub fn stride(mut self, stride: impl Into<IntList>) -> $name {
                self.stride = stride.into();
                self
            }

            /// The layer with this border of what was pooled (default 0).
            pub fn padding(mut self, padding: impl Into<IntList>) -> $name {
                self.padding = padding.into();
                self
            }

            /// Zeros with the maxima where they were.
            #[track_caller]
            pub fn forward(&self, x: &Tensor, indices: &Tensor) -> Tensor {
                self.forward_with(x, indices, ())
            }

            /// The same with the spatial size of what was pooled, where several sizes pool to one.
            #[track_caller]
            pub fn forward_with(
                &self,
                x: &Tensor,
                indices: &Tensor,
                output_size: impl Into<IntList>,
            ) -> Tensor {
                let (k, s) = (self.kernel_size.clone(), self.stride.clone());
                let (p, size) = (self.padding.clone(), output_size.into());
                run_lookup(self, &[x, indices], || x.$op(indices, k, s, p, size))
            }

            fn extra_repr(&self) -> String {
                format!(
                    "kernel_size={}, stride={}, padding={}",
                    given(&self.kernel_size),
                    stride_or_kernel(&self.stride, &self.kernel_size),
                    given(&self.padding)
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
