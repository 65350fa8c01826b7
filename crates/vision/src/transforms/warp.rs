//! Rotations and shears.

use super::arguments::{Fill, Spread, truth};
use super::{Transform, uniform};
use crate::fault::invalid;
use crate::functional::{Affine, Rotate, affine_as, rotate_as};
use crate::image::Image;
use crate::resample::Interpolation;
use kiln_data::Rng;
use kiln_tensor::{Result, options};
use std::fmt;

/// Any angle.
const ANY: (f64, f64) = (f64::MIN, f64::MAX);

/// A range as torchvision prints it.
fn range_text(spread: Spread) -> String {
    match spread {
        Spread::Around(d) => format!("[{:?}, {d:?}]", -d),
        Spread::Between(low, high) => format!("[{low:?}, {high:?}]"),
    }
}

options! {
    /// An image rotated by a random angle.
    RandomRotation (
        /// Degrees to either side, or the range that they are drawn from; counterclockwise.
        degrees: Spread
    ) {
        /// The interpolation: `Nearest`, `Bilinear` or `Bicubic`.
        interpolation: Interpolation = Interpolation::Nearest,
        /// If true, the image is enlarged to hold all of the rotated one.
        expand: bool = false,
        /// The column and row of the fixed point; the middle, unless given.
        center: Option<(f64, f64)> = None,
        /// The colour outside the old image.
        fill: Fill = 0u8,
    }
}

impl Transform<Image> for RandomRotation {
    type Output = Image;
    fn apply(&self, image: Image, rng: &mut Rng) -> Result<Image> {
        let op = "RandomRotation";
        let angle = uniform(rng, self.degrees.range((op, "degrees"), 0.0, ANY)?);
        let options = Rotate {
            angle,
            interpolation: self.interpolation,
            expand: self.expand,
            center: self.center,
            fill: self.fill.clone(),
        };
        rotate_as(op, &image, &options)
    }
}

impl fmt::Display for RandomRotation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "RandomRotation(degrees={}, interpolation={}, expand={}",
            range_text(self.degrees),
            self.interpolation,
            truth(self.expand)
        )?;
        if let Some((x, y)) = self.center {
            write!(f, ", center=({x:?}, {y:?})")?;
        }
        write!(f, ", fill={})", self.fill)
    }
}

/// The shear of [`RandomAffine`], in degrees: a range along the rows, or one for each direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shear {
    /// Along the rows.
    X(Spread),
    /// Along the rows, and along the columns.
    Both((f64, f64), (f64, f64)),
}

from! { Shear:
    |d: f64| Shear::X(d.into());
    |range: (f64, f64)| Shear::X(range.into());
    |[a, b, c, d]: [f64; 4]| Shear::Both((a, b), (c, d));
}

options! {
    /// An image rotated, translated, scaled and sheared by random amounts.
    RandomAffine (
        /// Degrees to either side, or the range that they are drawn from.
        degrees: Spread
    ) {
        /// The largest translation along columns and rows, as fractions of their lengths.
        translate: Option<(f64, f64)> = None,
        /// The range of the scale.
        scale: Option<(f64, f64)> = None,
        /// The range of the shear.
        shear: Option<Shear> = None,
        /// The interpolation: `Nearest`, `Bilinear` or `Bicubic`.
        interpolation: Interpolation = Interpolation::Nearest,
        /// The colour outside the old image.
        fill: Fill = 0u8,
        /// The column and row of the fixed point of rotation, scale and shear; the middle, unless given.
        center: Option<(f64, f64)> = None,
    }
}

impl Transform<Image> for RandomAffine {
    type Output = Image;
    fn apply(&self, image: Image, rng: &mut Rng) -> Result<Image> {
        let op = "RandomAffine";
        let angle = uniform(rng, self.degrees.range((op, "degrees"), 0.0, ANY)?);
        let mut translate = (0.0, 0.0);
        if let Some((x, y)) = self.translate {
            if !(0.0..=1.0).contains(&x) || !(0.0..=1.0).contains(&y) {
                let message = format!("translate is two parts of 1, not ({x:?}, {y:?})");
                return Err(invalid(op, message));
            }
            let bounds = |part: f64, len: usize| (-part * len as f64, part * len as f64);
            let columns = uniform(rng, bounds(x, image.width())).round_ties_even();
            let rows = uniform(rng, bounds(y, image.height())).round_ties_even();
            translate = (columns, rows);
        }
        let mut scale = 1.0;
        if let Some(range) = self.scale {
            super::resize::check_range(op, "scale", range)?;
            scale = uniform(rng, range);
        }
        let shear = match self.shear {
            None => (0.0, 0.0),
            Some(Shear::X(x)) => (uniform(rng, x.range((op, "shear"), 0.0, ANY)?), 0.0),
            Some(Shear::Both(x, y)) => {
                let range = |r: (f64, f64)| Spread::from(r).range((op, "shear"), 0.0, ANY);
                (uniform(rng, range(x)?), uniform(rng, range(y)?))
            }
        };
        let options = Affine {
            angle,
            translate,
            scale,
            shear,
            interpolation: self.interpolation,
            fill: self.fill.clone(),
            center: self.center,
        };
        affine_as(op, &image, &options)
    }
}

impl fmt::Display for RandomAffine {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "RandomAffine(degrees={}", range_text(self.degrees))?;
        if let Some(t) = self.translate {
            write!(f, ", translate={t:?}")?;
        }
        if let Some(s) = self.scale {
            write!(f, ", scale={s:?}")?;
        }
        match self.shear {
            None => {}
            Some(Shear::X(x)) => write!(f, ", shear={}", range_text(x))?,
            Some(Shear::Both((a, b), (c, d))) => write!(f, ", shear=[{a:?}, {b:?}, {c:?}, {d:?}]")?,
        }
        if !self.interpolation.is_nearest() {
            write!(f, ", interpolation={}", self.interpolation)?;
        }
        if self.fill != Fill::from(0) {
            write!(f, ", fill={}", self.fill)?;
        }
        if let Some(c) = self.center {
            write!(f, ", center={c:?}")?;
        }
        f.write_str(")")
    }
}
