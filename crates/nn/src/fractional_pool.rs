//! Pooling by windows at random distances.

use crate::forward::{Output, dispatch};
use crate::layer::{check_settings, per_axis};
use crate::{Forward, Hooks, Module};
use kiln_tensor::{AsTensor, FractionalPool, Result, Tensor};

macro_rules! fractional_pools {
    ($($(#[$doc:meta])* $name:ident $spatial:literal $op:ident $with_indices:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            #[skip]
            windows: FractionalPool,
            hooks: Hooks,
        }

        impl $name {
            /// Makes a layer with these windows.
            ///
            /// # Errors
            /// If the windows are impossible, or their number and its ratio are both given or both missing.
            #[track_caller]
            pub fn new(windows: FractionalPool) -> Result<$name> {
                let windows = check_settings(stringify!($name), windows)?;
                per_axis::<$spatial>(stringify!($name), "the kernel size", &windows.kernel_size, 1)?;
                Ok($name { windows, hooks: Hooks::new() })
            }

            /// The windows.
            pub fn windows(&self) -> &FractionalPool {
                &self.windows
            }

            /// Returns the maxima and their positions in their plane, as i64 (`return_indices=True`).
            #[track_caller]
            pub fn call_with_indices(&self, x: impl AsTensor) -> (Tensor, Tensor) {
                let both = |x: Tensor| Ok(x.$with_indices(self.windows.clone()));
                dispatch(self, x.as_tensor().into_owned(), both).unwrap_or_else(|e| Output::of_error(&e))
            }
        }

        impl Forward for $name {
            fn forward(&self, x: Tensor) -> Result<Tensor> {
                Ok(x.$op(self.windows.clone()))
            }
        }
    )*};
}

fractional_pools! {
    /// [`Tensor::fractional_max_pool2d`] (`torch.nn.FractionalMaxPool2d`): the maxima of windows over
    /// `[n, c, h, w]` (or `[c, h, w]`) at random distances.
    FractionalMaxPool2d 2 fractional_max_pool2d fractional_max_pool2d_with_indices;
    /// [`Tensor::fractional_max_pool3d`] (`torch.nn.FractionalMaxPool3d`): the maxima of windows over
    /// `[n, c, d, h, w]` (or `[c, d, h, w]`) at random distances.
    FractionalMaxPool3d 3 fractional_max_pool3d fractional_max_pool3d_with_indices;
}
