//! Borders.

use crate::layer::{fact, run, wrong};
use crate::print::{float, sizes};
use crate::{Forward, Module};
use kiln_tensor::{IntList, PadMode, Tensor};

/// `(1, 1, 2, 2)`: all sides, as PyTorch prints them.
fn sides(padding: &IntList, spatial: usize) -> String {
    sizes(&padding.0, 2 * spatial)
}

/// `x` with a border around its last dims.
fn pad(layer: &dyn Module, x: &Tensor, padding: &IntList, spatial: usize, mode: PadMode) -> Tensor {
    if x.ndim() != spatial + 1 && x.ndim() != spatial + 2 {
        let message = format!("takes no input of {} dims, such as {}", x.ndim(), fact(x));
        return wrong(layer, message);
    }
    let pad = match &padding.0[..] {
        [one] => vec![*one; 2 * spatial],
        all if all.len() == 2 * spatial => all.to_vec(),
        all => {
            let needed = 2 * spatial;
            let message = format!("the padding needs one number or {needed}, not {all:?}");
            return wrong(layer, message);
        }
    };
    x.pad(pad, mode)
}

macro_rules! borders {
    ($($(#[$doc:meta])* $name:ident $spatial:literal $mode:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            padding: IntList,
        }

        impl $name {
            /// A layer with one size for all sides, or one in front of and behind the last dim, then the
            /// one before it, and so on. Negative sizes cut.
            pub fn new(padding: impl Into<IntList>) -> $name {
                $name {
                    padding: padding.into(),
                }
            }

            fn extra_repr(&self) -> String {
                sides(&self.padding, $spatial)
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                run(self, &[x], || pad(self, x, &self.padding, $spatial, $mode))
            }
        }
    )*};
}

borders! {
    /// Zeros around `[n, c, l]` (or `[c, l]`) (`torch.nn.ZeroPad1d`).
    ZeroPad1d 1 PadMode::ZEROS;
    /// Zeros around `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.ZeroPad2d`).
    ZeroPad2d 2 PadMode::ZEROS;
    /// Zeros around `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.ZeroPad3d`).
    ZeroPad3d 3 PadMode::ZEROS;
    /// The mirror image, without the edge, of `[n, c, l]` (or `[c, l]`) (`torch.nn.ReflectionPad1d`).
    ReflectionPad1d 1 PadMode::Reflect;
    /// The mirror image, without the edge, of `[n, c, h, w]` (or `[c, h, w]`)
    /// (`torch.nn.ReflectionPad2d`).
    ReflectionPad2d 2 PadMode::Reflect;
    /// The mirror image, without the edge, of `[n, c, d, h, w]` (or `[c, d, h, w]`)
    /// (`torch.nn.ReflectionPad3d`).
    ReflectionPad3d 3 PadMode::Reflect;
    /// The edge of `[n, c, l]` (or `[c, l]`), repeated (`torch.nn.ReplicationPad1d`).
    ReplicationPad1d 1 PadMode::Replicate;
    /// The edge of `[n, c, h, w]` (or `[c, h, w]`), repeated (`torch.nn.ReplicationPad2d`).
    ReplicationPad2d 2 PadMode::Replicate;
    /// The edge of `[n, c, d, h, w]` (or `[c, d, h, w]`), repeated (`torch.nn.ReplicationPad3d`).
    ReplicationPad3d 3 PadMode::Replicate;
    /// The other end of `[n, c, l]` (or `[c, l]`) (`torch.nn.CircularPad1d`).
    CircularPad1d 1 PadMode::Circular;
    /// The other end of `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.CircularPad2d`).
    CircularPad2d 2 PadMode::Circular;
    /// The other end of `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.CircularPad3d`).
    CircularPad3d 3 PadMode::Circular;
}

macro_rules! constant_borders {
    ($($(#[$doc:meta])* $name:ident $spatial:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            padding: IntList,
            /// What the border holds.
            pub value: f64,
        }

        impl $name {
            /// A layer with one size for all sides, or one in front of and behind the last dim, then the
            /// one before it, and so on. Negative sizes cut.
            pub fn new(padding: impl Into<IntList>, value: f64) -> $name {
                $name {
                    padding: padding.into(),
                    value,
                }
            }

            fn extra_repr(&self) -> String {
                let sides = sides(&self.padding, $spatial);
                format!("padding={sides}, value={}", float(self.value))
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                let mode = PadMode::Constant(self.value.into());
                run(self, &[x], || pad(self, x, &self.padding, $spatial, mode))
            }
        }
    )*};
}

constant_borders! {
    /// One number around `[n, c, l]` (or `[c, l]`) (`torch.nn.ConstantPad1d`).
    ConstantPad1d 1;
    /// One number around `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.ConstantPad2d`).
    ConstantPad2d 2;
    /// One number around `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.ConstantPad3d`).
    ConstantPad3d 3;
}
