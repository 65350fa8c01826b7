//! Erased parts.

use super::arguments::{Fill, printed, probability};
use super::resize::check_range;
use super::{Transform, draw_bool, uniform};
use crate::fault::invalid;
use crate::functional::erase_region;
use crate::picture::sealed::Pixels;
use kiln_data::Rng;
use kiln_tensor::{Result, Tensor, options, set_device};
use std::f64::consts::TAU;

/// The values that [`RandomErasing`] puts in place of the erased ones.
#[derive(Clone, Debug, PartialEq)]
pub enum Erasing {
    /// A colour.
    Value(Fill),
    /// A normally distributed number for each pixel and channel.
    Random,
}

impl<F: Into<Fill>> From<F> for Erasing {
    fn from(fill: F) -> Erasing {
        Erasing::Value(fill.into())
    }
}

options! {
    /// A rectangle of a tensor `[.., C, H, W]` of random area, proportions and position, erased by chance (Zhong et al.,
    /// 2017).
    RandomErasing () {
        /// The probability of erasing.
        p: f64 = 0.5,
        /// The area of the rectangle, as a fraction of the image's.
        scale: (f64, f64) = (0.02, 0.33),
        /// The aspect ratio of the rectangle, height to width.
        ratio: (f64, f64) = (0.3, 3.3),
        /// The values that replace the erased ones.
        value: Erasing = 0u8,
    }
}

impl Transform<Tensor> for RandomErasing {
    type Output = Tensor;
    fn apply(&self, x: Tensor, rng: &mut Rng) -> Result<Tensor> {
        let op = "RandomErasing";
        let p = probability(op, self.p)?;
        let (min, max) = self.scale;
        if !(min >= 0.0 && min <= max && max <= 1.0) {
            let message = format!("scale must be (min, max) in [0, 1], not ({min:?}, {max:?})");
            return Err(invalid(op, message));
        }
        check_range(op, "ratio", self.ratio)?;
        let [channels, height, width] = x.extents(op)?;
        if x.ndim() < 3 {
            let message = format!("it takes [.., C, H, W], not {:?}", x.shape()?);
            return Err(invalid(op, message));
        }
        if !draw_bool(rng, p) {
            return Ok(x);
        }
        let logs = (self.ratio.0.ln(), self.ratio.1.ln());
        for _ in 0..10 {
            let area = (height * width) as f64 * uniform(rng, self.scale);
            let aspect = uniform(rng, logs).exp();
            let h = (area * aspect).sqrt().round_ties_even() as usize;
            let w = (area / aspect).sqrt().round_ties_even() as usize;
            if h >= height || w >= width {
                continue;
            }
            let _here = set_device(x.device());
            let value = match &self.value {
                Erasing::Value(fill) => {
                    Tensor::from_slice(&fill.numbers(op, channels)?, [channels, 1, 1])
                }
                Erasing::Random => {
                    let numbers = (0..channels * h * w).map(|_| normal(rng));
                    Tensor::from_slice(&numbers.collect::<Vec<f64>>(), [channels, h, w])
                }
            };
            let (top, left) = (rng.below(height - h + 1), rng.below(width - w + 1));
            return erase_region(&x, (top, left), (h, w), &value);
        }
        Ok(x)
    }
}

/// A normally distributed number (Box and Muller, 1958).
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    radius * (TAU * rng.unit()).cos()
}

printed! { RandomErasing, t: "p={:?}, scale={:?}, ratio={:?}, value={}, inplace=False",
    t.p, t.scale, t.ratio,
    match &t.value {
        Erasing::Value(fill) => fill.to_string(),
        Erasing::Random => "random".into(),
    }
}
