//! Gaussian blur.

use super::arguments::KernelSize;
use super::resize::ascending;
use super::{Transform, uniform};
use crate::functional::blurred;
use crate::image::Image;
use kiln_data::Rng;
use kiln_tensor::{Result, options};
use std::fmt;

/// The standard deviation of a blur: a number, or a range that it is drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sigma(f64, f64);

impl From<f64> for Sigma {
    fn from(sigma: f64) -> Sigma {
        Sigma(sigma, sigma)
    }
}

impl From<(f64, f64)> for Sigma {
    fn from((low, high): (f64, f64)) -> Sigma {
        Sigma(low, high)
    }
}

options! {
    /// A Gaussian blur: each pixel becomes a mean of those around it, weighted by a Gaussian.
    GaussianBlur (
        /// The number of pixels, odd: `(x, y)`, or one number.
        kernel_size: KernelSize
    ) {
        /// The standard deviation, in pixels, or the range that it is drawn from.
        sigma: Sigma = (0.1, 2.0),
    }
}

impl Transform<Image> for GaussianBlur {
    type Output = Image;
    fn apply(&self, image: Image, rng: &mut Rng) -> Result<Image> {
        let Sigma(low, high) = self.sigma;
        ascending("GaussianBlur", "sigma", (low, high))?;
        let sigma = uniform(rng, (low, high));
        blurred("GaussianBlur", &image, self.kernel_size, (sigma, sigma))
    }
}

impl fmt::Display for GaussianBlur {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Sigma(low, high) = self.sigma;
        let size = self.kernel_size;
        write!(
            f,
            "GaussianBlur(kernel_size={size}, sigma=({low:?}, {high:?}))"
        )
    }
}
