//! Transforms of images and tensors, under torchvision's names.
//!
//! ```
//! use kiln_vision::transforms::{
//!     Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToTensor, Transform,
//! };
//! use kiln_vision::{Image, Mode};
//!
//! let train = Compose::new((
//!     RandomResizedCrop::new(224),
//!     RandomHorizontalFlip::new(),
//!     ToTensor::new(),
//!     Normalize::new([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
//! ));
//! let photo = Image::filled(500, 375, Mode::RGB, &[90, 120, 40])?;
//! assert_eq!(train.call(photo)?.shape()?, [3, 224, 224]);
//! # Ok::<(), kiln_tensor::Error>(())
//! ```
//!
//! Arguments are those of torchvision, in structs with setters. A wrong argument is an error of the first image.
//! `Box<dyn Transform<Image, Output = Tensor>>` holds any transform of images to tensors.
//!
//! Geometry is for images and for tensors `[.., C, H, W]`; colours are for images.

mod arguments;
mod blur;
mod colour;
mod compose;
mod crop;
mod erase;
mod flip;
mod pad;
mod random;
mod resize;
mod several;
mod tensor;
mod warp;

pub use arguments::{Count, Extent, Fill, KernelSize, Padding, PaddingMode, Size, Spread};
pub use blur::{GaussianBlur, Sigma};
pub use colour::{ColorJitter, Grayscale, RandomGrayscale};
pub use compose::{Compose, Lambda, Steps};
pub use crop::{CenterCrop, FiveCrop, RandomCrop, TenCrop};
pub use erase::{Erasing, RandomErasing};
pub use flip::{RandomHorizontalFlip, RandomVerticalFlip};
pub use pad::Pad;
pub use random::{
    RandomAdjustSharpness, RandomAutocontrast, RandomEqualize, RandomInvert, RandomPosterize,
    RandomSolarize,
};
pub use resize::{RandomResizedCrop, Resize};
pub use several::{Choices, RandomApply, RandomChoice, RandomOrder};
pub use tensor::{
    ConvertImageDtype, Normalize, PILToTensor, ToDtype, ToImage, ToPILImage, ToTensor,
};
pub use warp::{RandomAffine, RandomRotation, Shear};

use crate::fault::SOURCE;
use kiln_data::Rng;
use kiln_tensor::{Result, on_behalf_of_caller};
use std::fmt::Display;
use std::sync::Arc;

/// A mapping from an input to an output, such as from a [`crate::Image`] to a cropped one or to a tensor.
///
/// Printed, it looks as torchvision's does.
pub trait Transform<X>: Display + Send + Sync {
    /// The type of the result.
    type Output;

    /// Returns the result for `x`. All random numbers are drawn from `rng`.
    ///
    /// # Errors
    /// If `x` doesn't fit, or an argument of the transform is wrong; the message names the transform.
    #[track_caller]
    fn apply(&self, x: X, rng: &mut Rng) -> Result<Self::Output>;

    /// [`Transform::apply`] with random numbers from Kiln's default generator: inside
    /// [`kiln_data::Dataset::get`], those of the sample.
    ///
    /// # Errors
    /// As [`Transform::apply`].
    #[track_caller]
    fn call(&self, x: X) -> Result<Self::Output> {
        on_behalf_of_caller(SOURCE, || self.apply(x, &mut Rng::from_default()))
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<X, T: Transform<X> + ?Sized> Transform<X> for $pointer {
            type Output = T::Output;
            fn apply(&self, x: X, rng: &mut Rng) -> Result<T::Output> {
                (**self).apply(x, rng)
            }
        }
    )*};
}
forward!(Arc<T>, Box<T>, &T);

/// A number from a range.
fn uniform(rng: &mut Rng, (low, high): (f64, f64)) -> f64 {
    low + (high - low) * rng.unit()
}

/// Draws true with probability `p`.
fn draw_bool(rng: &mut Rng, p: f64) -> bool {
    rng.unit() < p
}
