//! The operands of geometry: images and tensors.

use crate::fault::{SOURCE, invalid};
use crate::image::{Buffer, Image};
use crate::resample::{self, Interpolation, Window};
use crate::transforms::{Fill, Padding, PaddingMode};
use kiln_tensor::{
    DType, InterpolateMode, InterpolateSize, PadMode, Result, Tensor, cat, on_behalf_of_caller,
    set_device,
};

/// A thing with rows and columns of pixels: an [`Image`], or a tensor `[.., C, H, W]`.
pub trait Picture: Clone + sealed::Pixels {}

impl Picture for Image {}
impl Picture for Tensor {}

/// The maximum side of an image that may be created.
pub(crate) const MAX_SIDE: usize = 1 << 24;

pub(crate) mod sealed {
    use super::*;

    pub trait Pixels: Sized {
        /// Channels, rows and columns.
        fn extents(&self, op: &str) -> Result<[usize; 3]>;

        /// The pixels in a window.
        fn crop_window(&self, window: Window) -> Result<Self>;

        /// The image with padding around it.
        fn pad(&self, op: &str, padding: Padding, fill: &Fill, mode: PaddingMode) -> Result<Self>;

        /// Columns, or else rows, in reverse.
        fn mirror(&self, columns: bool) -> Result<Self>;

        /// The pixels in a window, resized to columns and rows.
        fn resample(
            &self,
            op: &str,
            window: Window,
            size: (usize, usize),
            filter: Interpolation,
            antialias: bool,
        ) -> Result<Self>;
    }
}
use sealed::Pixels;

/// Checks that an image of this size is within the limit and fits into memory.
#[track_caller]
pub(crate) fn check_room(op: &str, width: usize, height: usize, channels: usize) -> Result<()> {
    let bytes = width
        .checked_mul(height)
        .and_then(|n| n.checked_mul(channels));
    let fits = |n| Vec::<u8>::new().try_reserve_exact(n).is_ok();
    if width <= MAX_SIDE && height <= MAX_SIDE && bytes.is_some_and(fits) {
        return Ok(());
    }
    let message = format!(
        "an image of {height} rows and {width} columns is too large: sides are at most {MAX_SIDE}, and it must fit into \
         memory"
    );
    Err(invalid(op, message))
}

/// Checks that neither the window nor the new size is empty, and that an image of the new size can be allocated.
#[track_caller]
fn check_resize(
    op: &str,
    window: Window,
    (width, height): (usize, usize),
    channels: usize,
) -> Result<()> {
    if window.width == 0 || window.height == 0 || width == 0 || height == 0 {
        let message = format!(
            "an image of {} rows and {} columns can't be resized to {height} and {width}: there are no pixels",
            window.height, window.width
        );
        return Err(invalid(op, message));
    }
    check_room(op, width, height, channels)
}

impl Pixels for Image {
    fn extents(&self, _: &str) -> Result<[usize; 3]> {
        Ok([self.channels(), self.height(), self.width()])
    }

    fn crop_window(&self, window: Window) -> Result<Image> {
        Ok(resample::crop(self, window))
    }

    #[track_caller]
    fn pad(&self, op: &str, padding: Padding, fill: &Fill, mode: PaddingMode) -> Result<Image> {
        let fill = fill.levels(op, self.channels())?;
        let sum = |a: usize, b: usize, c: usize| a.saturating_add(b).saturating_add(c);
        let width = sum(self.width(), padding.left, padding.right);
        let height = sum(self.height(), padding.top, padding.bottom);
        check_room(op, width, height, self.channels())?;
        let columns = source_indices(op, self.width(), (padding.left, padding.right), mode)?;
        let rows = source_indices(op, self.height(), (padding.top, padding.bottom), mode)?;
        let c = self.channels();
        let mut out = Buffer::new(width * height * c);
        let stride = (width * c).max(1);
        for (source_row, to) in rows.iter().zip(out.chunks_exact_mut(stride)) {
            let row = source_row.map(|y| &self.bytes()[y * self.width() * c..][..self.width() * c]);
            let put = |to: &mut [u8], source_columns: &[Option<usize>]| {
                for (to, x) in to.chunks_exact_mut(c).zip(source_columns) {
                    to.copy_from_slice(match (row, x) {
                        (Some(row), Some(x)) => &row[x * c..][..c],
                        _ => &fill,
                    });
                }
            };
            let (left, right) = (padding.left, padding.left + self.width());
            put(&mut to[..left * c], &columns[..left]);
            match row {
                Some(row) => to[left * c..right * c].copy_from_slice(row),
                None => put(&mut to[left * c..right * c], &columns[left..right]),
            }
            put(&mut to[right * c..], &columns[right..]);
        }
        Ok(Image::of(out, width, height, self.mode()))
    }

