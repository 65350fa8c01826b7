//! Transforms of images and tensors, under torchvision's names.

use kiln_data::Rng;
use kiln_tensor::Result;
use std::fmt::Display;
use std::sync::Arc;

/// What makes one thing of another, such as a cropped [`crate::Image`] of an image, or a tensor of it.
///
/// Printed, it looks as torchvision's does.
pub trait Transform<X>: Display + Send + Sync {
    /// What comes out.
    type Output;

    /// The result for `x`. Whatever is random is drawn from `rng`.
    ///
    /// # Errors
    /// If `x` doesn't fit, or an argument of the transform is wrong; the message names the transform.
    fn apply(&self, x: X, rng: &mut Rng) -> Result<Self::Output>;

    /// [`Transform::apply`] with random numbers from Kiln's default generator: inside
    /// [`kiln_data::Dataset::get`], those of the sample.
    ///
    /// # Errors
    /// As [`Transform::apply`].
    fn call(&self, x: X) -> Result<Self::Output> {
        self.apply(x, &mut Rng::from_default())
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
