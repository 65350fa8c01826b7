//! Images, transforms and data sets of images, under torchvision's names.
//!
//! An [`Image`] holds decoded pixels, a [`transforms::Transform`] makes one thing of another, and
//! [`transforms::Compose`] puts several in a row. What is random draws from the stream that it is given, so
//! a sample's augmentation depends on its seed alone.

mod fault;
mod image;
pub mod transforms;

pub use crate::image::{Format, Image, Limits, Mode};
