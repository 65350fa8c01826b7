//! Crops.

use super::Transform;
use super::arguments::{Extent, Fill, Padding, PaddingMode, optional, printed, truth};
use crate::functional::{center_crop_as, check_crop, crop_as, five_crop_as, ten_crop_as};
use crate::picture::Picture;
use kiln_data::Rng;
use kiln_tensor::{Result, options};

options! {
    /// The middle of an image; a smaller image is padded with black.
    CenterCrop (
        /// The size of the crop.
        size: Extent
    ) {}
}

impl<P: Picture> Transform<P> for CenterCrop {
    type Output = P;
    fn apply(&self, image: P, _: &mut Rng) -> Result<P> {
        center_crop_as("CenterCrop", &image, self.size)
    }
}

printed! { CenterCrop, t: "size={}", t.size }

options! {
    /// The corners and the middle of an image: top left, top right, bottom left, bottom right, centre.
    FiveCrop (
        /// The size of the crops.
        size: Extent
    ) {}
}

impl<P: Picture> Transform<P> for FiveCrop {
    type Output = [P; 5];
    fn apply(&self, image: P, _: &mut Rng) -> Result<[P; 5]> {
        five_crop_as("FiveCrop", &image, self.size)
    }
}

printed! { FiveCrop, t: "size={}", t.size }

options! {
    /// The five crops of an image and of the flipped image.
    TenCrop (
        /// The size of the crops.
        size: Extent
    ) {
        /// If true, the image is flipped vertically.
        vertical_flip: bool = false,
    }
}

impl<P: Picture> Transform<P> for TenCrop {
    type Output = [P; 10];
    fn apply(&self, image: P, _: &mut Rng) -> Result<[P; 10]> {
        ten_crop_as("TenCrop", &image, self.size, self.vertical_flip)
    }
}

printed! { TenCrop, t: "size={}, vertical_flip={}", t.size, truth(t.vertical_flip) }

options! {
    /// A part of an image, anywhere in it.
    RandomCrop (
        /// The size of the crop.
        size: Extent
    ) {
        /// Padding that is added first.
        padding: Padding = 0usize,
        /// If true, a smaller image is padded to the size by what it lacks, on both sides; else it is an error.
        pad_if_needed: bool = false,
        /// The colour of the padding.
        fill: Fill = 0u8,
        /// The values of the padding.
        padding_mode: PaddingMode = PaddingMode::Constant,
    }
}

impl<P: Picture> Transform<P> for RandomCrop {
    type Output = P;
    fn apply(&self, image: P, rng: &mut Rng) -> Result<P> {
        let (op, size) = ("RandomCrop", self.size);
        let padded = |image: P, padding: Padding| match padding == Padding::default() {
            true => Ok(image),
            false => image.pad(op, padding, &self.fill, self.padding_mode),
        };
        let mut image = padded(image, self.padding)?;
        let [_, height, width] = image.extents(op)?;
        if self.pad_if_needed {
            let columns = size.width.saturating_sub(width);
            image = padded(image, [columns, 0].into())?;
            let rows = size.height.saturating_sub(height);
            image = padded(image, [0, rows].into())?;
        }
        let [_, height, width] = image.extents(op)?;
        check_crop(op, size, (height, width))?;
        if (height, width) == (size.height, size.width) {
            return Ok(image);
        }
        let top = rng.below(height - size.height + 1) as i64;
        let left = rng.below(width - size.width + 1) as i64;
        crop_as(op, &image, (top, left), size)
    }
}

printed! { RandomCrop, t: "size={}, padding={}",
    t.size, optional(&(t.padding != Padding::default()).then_some(t.padding))
}
