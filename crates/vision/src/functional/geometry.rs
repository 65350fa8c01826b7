//! Crops, flips, padding and sizes.

use crate::fault::invalid;
use crate::picture::Picture;
use crate::resample::Window;
use crate::transforms::{
    CenterCrop, Extent, Fill, FiveCrop, Pad, Padding, PaddingMode, Resize, Size,
};
use kiln_tensor::Result;

/// Channels, rows and columns of an image or of a tensor `[.., C, H, W]`.
///
/// # Errors
/// If a tensor has fewer than 2 dims.
#[track_caller]
pub fn get_dimensions(image: &impl Picture) -> Result<[usize; 3]> {
    image.extents("get_dimensions")
}

/// `height` rows from row `top` on and `width` columns from column `left` on. Pixels outside the image are 0.
///
/// # Errors
/// If the crop can't be held.
#[track_caller]
pub fn crop<P: Picture>(image: &P, top: i64, left: i64, height: usize, width: usize) -> Result<P> {
    crop_as("crop", image, (top, left), Extent { height, width })
}

#[track_caller]
pub(crate) fn crop_as<P: Picture>(
    op: &str,
    image: &P,
    (top, left): (i64, i64),
    size: Extent,
) -> Result<P> {
    let [_, height, width] = image.extents(op)?;
    let (before, after, column) = span(left, size.width, width);
    let (above, below, row) = span(top, size.height, height);
    let padding = Padding::from([before, above, after, below]);
    let window = Window::new((column, row), (size.width, size.height));
    if padding == Padding::default() {
        return image.crop_window(window);
    }
    let black = Fill::from(0);
    image
        .pad(op, padding, &black, PaddingMode::Constant)?
        .crop_window(window)
}

/// The padding that a part of an axis needs before and after the axis, and the part's start in the padded axis.
fn span(start: i64, len: usize, axis_len: usize) -> (usize, usize, usize) {
    let before = (-i128::from(start)).max(0);
    let after = (i128::from(start) + len as i128 - axis_len as i128).max(0);
    let start_inside = (i128::from(start) + before).max(0);
    let size = |n: i128| usize::try_from(n).unwrap_or(usize::MAX);
    (size(before), size(after), size(start_inside))
}

/// The middle of the image; a smaller image is padded with black.
///
/// # Errors
/// If the crop can't be held.
#[track_caller]
pub fn center_crop<P: Picture>(image: &P, crop: impl Into<CenterCrop>) -> Result<P> {
    center_crop_as("center_crop", image, crop.into().size)
}

#[track_caller]
pub(crate) fn center_crop_as<P: Picture>(op: &str, image: &P, size: Extent) -> Result<P> {
    let [_, height, width] = image.extents(op)?;
    let begin = |axis_len: usize, crop_len: usize| match crop_len > axis_len {
        true => -(((crop_len - axis_len) / 2) as i64),
        false => (((axis_len - crop_len) as f64) / 2.0).round_ties_even() as i64,
    };
    let corner = (begin(height, size.height), begin(width, size.width));
    crop_as(op, image, corner, size)
}

/// The corners and the middle: top left, top right, bottom left, bottom right, centre.
///
/// # Errors
/// If the crops are larger than the image.
#[track_caller]
pub fn five_crop<P: Picture>(image: &P, crop: impl Into<FiveCrop>) -> Result<[P; 5]> {
    five_crop_as("five_crop", image, crop.into().size)
}

#[track_caller]
pub(crate) fn five_crop_as<P: Picture>(op: &str, image: &P, size: Extent) -> Result<[P; 5]> {
    let [_, height, width] = image.extents(op)?;
    check_crop(op, size, (height, width))?;
    let (below, right) = ((height - size.height) as i64, (width - size.width) as i64);
    Ok([
        crop_as(op, image, (0, 0), size)?,
        crop_as(op, image, (0, right), size)?,
        crop_as(op, image, (below, 0), size)?,
        crop_as(op, image, (below, right), size)?,
        center_crop_as(op, image, size)?,
    ])
}

/// Checks that a crop fits into an image.
#[track_caller]
pub(crate) fn check_crop(op: &str, size: Extent, image: (usize, usize)) -> Result<()> {
    if size.height <= image.0 && size.width <= image.1 {
        return Ok(());
    }
    let message = format!("the crop {size} is larger than the image, which is {image:?}");
    Err(invalid(op, message))
}

/// [`five_crop`] of the image and of the image flipped, horizontally unless `vertical_flip` is set.
///
/// # Errors
/// If the crops are larger than the image.
#[track_caller]
pub fn ten_crop<P: Picture>(
    image: &P,
    crop: impl Into<crate::transforms::TenCrop>,
) -> Result<[P; 10]> {
    let crop = crop.into();
    ten_crop_as("ten_crop", image, crop.size, crop.vertical_flip)
}

