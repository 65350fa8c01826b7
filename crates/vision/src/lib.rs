//! Images, transforms and data sets of images, under torchvision's names.
//!
//! An [`Image`] holds decoded pixels, a [`transforms::Transform`] maps an image or a tensor to a result, and
//! [`transforms::Compose`] chains several. Random transforms draw from the stream that they are given, so a sample's
//! augmentation depends on its seed alone.

/// Conversions to an argument's type.
macro_rules! from {
    ($to:ty: $(|$value:tt: $from:ty| $made:expr;)*) => {$(
        impl From<$from> for $to {
            fn from($value: $from) -> $to {
                $made
            }
        }
    )*};
}

pub mod datasets;
mod fault;
pub mod functional;
mod image;
pub mod inspect;
pub mod ops;
mod picture;
mod resample;
mod simd;
pub mod transforms;
pub mod utils;

pub use crate::image::{Encoding, Format, Image, Limits, Mode};
pub use crate::picture::Picture;
pub use crate::resample::Interpolation;
