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
    cropped("crop", image, (top, left), Extent { height, width })
}

#[track_caller]
pub(crate) fn cropped<P: Picture>(
    op: &str,
    image: &P,
    (top, left): (i64, i64),
    size: Extent,
) -> Result<P> {
    let [_, height, width] = image.extents(op)?;
    let (before, after, first) = span(left, size.width, width);
    let (above, below, row) = span(top, size.height, height);
    let padding = Padding::from([before, above, after, below]);
    let window = Window::new((first, row), (size.width, size.height));
    if padding == Padding::default() {
        return image.cut(window);
    }
    let black = Fill::from(0);
    image
        .padded(op, padding, &black, PaddingMode::Constant)?
        .cut(window)
}

/// The padding that a part of an axis needs before and after the axis, and the part's start in the padded axis.
fn span(start: i64, len: usize, whole: usize) -> (usize, usize, usize) {
    let before = (-i128::from(start)).max(0);
    let after = (i128::from(start) + len as i128 - whole as i128).max(0);
    let first = (i128::from(start) + before).max(0);
    let size = |n: i128| usize::try_from(n).unwrap_or(usize::MAX);
    (size(before), size(after), size(first))
}

/// The middle of the image; a smaller image is padded with black.
///
/// # Errors
/// If the crop can't be held.
#[track_caller]
pub fn center_crop<P: Picture>(image: &P, crop: impl Into<CenterCrop>) -> Result<P> {
    centred("center_crop", image, crop.into().size)
}

#[track_caller]
pub(crate) fn centred<P: Picture>(op: &str, image: &P, size: Extent) -> Result<P> {
    let [_, height, width] = image.extents(op)?;
    let begin = |whole: usize, part: usize| match part > whole {
        true => -(((part - whole) / 2) as i64),
        false => (((whole - part) as f64) / 2.0).round_ties_even() as i64,
    };
    let at = (begin(height, size.height), begin(width, size.width));
    cropped(op, image, at, size)
}

/// The corners and the middle: top left, top right, bottom left, bottom right, centre.
///
/// # Errors
/// If the crops are larger than the image.
#[track_caller]
pub fn five_crop<P: Picture>(image: &P, crop: impl Into<FiveCrop>) -> Result<[P; 5]> {
    five("five_crop", image, crop.into().size)
}

#[track_caller]
pub(crate) fn five<P: Picture>(op: &str, image: &P, size: Extent) -> Result<[P; 5]> {
    let [_, height, width] = image.extents(op)?;
    fits(op, size, (height, width))?;
    let (below, right) = ((height - size.height) as i64, (width - size.width) as i64);
    Ok([
        cropped(op, image, (0, 0), size)?,
        cropped(op, image, (0, right), size)?,
        cropped(op, image, (below, 0), size)?,
        cropped(op, image, (below, right), size)?,
        centred(op, image, size)?,
    ])
}

/// Checks that a crop fits into an image.
#[track_caller]
pub(crate) fn fits(op: &str, size: Extent, image: (usize, usize)) -> Result<()> {
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
    ten("ten_crop", image, crop.size, crop.vertical_flip)
}

#[track_caller]
pub(crate) fn ten<P: Picture>(
    op: &str,
    image: &P,
    size: Extent,
    vertical: bool,
) -> Result<[P; 10]> {
    let [a, b, c, d, e] = five(op, image, size)?;
    let [f, g, h, i, j] = five(op, &image.mirrored(!vertical)?, size)?;
    Ok([a, b, c, d, e, f, g, h, i, j])
}

/// The image, its columns in reverse.
///
/// # Errors
/// If a tensor has fewer than 2 dims.
#[track_caller]
pub fn hflip<P: Picture>(image: &P) -> Result<P> {
    image.extents("hflip")?;
    image.mirrored(true)
}

/// The image, its rows in reverse.
///
/// # Errors
/// If a tensor has fewer than 2 dims.
#[track_caller]
pub fn vflip<P: Picture>(image: &P) -> Result<P> {
    image.extents("vflip")?;
    image.mirrored(false)
}

/// The image, padded: `pad(&x, 4)`, `pad(&x, Pad::new(4).padding_mode(PaddingMode::Reflect))`.
///
/// # Errors
/// If the padding is wider than its mode allows, or the fill is not a colour of the image.
#[track_caller]
pub fn pad<P: Picture>(image: &P, pad: impl Into<Pad>) -> Result<P> {
    let pad = pad.into();
    image.extents("pad")?;
    image.padded("pad", pad.padding, &pad.fill, pad.padding_mode)
}

/// The image in another size: `resize(&x, 256)`, `resize(&x, Resize::new((64, 48)).interpolation(Bicubic))`.
///
/// Images are resampled bit for bit as PIL does, always with antialias; tensors as PyTorch does.
///
/// # Errors
/// If the image or the size has no pixels, the size is too large, or `max_size` is not above it.
#[track_caller]
pub fn resize<P: Picture>(image: &P, size: impl Into<Resize>) -> Result<P> {
    resized("resize", image, &size.into())
}

#[track_caller]
pub(crate) fn resized<P: Picture>(op: &str, image: &P, to: &Resize) -> Result<P> {
    let [_, height, width] = image.extents(op)?;
    let (h, w) = target(op, (height, width), to)?;
    if (h, w) == (height, width) {
        return Ok(image.clone());
    }
    let whole = Window::new((0, 0), (width, height));
    image.resampled(op, whole, (w, h), to.interpolation, to.antialias)
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
    let (mut new_short, mut new_long) = (shorter, scaled(shorter, long, short));
    if let Some(most) = to.max_size {
        if most <= shorter {
            let message = format!(
                "max_size must be greater than the size of the shorter side, but {most} is not greater than {shorter}"
            );
            return Err(invalid(op, message));
        }
        if new_long > most {
            (new_short, new_long) = (scaled(most, new_short, new_long), most);
        }
    }
    Ok(match width <= height {
        true => (new_long, new_short),
        false => (new_short, new_long),
    })
}

/// `n · by / of`, rounded down as Python's `int` of a quotient of floats.
fn scaled(n: usize, by: usize, of: usize) -> usize {
    ((n as f64 * by as f64) / of as f64) as usize
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
    let (before, after, first) = span(left, width, columns);
    let (above, below, row) = span(top, height, rows);
    if [before, after, above, below] != [0; 4] {
        let part = cropped(op, image, (top, left), Extent { height, width })?;
        return resized(op, &part, &to);
    }
    let window = Window::new((first, row), (width, height));
    let (h, w) = target(op, (height, width), &to)?;
    image.resampled(op, window, (w, h), to.interpolation, to.antialias)
}
