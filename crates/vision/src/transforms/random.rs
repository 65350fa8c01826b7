//! Random changes of pixel values.

use super::arguments::{Count, probability};
use super::{Transform, draw_bool};
use crate::functional;
use crate::image::Image;
use kiln_data::Rng;
use kiln_tensor::{Result, options};
use std::fmt;

macro_rules! random_transforms {
    ($($(#[$doc:meta])* $name:ident ($($(#[$about:meta])* $arg:ident: $ty:ty)?) $does:expr;)*) => {$(
        options! {
            $(#[$doc])*
            $name ($($(#[$about])* $arg: $ty)?) {
                /// The probability of the change.
                p: f64 = 0.5,
            }
        }

        impl Transform<Image> for $name {
            type Output = Image;
            fn apply(&self, image: Image, rng: &mut Rng) -> Result<Image> {
                if !draw_bool(rng, probability(stringify!($name), self.p)?) {
                    return Ok(image);
                }
                let does: fn(&$name, &Image) -> Result<Image> = $does;
                does(self, &image)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "("))?;
                $(write!(f, concat!(stringify!($arg), "={},"), self.$arg.text())?;)?
                write!(f, "p={:?})", self.p)
            }
        }
    )*};
}
/// The text that Python prints for a number.
trait Shown {
    fn text(&self) -> String;
}

impl Shown for Count {
    fn text(&self) -> String {
        self.0.to_string()
    }
}

impl Shown for f64 {
    fn text(&self) -> String {
        format!("{self:?}")
    }
}

random_transforms! {
    /// Applies [`functional::invert`] with probability `p`.
    RandomInvert () |_, image| Ok(functional::invert(image));
    /// Applies [`functional::posterize`] with probability `p`.
    RandomPosterize (
        /// Bits that are kept.
        bits: Count
    ) |t, image| functional::posterize(image, t.bits.0);
    /// Applies [`functional::solarize`] with probability `p`.
    RandomSolarize (
        /// The smallest level that is inverted.
        threshold: f64
    ) |t, image| functional::solarize(image, t.threshold);
    /// Applies [`functional::adjust_sharpness`] with probability `p`.
    RandomAdjustSharpness (
        /// 0 for the smoothed image, 1 for the image, 2 for a sharpened one.
        sharpness_factor: f64
    ) |t, image| functional::adjust_sharpness(image, t.sharpness_factor);
    /// Applies [`functional::autocontrast`] with probability `p`.
    RandomAutocontrast () |_, image| Ok(functional::autocontrast(image));
    /// Applies [`functional::equalize`] with probability `p`.
    RandomEqualize () |_, image| Ok(functional::equalize(image));
}
