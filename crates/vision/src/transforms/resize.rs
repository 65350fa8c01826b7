//! Resizing.

use super::arguments::{Extent, Size, optional, printed, truth};
use super::{Transform, uniform};
use crate::fault::invalid;
use crate::functional::resize_as;
use crate::picture::Picture;
use crate::resample::{Interpolation, Window};
use kiln_data::Rng;
use kiln_tensor::{Result, options};

options! {
    /// Resizes an image. Images are resampled bit for bit as PIL does.
    Resize (
        /// The shorter side, or height and width.
        size: Size
    ) {
        /// The interpolation filter.
        interpolation: Interpolation = Interpolation::Bilinear,
        /// The maximum of the longer side; the shorter one is reduced to match.
        max_size: Option<usize> = None,
        /// If true, a tensor that shrinks is antialiased; images always are.
        antialias: bool = true,
    }
}

impl<P: Picture> Transform<P> for Resize {
    type Output = P;
    fn apply(&self, image: P, _: &mut Rng) -> Result<P> {
        resize_as("Resize", &image, self)
    }
}

printed! { Resize, t: "size={}, interpolation={}, max_size={}, antialias={}",
    t.size, t.interpolation, optional(&t.max_size), truth(t.antialias)
}

options! {
    /// Crops a window of random area and aspect ratio, and resizes it (Szegedy et al., 2014).
    RandomResizedCrop (
        /// The size of the result.
        size: Extent
    ) {
        /// The area of the part, as a fraction of the image's.
        scale: (f64, f64) = (0.08, 1.0),
        /// The aspect ratio of the part, width to height.
        ratio: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0),
        /// The interpolation filter.
        interpolation: Interpolation = Interpolation::Bilinear,
        /// If true, a tensor that shrinks is antialiased; images always are.
        antialias: bool = true,
    }
}

impl RandomResizedCrop {
    /// Draws the window of an image of `height` × `width` pixels.
    fn draw_crop(&self, height: usize, width: usize, rng: &mut Rng) -> Window {
        let area = (height * width) as f64;
        let logs = (self.ratio.0.ln(), self.ratio.1.ln());
        for _ in 0..10 {
            let target = area * uniform(rng, self.scale);
            let aspect = uniform(rng, logs).exp();
            let w = (target * aspect).sqrt().round_ties_even() as usize;
            let h = (target / aspect).sqrt().round_ties_even() as usize;
            if (1..=width).contains(&w) && (1..=height).contains(&h) {
                let top = rng.below(height - h + 1);
                return Window::new((rng.below(width - w + 1), top), (w, h));
            }
        }
        self.center_crop(height, width)
    }

    /// Returns the largest window in the middle whose aspect ratio is within the range.
    fn center_crop(&self, height: usize, width: usize) -> Window {
        let aspect = width as f64 / height as f64;
        let (a, b) = self.ratio;
        let (min, max) = (a.min(b), a.max(b));
        let (mut h, mut w) = (height, width);
        if aspect < min {
            h = (width as f64 / min).round_ties_even() as usize;
        } else if aspect > max {
            w = (height as f64 * max).round_ties_even() as usize;
        }
        let (h, w) = (h.clamp(1, height), w.clamp(1, width));
        Window::new(((width - w) / 2, (height - h) / 2), (w, h))
    }
}

/// Checks that 0 < low <= high < ∞.
#[track_caller]
pub(super) fn check_range(op: &str, name: &str, (low, high): (f64, f64)) -> Result<()> {
    if low > 0.0 && low <= high && high.is_finite() {
        return Ok(());
    }
    let message = format!("{name} must be (min, max), both above 0, not ({low:?}, {high:?})");
    Err(invalid(op, message))
}

impl<P: Picture> Transform<P> for RandomResizedCrop {
    type Output = P;
    fn apply(&self, image: P, rng: &mut Rng) -> Result<P> {
        let op = "RandomResizedCrop";
        check_range(op, "scale", self.scale)?;
        check_range(op, "ratio", self.ratio)?;
        let [_, height, width] = image.extents(op)?;
        if height == 0 || width == 0 {
            let message = format!("cannot crop an empty image ({height} × {width})");
            return Err(invalid(op, message));
        }
        let window = self.draw_crop(height, width, rng);
        let size = (self.size.width, self.size.height);
        image.resample(op, window, size, self.interpolation, self.antialias)
    }
}

/// Returns the text of a range, to four decimals.
fn range_text((low, high): (f64, f64)) -> String {
    let digits = |v: f64| (v * 1e4).round_ties_even() / 1e4;
    format!("({:?}, {:?})", digits(low), digits(high))
}

printed! { RandomResizedCrop, t: "size={}, scale={}, ratio={}, interpolation={}, antialias={}",
    t.size, range_text(t.scale), range_text(t.ratio), t.interpolation, truth(t.antialias)
}