    fn mirror(&self, columns: bool) -> Result<Image> {
        let mut out = Buffer::new(self.bytes().len());
        let stride = (self.width() * self.channels()).max(1);
        let (to, from) = (
            out.chunks_exact_mut(stride),
            self.bytes().chunks_exact(stride),
        );
        match columns {
            true => to.zip(from).for_each(|(to, from)| match self.channels() {
                1 => copy_reversed::<1>(from, to),
                2 => copy_reversed::<2>(from, to),
                3 => copy_reversed::<3>(from, to),
                _ => copy_reversed::<4>(from, to),
            }),
            false => to
                .zip(from.rev())
                .for_each(|(to, from)| to.copy_from_slice(from)),
        }
        Ok(Image::of(out, self.width(), self.height(), self.mode()))
    }

    #[track_caller]
    fn resample(
        &self,
        op: &str,
        window: Window,
        size: (usize, usize),
        filter: Interpolation,
        _antialias: bool,
    ) -> Result<Image> {
        check_resize(op, window, size, self.channels())?;
        Ok(resample::resized(self, window, size, filter))
    }
}

/// Copies pixels of `C` levels in reverse order.
fn copy_reversed<const C: usize>(from: &[u8], to: &mut [u8]) {
    let (from, to) = (from.as_chunks::<C>().0, to.as_chunks_mut::<C>().0);
    let pairs = to.iter_mut().zip(from.iter().rev());
    pairs.for_each(|(to, from)| *to = *from);
}

/// The source index of every position along a padded axis, or `None` for fill.
#[track_caller]
fn source_indices(
    op: &str,
    len: usize,
    (before, after): (usize, usize),
    mode: PaddingMode,
) -> Result<Vec<Option<usize>>> {
    let max_padding = match mode {
        PaddingMode::Constant => MAX_SIDE,
        PaddingMode::Edge | PaddingMode::Symmetric | PaddingMode::Reflect if len == 0 => 0,
        PaddingMode::Edge => MAX_SIDE,
        PaddingMode::Symmetric => len,
        PaddingMode::Reflect => len - 1,
    };
    if before > max_padding || after > max_padding || len > MAX_SIDE {
        let message = format!(
            "padding of {before} and {after} around {len} pixels is too wide for padding_mode {mode}: at most {max_padding}"
        );
        return Err(invalid(op, message));
    }
    let (before, after, len) = (before as i64, after as i64, len as i64);
    let source_index = |index: i64| {
        let mirrored = match mode {
            PaddingMode::Constant => index,
            PaddingMode::Edge => index.clamp(0, len - 1),
            PaddingMode::Reflect if index < 0 => -index,
            PaddingMode::Reflect if index >= len => 2 * (len - 1) - index,
            PaddingMode::Symmetric if index < 0 => -1 - index,
            PaddingMode::Symmetric if index >= len => 2 * len - 1 - index,
            PaddingMode::Reflect | PaddingMode::Symmetric => index,
        };
        (0..len).contains(&mirrored).then_some(mirrored as usize)
    };
    Ok((-before..len + after).map(source_index).collect())
}

/// The source index of every position along a mirrored axis.
#[track_caller]
pub(crate) fn mirror(
    op: &str,
    len: usize,
    padding: (usize, usize),
    mode: PaddingMode,
) -> Result<Vec<usize>> {
    Ok(source_indices(op, len, padding, mode)?
        .into_iter()
        .flatten()
        .collect())
}

impl Pixels for Tensor {
    #[track_caller]
    fn extents(&self, op: &str) -> Result<[usize; 3]> {
        let shape = self.shape()?;
        match shape[..] {
            [.., c, h, w] => Ok([c, h, w]),
            [h, w] => Ok([1, h, w]),
            _ => {
                let message = format!(
                    "{}{shape:?} is not an image: a tensor of images is [.., C, H, W]",
                    self.dtype()
                );
                Err(invalid(op, message))
            }
        }
    }

    #[track_caller]
    fn crop_window(&self, window: Window) -> Result<Tensor> {
        let rows = self.narrow(-2, window.top, window.height);
        let cropped = rows.narrow(-1, window.left, window.width);
        Ok(cropped.check()?.clone())
    }

