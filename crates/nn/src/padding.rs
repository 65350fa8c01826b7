//! Padding.

use crate::layer::{fact, input_error, invalid};
use crate::print::{float, sizes};
use crate::{Forward, Hooks, Module};
use kiln_tensor::{IntList, PadMode, Result, Tensor};

/// Checks the padding of the last dims. Returns the sizes before and after each, the last dim first.
#[track_caller]
fn check_padding(layer: &str, padding: IntList, spatial: usize) -> Result<Vec<i64>> {
    match padding.0[..] {
        [one] => Ok(vec![one; 2 * spatial]),
        ref all if all.len() == 2 * spatial => Ok(all.to_vec()),
        ref all => {
            let needed = 2 * spatial;
            let message = format!("the padding needs one number or {needed}, not {all:?}");
            Err(invalid(layer, message))
        }
    }
}

/// Pads the last dims of `x`.
fn pad(layer: &dyn Module, x: &Tensor, padding: &[i64], mode: PadMode) -> Result<Tensor> {
    let spatial = padding.len() / 2;
    if x.ndim() != spatial + 1 && x.ndim() != spatial + 2 {
        let message = format!("takes no input of {} dims, such as {}", x.ndim(), fact(x));
        return input_error(layer, message);
    }
    Ok(x.pad(padding, mode))
}

macro_rules! borders {
    ($($(#[$doc:meta])* $name:ident $spatial:literal $(= $mode:expr)? $(, $value:ident)?;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            padding: Vec<i64>,
            $($value: f64,)?
            hooks: Hooks,
        }

        impl $name {
            /// Makes a layer with one size for all sides, or with sizes before and after the last dim, then the one
            /// before it, and so on. Negative sizes crop.
            ///
            /// # Errors
            /// If there is another number of sizes.
            #[track_caller]
            pub fn new(padding: impl Into<IntList> $(, $value: f64)?) -> Result<$name> {
                let padding = check_padding(stringify!($name), padding.into(), $spatial)?;
                let hooks = Hooks::new();
                Ok($name { padding, $($value,)? hooks })
            }

            /// The sizes before and after each dim, the last one first.
            pub fn padding(&self) -> &[i64] {
                &self.padding
            }

            $(/// Returns the value of the padding.
            pub fn $value(&self) -> f64 {
                self.$value
            })?

            fn extra_repr(&self) -> String {
                let text = sizes(&self.padding, 2 * $spatial);
                $(let text = format!("padding={text}, value={}", float(self.$value));)?
                text
            }
        }

        impl Forward for $name {
            fn forward(&self, x: Tensor) -> Result<Tensor> {
                pad(self, &x, &self.padding, $($mode)? $(PadMode::Constant(self.$value.into()))?)
            }
        }
    )*};
}

borders! {
    /// Zeros around `[n, c, l]` (or `[c, l]`) (`torch.nn.ZeroPad1d`).
    ZeroPad1d 1 = PadMode::ZEROS;
    /// Zeros around `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.ZeroPad2d`).
    ZeroPad2d 2 = PadMode::ZEROS;
    /// Zeros around `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.ZeroPad3d`).
    ZeroPad3d 3 = PadMode::ZEROS;
    /// The mirror image, without the edge, of `[n, c, l]` (or `[c, l]`) (`torch.nn.ReflectionPad1d`).
    ReflectionPad1d 1 = PadMode::Reflect;
    /// The mirror image, without the edge, of `[n, c, h, w]` (or `[c, h, w]`)
    /// (`torch.nn.ReflectionPad2d`).
    ReflectionPad2d 2 = PadMode::Reflect;
    /// The mirror image, without the edge, of `[n, c, d, h, w]` (or `[c, d, h, w]`)
    /// (`torch.nn.ReflectionPad3d`).
    ReflectionPad3d 3 = PadMode::Reflect;
    /// The edge of `[n, c, l]` (or `[c, l]`), repeated (`torch.nn.ReplicationPad1d`).
    ReplicationPad1d 1 = PadMode::Replicate;
    /// The edge of `[n, c, h, w]` (or `[c, h, w]`), repeated (`torch.nn.ReplicationPad2d`).
    ReplicationPad2d 2 = PadMode::Replicate;
    /// The edge of `[n, c, d, h, w]` (or `[c, d, h, w]`), repeated (`torch.nn.ReplicationPad3d`).
    ReplicationPad3d 3 = PadMode::Replicate;
    /// The other end of `[n, c, l]` (or `[c, l]`) (`torch.nn.CircularPad1d`).
    CircularPad1d 1 = PadMode::Circular;
    /// The other end of `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.CircularPad2d`).
    CircularPad2d 2 = PadMode::Circular;
    /// The other end of `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.CircularPad3d`).
    CircularPad3d 3 = PadMode::Circular;
    /// One number around `[n, c, l]` (or `[c, l]`) (`torch.nn.ConstantPad1d`).
    ConstantPad1d 1, value;
    /// One number around `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.ConstantPad2d`).
    ConstantPad2d 2, value;
    /// One number around `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.ConstantPad3d`).
    ConstantPad3d 3, value;
}
