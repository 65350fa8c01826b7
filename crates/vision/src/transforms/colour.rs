//! Transforms of colour.

use super::arguments::{Count, Spread, printed, probability};
use super::{Transform, draw_bool, uniform};
use crate::functional::{
    adjust_brightness_as, adjust_contrast_as, adjust_hue_as, adjust_saturation_as, to_grayscale_as,
};
use crate::image::Image;
use kiln_data::Rng;
use kiln_tensor::{Result, options};
use std::fmt;

options! {
    /// Random changes of brightness, contrast, saturation and hue, in a random order.
    ColorJitter () {
        /// The distance of the factor from 1, or its range.
        brightness: Spread = 0.0,
        /// The distance of the factor from 1, or its range.
        contrast: Spread = 0.0,
        /// The distance of the factor from 1, or its range.
        saturation: Spread = 0.0,
        /// The rotation of the hue circle, as a fraction of it: a distance to both sides, or a range within −0.5 and
        /// 0.5.
        hue: Spread = 0.0,
    }
}

impl ColorJitter {
    /// The range of each of the four factors, or `None` for one that changes nothing.
    #[track_caller]
    fn ranges(&self) -> Result<[Option<(f64, f64)>; 4]> {
        let range = |spread: Spread, name: &str, centre: f64, bounds: (f64, f64)| -> Result<_> {
            let range = spread.range(("ColorJitter", name), centre, bounds)?;
            Ok((range != (centre, centre)).then_some(range))
        };
        let any = (0.0, f64::INFINITY);
        Ok([
            range(self.brightness, "brightness", 1.0, any)?,
            range(self.contrast, "contrast", 1.0, any)?,
            range(self.saturation, "saturation", 1.0, any)?,
            range(self.hue, "hue", 0.0, (-0.5, 0.5))?,
        ])
    }
}

impl Transform<Image> for ColorJitter {
    type Output = Image;
    fn apply(&self, mut image: Image, rng: &mut Rng) -> Result<Image> {
        let (op, order) = ("ColorJitter", rng.permutation(4));
        let factors = self.ranges()?.map(|r| r.map(|r| uniform(rng, r)));
        for step in order {
            let Some(factor) = factors[step] else {
                continue;
            };
            image = match step {
                0 => adjust_brightness_as(op, image, factor)?,
                1 => adjust_contrast_as(op, image, factor)?,
                2 => adjust_saturation_as(op, image, factor)?,
                _ => adjust_hue_as(op, image, factor)?,
            };
        }
        Ok(image)
    }
}

impl fmt::Display for ColorJitter {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let names = ["brightness", "contrast", "saturation", "hue"];
        let ranges = self.ranges().unwrap_or_default();
        let texts = names.iter().zip(ranges).map(|(name, range)| match range {
            Some((low, high)) => format!("{name}=({low:?}, {high:?})"),
            None => format!("{name}=None"),
        });
        write!(f, "ColorJitter({})", texts.collect::<Vec<_>>().join(", "))
    }
}

options! {
    /// Conversion to greyscale.
    Grayscale () {
        /// The number of channels of the result: 1, or 3 that are equal.
        num_output_channels: Count = 1,
    }
}

impl Transform<Image> for Grayscale {
    type Output = Image;
    fn apply(&self, image: Image, _: &mut Rng) -> Result<Image> {
        to_grayscale_as("Grayscale", &image, self.num_output_channels.0)
    }
}

printed! { Grayscale, t: "num_output_channels={}", t.num_output_channels.0 }

options! {
    /// Conversion to greyscale with some probability. The number of channels stays.
    RandomGrayscale () {
        /// The probability of the conversion.
        p: f64 = 0.1,
    }
}

impl Transform<Image> for RandomGrayscale {
    type Output = Image;
    fn apply(&self, image: Image, rng: &mut Rng) -> Result<Image> {
        if !draw_bool(rng, probability("RandomGrayscale", self.p)?) {
            return Ok(image);
        }
        adjust_saturation_as("RandomGrayscale", image, 0.0)
    }
}

printed! { RandomGrayscale, t: "p={:?}", t.p }