#[track_caller]
pub(crate) fn ten_crop_as<P: Picture>(
    op: &str,
    image: &P,
    size: Extent,
    vertical: bool,
) -> Result<[P; 10]> {
    let [a, b, c, d, e] = five_crop_as(op, image, size)?;
    let [f, g, h, i, j] = five_crop_as(op, &image.mirror(!vertical)?, size)?;
    Ok([a, b, c, d, e, f, g, h, i, j])
}

/// The image, its columns in reverse.
///
/// # Errors
/// If a tensor has fewer than 2 dims.
#[track_caller]
pub fn hflip<P: Picture>(image: &P) -> Result<P> {
    image.extents("hflip")?;
    image.mirror(true)
}

/// The image, its rows in reverse.
///
/// # Errors
/// If a tensor has fewer than 2 dims.
#[track_caller]
pub fn vflip<P: Picture>(image: &P) -> Result<P> {
    image.extents("vflip")?;
    image.mirror(false)
}

/// The image, padded: `pad(&x, 4)`, `pad(&x, Pad::new(4).padding_mode(PaddingMode::Reflect))`.
///
/// # Errors
/// If the padding is wider than its mode allows, or the fill is not a colour of the image.
#[track_caller]
pub fn pad<P: Picture>(image: &P, pad: impl Into<Pad>) -> Result<P> {
    let pad = pad.into();
    image.extents("pad")?;
    image.pad("pad", pad.padding, &pad.fill, pad.padding_mode)
}

/// The image in another size: `resize(&x, 256)`, `resize(&x, Resize::new((64, 48)).interpolation(Bicubic))`.
///
/// Images are resampled bit for bit as PIL does, always with antialias; tensors as PyTorch does.
///
/// # Errors
/// If the image or the size has no pixels, the size is too large, or `max_size` is not above it.
#[track_caller]
pub fn resize<P: Picture>(image: &P, size: impl Into<Resize>) -> Result<P> {
    resize_as("resize", image, &size.into())
}

#[track_caller]
pub(crate) fn resize_as<P: Picture>(op: &str, image: &P, to: &Resize) -> Result<P> {
    let [_, height, width] = image.extents(op)?;
    let (h, w) = target(op, (height, width), to)?;
    if (h, w) == (height, width) {
        return Ok(image.clone());
    }
    let full_window = Window::new((0, 0), (width, height));
    image.resample(op, full_window, (w, h), to.interpolation, to.antialias)
}

/// The size of the result for an image of `(height, width)`.
#[track_caller]
fn target(op: &str, (height, width): (usize, usize), to: &Resize) -> Result<(usize, usize)> {
    let shorter = match (to.size, to.max_size) {
        (Size::Both(h, w), None) => return Ok((h, w)),
        (Size::Both(..), Some(_)) => {
            let message = "max_size goes with the length of the shorter side, not with two sizes";
            return Err(invalid(op, message));
        }
        (Size::Shorter(n), _) => n,
    };
    let (short, long) = (height.min(width), height.max(width));
    if short == 0 {
        return Ok((shorter, shorter));
    }
    let (mut new_short, mut new_long) = (shorter, scale_rounded(shorter, long, short));
    if let Some(max_size) = to.max_size {
        if max_size <= shorter {
            let message = format!(
                "max_size must be greater than the size of the shorter side, but {max_size} is not greater than {shorter}"
            );
            return Err(invalid(op, message));
        }
        if new_long > max_size {
            (new_short, new_long) = (scale_rounded(max_size, new_short, new_long), max_size);
        }
    }
    Ok(match width <= height {
        true => (new_long, new_short),
        false => (new_short, new_long),
    })
}

/// `n · by / of`, rounded down as Python's `int` of a quotient of floats.
fn scale_rounded(n: usize, factor: usize, divisor: usize) -> usize {
    ((n as f64 * factor as f64) / divisor as f64) as usize
}

/// [`crop`], then [`resize`] to `size`. Only the crop's pixels are read.
///
/// # Errors
/// As of [`crop`] and [`resize`].
#[track_caller]
pub fn resized_crop<P: Picture>(
    image: &P,
    top: i64,
    left: i64,
    height: usize,
    width: usize,
    size: impl Into<Resize>,
) -> Result<P> {
    let (op, to) = ("resized_crop", size.into());
    let [_, rows, columns] = image.extents(op)?;
    let (before, after, column) = span(left, width, columns);
    let (above, below, row) = span(top, height, rows);
    if [before, after, above, below] != [0; 4] {
        let cropped_image = crop_as(op, image, (top, left), Extent { height, width })?;
        return resize_as(op, &cropped_image, &to);
    }
    let window = Window::new((column, row), (width, height));
    let (h, w) = target(op, (height, width), &to)?;
    image.resample(op, window, (w, h), to.interpolation, to.antialias)
}
