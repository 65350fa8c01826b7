//! Pooling by norms, and the inverse of pooling.

use crate::forward::dispatch;
use crate::layer::{check_accepts, invalid, look_up};
use crate::pool::{format_size, window, windows};
use crate::print::{float, python};
use crate::{Forward, Hooks, Module};
use kiln_tensor::{AvgPool, IntList, Result, Tensor, Unpool, options};

options! {
    /// The windows of a pooling by norms; a window size converts into them. The numbers are one for each spatial dim,
    /// or one for all.
    PowerPool (
        /// The size of a window.
        kernel_size: IntList
    ) {
        /// The step from one window to the next; `()`, the default, is the kernel size.
        stride: IntList = (),
        /// True if windows that reach beyond the end count (default no).
        ceil_mode: bool = false,
    }
}

macro_rules! power_pools {
    ($($(#[$doc:meta])* $name:ident $spatial:literal $average:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            norm_type: f64,
            #[skip]
            windows: PowerPool,
            hooks: Hooks,
        }

        impl $name {
            /// Makes a layer of norms of this order, with these windows; a window size converts to windows.
            ///
            /// # Errors
            /// If the order is 0 or the windows are impossible.
            #[track_caller]
            pub fn new(norm_type: f64, windows: impl Into<PowerPool>) -> Result<$name> {
                if norm_type == 0.0 || norm_type.is_nan() {
                    let message = format!("the order of the norm can't be {norm_type}");
                    return Err(invalid(stringify!($name), message));
                }
                let (windows, hooks) = (windows.into(), Hooks::new());
                let shape = window::<$spatial>(stringify!($name), &windows.kernel_size, &1.into())?;
                check_accepts($name { norm_type, windows, hooks }, &shape)
            }

            /// The order of the norm.
            pub fn norm_type(&self) -> f64 {
                self.norm_type
            }

            /// True if windows that reach beyond the end count.
            pub fn ceil_mode(&self) -> bool {
                self.windows.ceil_mode
            }

            fn extra_repr(&self) -> String {
                format!(
                    "norm_type={}, kernel_size={}, stride={}, ceil_mode={}",
                    float(self.norm_type),
                    format_size(self.kernel_size()),
                    format_size(self.stride()),
                    python(self.ceil_mode())
                )
            }
        }

        windows!($name);

        impl Forward for $name {
            fn forward(&self, x: Tensor) -> Result<Tensor> {
                // A divisor of 1 gives sums, because windows beyond the end have fewer elements.
                let windows = AvgPool::new(self.windows.kernel_size.clone())
                    .stride(self.windows.stride.clone())
                    .ceil_mode(self.windows.ceil_mode)
                    .divisor_override(1);
                let powers = x.pow(self.norm_type).$average(windows);
                Ok((powers.sign() * powers.abs().relu()).pow(1.0 / self.norm_type))
            }
        }
    )*};
}

power_pools! {
    /// `(Σ xᵖ)^(1/p)` of windows over `[n, c, l]` (or `[c, l]`) (`torch.nn.LPPool1d`).
    LPPool1d 1 avg_pool1d;
    /// `(Σ xᵖ)^(1/p)` of windows over `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.LPPool2d`).
    LPPool2d 2 avg_pool2d;
    /// `(Σ xᵖ)^(1/p)` of windows over `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.LPPool3d`).
    LPPool3d 3 avg_pool3d;
}

macro_rules! unpools {
    ($($(#[$doc:meta])* $name:ident $op:ident $spatial:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            #[skip]
            windows: Unpool,
            hooks: Hooks,
        }

        impl $name {
            /// Makes a layer with these windows; a window size converts into them.
            ///
            /// # Errors
            /// If the windows are impossible.
            #[track_caller]
            pub fn new(windows: impl Into<Unpool>) -> Result<$name> {
                let windows = windows.into();
                window::<$spatial>(stringify!($name), &windows.kernel_size, &1.into())?;
                let hooks = Hooks::new();
                Ok($name { windows, hooks })
            }

            fn extra_repr(&self) -> String {
                format!(
                    "kernel_size={}, stride={}, padding={}",
                    format_size(self.kernel_size()),
                    format_size(self.stride()),
                    format_size(self.padding())
                )
            }

            /// Returns the result for maxima, their indices, and the spatial size before pooling, which is needed where
            /// several sizes pool to one.
            #[track_caller]
            pub fn call_with_size(
                &self,
                x: impl kiln_tensor::AsTensor,
                indices: impl kiln_tensor::AsTensor,
                output_size: impl Into<IntList>,
            ) -> Tensor {
                let windows = self.windows.clone().output_size(output_size);
                let sized = |(x, indices): (Tensor, Tensor)| Ok(self.unpool(&x, &indices, windows));
                let both = (x.as_tensor().into_owned(), indices.as_tensor().into_owned());
                dispatch(self, both, sized).unwrap_or_else(Tensor::from_error)
            }

            fn unpool(&self, x: &Tensor, indices: &Tensor, windows: Unpool) -> Tensor {
                look_up(self, || x.$op(indices, windows))
            }
        }

        windows!($name padding);

        /// The input is maxima and their indices.
        impl Forward<(Tensor, Tensor)> for $name {
            fn forward(&self, (x, indices): (Tensor, Tensor)) -> Result<Tensor> {
                Ok(self.unpool(&x, &indices, self.windows.clone()))
            }
        }
    )*};
}

unpools! {
    /// The partial inverse of [`MaxPool1d`](crate::MaxPool1d) (`torch.nn.MaxUnpool1d`).
    MaxUnpool1d max_unpool1d 1;
    /// The partial inverse of [`MaxPool2d`](crate::MaxPool2d) (`torch.nn.MaxUnpool2d`).
    MaxUnpool2d max_unpool2d 2;
    /// The partial inverse of [`MaxPool3d`](crate::MaxPool3d) (`torch.nn.MaxUnpool3d`).
    MaxUnpool3d max_unpool3d 3;
}
