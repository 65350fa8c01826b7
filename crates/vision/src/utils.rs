//! Tensors of images as pictures to look at.

use crate::fault::{SOURCE, invalid};
use crate::image::Image;
use crate::picture::MAX_SIDE;
use crate::transforms::Count;
use kiln_tensor::{DType, PadMode, Result, Tensor, cat, on_behalf_of_caller, options, stack};
use std::path::Path;

options! {
    /// The layout of [`make_grid`].
    Grid () {
        /// Images in a row.
        nrow: Count = 8,
        /// Pixels between images, and around them.
        padding: Count = 2,
        /// If true, numbers are scaled to [0, 1].
        normalize: bool = false,
        /// The numbers that become 0 and 1 then; the minimum and the maximum, unless given.
        value_range: Option<(f64, f64)> = None,
        /// If true, each image is scaled by its own minimum and maximum.
        scale_each: bool = false,
        /// The value of the padding between images.
        pad_value: f64 = 0.0,
    }
}

/// Images `[B, C, H, W]` side by side in rows, as one image `[C, H', W']`. A tensor `[C, H, W]` or `[H, W]` is one
/// image. Grey images get three channels; a single image gets no padding.
///
/// ```
/// use kiln_tensor::{DType, Tensor};
/// use kiln_vision::utils::{Grid, make_grid};
///
/// let images = Tensor::rand([6, 1, 8, 8], DType::F32);
/// let grid = make_grid(&images, Grid::new().nrow(3).padding(1))?;
/// assert_eq!(grid.shape()?, [3, 19, 28]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the tensor has another number of dims, there is no image, `nrow` is 0, the padding is above 2^24, or the range
/// descends or is NaN.
#[track_caller]
pub fn make_grid(images: &Tensor, grid: Grid) -> Result<Tensor> {
    let op = "make_grid";
    let shape = images.shape()?;
    let images = match shape.len() {
        2 => images.unsqueeze(0).unsqueeze(0),
        3 => images.unsqueeze(0),
        4 => images.clone(),
        _ => {
            let message = format!("it takes images [B, C, H, W], not {shape:?}");
            return Err(invalid(op, message));
        }
    };
    if shape.contains(&0) || grid.nrow.0 == 0 {
        let message = format!(
            "there is nothing to lay out in {shape:?}, {} in a row",
            grid.nrow.0
        );
        return Err(invalid(op, message));
    }
    let images = match images.shape()?[1] {
        1 => cat(&[&images, &images, &images], 1),
        _ => images,
    };
    let images = match grid.normalize {
        true => on_behalf_of_caller(SOURCE, || scale_images(&images, &grid))?,
        false => images,
    };
    let [count, channels, height, width] = images.shape()?[..] else {
        return Err(invalid(op, "it takes images [B, C, H, W]"));
    };
    if count == 1 {
        return Ok(images.squeeze(0).check()?.clone());
    }
    let padding = grid.padding.0;
    if padding > MAX_SIDE {
        let message = format!("the padding is at most {MAX_SIDE} pixels, not {padding}");
        return Err(invalid(op, message));
    }
    let columns = grid.nrow.0.min(count);
    let rows = count.div_ceil(columns);
    let (gap, empty) = (padding as i64, (rows * columns - count) as i64);
    let value = match images.dtype().is_float() {
        true => PadMode::Constant(grid.pad_value.into()),
        false => PadMode::Constant((grid.pad_value as i64).into()),
    };
    // Padding above and to the left of each image, and empty tiles for the missing images.
    let tiles = images.pad([gap, 0, gap, 0, 0, 0, 0, empty], value);
    let (h, w) = (height + padding, width + padding);
    let tiles = tiles.reshape([rows, columns, channels, h, w]);
    let grid_image = tiles.permute([2, 0, 3, 1, 4]);
    let grid_image = grid_image.reshape([channels, rows * h, columns * w]);
    Ok(grid_image.pad([0, gap, 0, gap], value).check()?.clone())
}

/// [`make_grid`] of separate images.
///
/// # Errors
/// As [`make_grid`], and if they have several shapes.
#[track_caller]
pub fn make_grid_of(images: &[Tensor], grid: Grid) -> Result<Tensor> {
    if images.is_empty() {
        return Err(invalid("make_grid", "there is no image"));
    }
    make_grid(&stack(images, 0), grid)
}

/// Images with their numbers scaled to [0, 1].
fn scale_images(images: &Tensor, grid: &Grid) -> Result<Tensor> {
    let scale_range = |t: &Tensor| -> Result<Tensor> {
        let (low, high) = match grid.value_range {
            Some((low, high)) => (low, high),
            None => {
                let values = t.to_dtype(DType::F64);
                (
                    values.amin(()).item::<f64>()?,
                    values.amax(()).item::<f64>()?,
                )
            }
        };
        if low > high || low.is_nan() || high.is_nan() {
            let message = format!("{low} to {high} is not a range of values");
            return Err(invalid("make_grid", message));
        }
        Ok((t.clamp(low, high) - low) / (high - low).max(1e-5))
    };
    if !images.dtype().is_float() {
        let message = format!("floats are brought into a range, not {}", images.dtype());
        return Err(invalid("make_grid", message));
    }
    if !grid.scale_each {
        return scale_range(images);
    }
    let scaled = (0..images.shape()?[0]).map(|n| scale_range(&images.narrow(0, n, 1)));
    Ok(cat(&scaled.collect::<Result<Vec<Tensor>>>()?, 0))
}

/// Writes a tensor of images in [0, 1] to a file, as the grid that [`make_grid`] makes.
///
/// # Errors
/// As [`make_grid`] and [`Image::save`], or if there are not 1 to 4 channels.
#[track_caller]
pub fn save_image(images: &Tensor, path: impl AsRef<Path>, grid: Grid) -> Result<()> {
    grid_image(images, grid)?.save(path)
}

/// The image that [`save_image`] writes.
///
/// # Errors
/// As [`make_grid`], or if there are not 1 to 4 channels.
#[track_caller]
pub fn grid_image(images: &Tensor, grid: Grid) -> Result<Image> {
    let grid = make_grid(images, grid)?.to_dtype(DType::F32);
    let levels = (grid * 255.0 + 0.5).clamp(0.0, 255.0).to_dtype(DType::U8);
    Image::from_tensor(&levels)
}
