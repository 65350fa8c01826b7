//! Gaussian blur.

use super::arguments::{KernelSize, printed};
use super::resize::check_range;
use super::{Transform, uniform};
use crate::functional::blur_as;
use crate::image::Image;
use kiln_data::Rng;
use kiln_tensor::{Result, options};

/// The standard deviation of a blur: a number, or a range that it is drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sigma(f64, f64);

from! { Sigma:
    |sigma: f64| Sigma(sigma, sigma);
    |(low, high): (f64, f64)| Sigma(low, high);
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
        check_range("GaussianBlur", "sigma", (low, high))?;
        let sigma = uniform(rng, (low, high));
        blur_as("GaussianBlur", &image, self.kernel_size, (sigma, sigma))
    }
}

printed! { GaussianBlur, t: "kernel_size={}, sigma=({:?}, {:?})",
    t.kernel_size, t.sigma.0, t.sigma.1
}