    #[track_caller]
    fn pad(&self, op: &str, padding: Padding, fill: &Fill, mode: PaddingMode) -> Result<Tensor> {
        let [channels, height, width] = self.extents(op)?;
        let columns = source_indices(op, width, (padding.left, padding.right), mode)?;
        let rows = source_indices(op, height, (padding.top, padding.bottom), mode)?;
        if mode != PaddingMode::Constant {
            let _here = set_device(self.device());
            let index = |sources: Vec<Option<usize>>| -> Vec<i64> {
                sources.into_iter().flatten().map(|p| p as i64).collect()
            };
            let padded = self.index_select(-2, Tensor::from(index(rows)));
            let padded = padded.index_select(-1, Tensor::from(index(columns)));
            return Ok(padded.check()?.clone());
        }
        let numbers = fill.numbers(op, channels)?;
        let padding = [padding.left, padding.right, padding.top, padding.bottom].map(|n| n as i64);
        let padded = |t: &Tensor, v: f64| match t.dtype().is_float() {
            true => t.pad(padding, PadMode::Constant(v.into())),
            false => t.pad(padding, PadMode::Constant((v as i64).into())),
        };
        let padded =
            on_behalf_of_caller(SOURCE, || match numbers.iter().all(|n| *n == numbers[0]) {
                true => padded(self, numbers[0]),
                false => {
                    let channels = numbers.iter().enumerate();
                    let channels = channels.map(|(c, v)| padded(&self.narrow(-3, c, 1), *v));
                    cat(channels.collect::<Vec<Tensor>>(), -3)
                }
            });
        Ok(padded.check()?.clone())
    }

    #[track_caller]
    fn mirror(&self, columns: bool) -> Result<Tensor> {
        let mirrored = self.flip(if columns { -1 } else { -2 });
        Ok(mirrored.check()?.clone())
    }

    #[track_caller]
    fn resample(
        &self,
        op: &str,
        window: Window,
        size: (usize, usize),
        filter: Interpolation,
        antialias: bool,
    ) -> Result<Tensor> {
        let [channels, height, width] = self.extents(op)?;
        check_resize(op, window, size, channels)?;
        let is_same_size = (window.width, window.height) == (width, height);
        let x = if is_same_size {
            self.clone()
        } else {
            self.crop_window(window)?
        };
        let resized = match filter {
            Interpolation::Nearest => interpolate(op, &x, size, InterpolateMode::Nearest)?,
            Interpolation::NearestExact => {
                interpolate(op, &x, size, InterpolateMode::NearestExact)?
            }
            _ if antialias => {
                on_behalf_of_caller(SOURCE, || resize_by_matrix(&x, window, size, filter))
            }
            Interpolation::Bilinear => {
                let mode = InterpolateMode::Linear {
                    align_corners: false,
                };
                interpolate(op, &x, size, mode)?
            }
            Interpolation::Bicubic => {
                let mode = InterpolateMode::Bicubic {
                    align_corners: false,
                };
                interpolate(op, &x, size, mode)?
            }
            Interpolation::Box | Interpolation::Hamming | Interpolation::Lanczos => {
                let message = format!("tensors are resized by {filter} with antialias alone");
                return Err(invalid(op, message));
            }
        };
        Ok(restore_dtype(&resized, self.dtype()).check()?.clone())
    }
}

/// Converts floats that were computed for another dtype back to it: rounded for integers, clamped to 0..=255 for u8.
#[track_caller]
fn restore_dtype(x: &Tensor, dtype: DType) -> Tensor {
    match dtype {
        DType::U8 => x.round().clamp(0.0, 255.0).to_dtype(dtype),
        t if t.is_float() => x.to_dtype(dtype),
        _ => x.round().to_dtype(dtype),
    }
}

#[track_caller]
fn to_f32(x: &Tensor) -> Tensor {
    match x.dtype().is_float() {
        true => x.clone(),
        false => x.to_dtype(DType::F32),
    }
}

#[track_caller]
fn interpolate(
    op: &str,
    x: &Tensor,
    (width, height): (usize, usize),
    mode: InterpolateMode,
) -> Result<Tensor> {
    let shape = x.shape()?;
    let [channels, h, w] = x.extents(op)?;
    let batch: usize = shape[..shape.len().saturating_sub(3)].iter().product();
    let flat = to_f32(x).reshape([batch, channels, h, w]);
    let size = InterpolateSize::Size([height, width].into());
    let mut out = shape.clone();
    if let [.., h, w] = &mut out[..] {
        (*h, *w) = (height, width);
    }
    Ok(flat.interpolate(size, mode).reshape(out))
}

/// Products with a matrix of weights on each side, columns first.
fn resize_by_matrix(
    x: &Tensor,
    window: Window,
    (width, height): (usize, usize),
    filter: Interpolation,
) -> Tensor {
    let _here = set_device(x.device());
    let matrix = |len: usize, out: usize| {
        let weights = resample::matrix(filter, len, out);
        Tensor::from_slice(&weights, [out, len])
    };
    let mut x = to_f32(x);
    let dtype = x.dtype();
    if width != window.width {
        x = x.matmul(matrix(window.width, width).to_dtype(dtype).transpose(0, 1));
    }
    if height != window.height {
        x = matrix(window.height, height).to_dtype(dtype).matmul(&x);
    }
    x
}
