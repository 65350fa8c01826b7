//! Images, transforms and data sets of images, under torchvision's names.
//!
//! An [`Image`] holds decoded pixels, a [`transforms::Transform`] makes one thing of another, and
//! [`transforms::Compose`] puts several in a row. What is random draws from the stream that it is given, so
//! a sample's augmentation depends on its seed alone.

pub mod datasets;
mod fault;
pub mod functional;
mod image;
pub mod inspect;
mod picture;
mod resample;
mod simd;
pub mod transforms;
pub mod utils;

pub use crate::image::{Encoding, Format, Image, Limits, Mode};
pub use crate::picture::Picture;
pub use crate::resample::Interpolation;
