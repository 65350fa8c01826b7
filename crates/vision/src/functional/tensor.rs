//! Conversions between images, tensors and dtypes.

use crate::fault::{SOURCE, invalid};
use crate::image::Image;
use crate::picture::sealed::Pixels;
use crate::simd::wide;
use crate::transforms::Fill;
use kiln_tensor::{
    DType, Device, Ellipsis, Result, Tensor, is_recording, on_behalf_of_caller, set_device,
};

/// The image as an f32 tensor `[C, H, W]` of levels divided by 255.
///
/// # Errors
/// If there is no memory for it.
#[track_caller]
pub fn to_tensor(image: &Image) -> Result<Tensor> {
    let (w, h, c) = (image.width(), image.height(), image.channels());
    let bytes = image.bytes();
    Tensor::filled(DType::F32, [c, h, w], |out| {
        match c {
            1 => planes::<1>(bytes, out),
            2 => planes::<2>(bytes, out),
            3 => planes::<3>(bytes, out),
            _ => planes::<4>(bytes, out),
        }
        Ok(())
    })
}

/// An array `[H, W, C]` or `[H, W]` as a tensor `[C, H, W]`, as torchvision's `to_tensor` does with NumPy's: u8 as f32
/// divided by 255, other dtypes as they are.
///
/// ```
/// use kiln_tensor::Tensor;
/// use kiln_vision::functional::array_to_tensor;
/// let array = Tensor::from([[[0u8, 255], [51, 102]]]); // one row of two pixels of two channels
/// let x = array_to_tensor(&array)?;
/// assert_eq!((x.shape()?, x.to_vec::<f32>()?), (vec![2, 1, 2], vec![0.0, 0.2, 1.0, 0.4]));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the array has another number of dims.
#[track_caller]
pub fn array_to_tensor(array: &Tensor) -> Result<Tensor> {
    let x = match array.check()?.ndim() {
        2 => array.unsqueeze(0),
        3 => array.permute([2, 0, 1]),
        n => {
            let message = format!("an array has the shape [H, W, C] or [H, W], not {n} dims");
            return Err(invalid("ToTensor", message));
        }
    };
    Ok(match x.dtype() {
        DType::U8 => x.to_dtype(DType::F32) / 255.0,
        _ => x,
    })
}

/// The image as a u8 tensor `[C, H, W]`.
///
/// # Errors
/// If there is no memory for it.
#[track_caller]
pub fn pil_to_tensor(image: &Image) -> Result<Tensor> {
    image.to_tensor()
}

/// [`pil_to_tensor`] by the name of torchvision's `v2`.
///
/// # Errors
/// If there is no memory for it.
#[track_caller]
pub fn to_image(image: &Image) -> Result<Tensor> {
    image.to_tensor()
}

/// An image of a tensor; see [`Image::from_tensor`].
///
/// # Errors
/// As [`Image::from_tensor`].
#[track_caller]
pub fn to_pil_image(tensor: &Tensor) -> Result<Image> {
    Image::from_tensor(tensor)
}

/// The mean and the standard deviation of each channel, for normalisation.
struct Standard {
    mean: Vec<f64>,
    std: Vec<f64>,
}

impl Standard {
    #[track_caller]
    fn new(op: &str, mean: &[f64], std: &[f64], channels: usize) -> Result<Standard> {
        let per_channel = |name: &str, values: &[f64]| match values.len() {
            1 => Ok(vec![values[0]; channels]),
            n if n == channels => Ok(values.to_vec()),
            n => {
                let message =
                    format!("{name} has {n} numbers, but the image has {channels} channels");
                Err(invalid(op, message))
            }
        };
        if let Some(v) = mean.iter().chain(std).find(|v| !v.is_finite()) {
            let message = format!("{v} is among mean {mean:?} and std {std:?}");
            return Err(invalid(op, message));
        }
        if std.iter().any(|v| *v as f32 == 0.0) {
            let message = format!("std {std:?} evaluates to zero, leading to division by zero");
            return Err(invalid(op, message));
        }
        Ok(Standard {
            mean: per_channel("mean", mean)?,
            std: per_channel("std", std)?,
        })
    }

    /// The mean and the standard deviation of a channel.
    fn mean_and_std(&self, channel: usize) -> (f32, f32) {
        (self.mean[channel] as f32, self.std[channel] as f32)
    }
}

/// Writes pixels of `C` levels as one plane of floats in [0, 1] per channel.
fn planes<const C: usize>(pixels: &[u8], out: &mut [u8]) {
    let (pixels, _) = pixels.as_chunks::<C>();
    let (out, _) = out.as_chunks_mut::<4>();
    let planes = out.chunks_exact_mut(pixels.len().max(1));
    planes
        .enumerate()
        .for_each(|(c, out)| plane(pixels, c, out));
}

wide! {
    fn plane<const C: usize>(pixels: &[[u8; C]], channel: usize, out: &mut [[u8; 4]]) {
        for (out, pixel) in out.iter_mut().zip(pixels) {
            *out = (f32::from(pixel[channel]) / 255.0).to_le_bytes();
        }
    }
}

/// True if a tensor is materialised in host memory and takes no part in autograd or a recording.
fn is_plain(x: &Tensor) -> bool {
    x.device() == Device::Cpu && x.is_realized() && !x.requires_grad() && !is_recording()
}

/// `(x − mean) / std` of every channel of a float tensor `[.., C, H, W]`.
///
/// # Errors
/// If the tensor holds no floats or has fewer than 3 dims, if there is another number of means or deviations than
/// 1 and its channels, if one is not finite, or a deviation is 0.
#[track_caller]
pub fn normalize(x: &Tensor, mean: &[f64], std: &[f64]) -> Result<Tensor> {
    normalize_as("normalize", x, mean, std)
}

#[track_caller]
pub(crate) fn normalize_as(op: &str, x: &Tensor, mean: &[f64], std: &[f64]) -> Result<Tensor> {
    let shape = x.shape()?;
    let (channels, pixels) = match shape[..] {
        [.., c, h, w] if x.dtype().is_float() => (c, h * w),
        _ => {
            let message = format!(
                "it takes floats of the shape [.., C, H, W], not {}{shape:?}",
                x.dtype()
            );
            return Err(invalid(op, message));
        }
    };
    let standard = Standard::new(op, mean, std, channels)?;
    if x.dtype() != DType::F32 || !is_plain(x) {
        let column = |values: &[f64]| {
            let column = Tensor::from_slice(values, [channels, 1, 1]);
            column.to_dtype(x.dtype()).to(x.device())
        };
        let columns = || [column(&standard.mean), column(&standard.std)];
        let [mean, std] = on_behalf_of_caller(SOURCE, columns);
        return Ok(((x - mean) / std).check()?.clone());
    }
    map_bytes(x, |from, out| {
        let plane = (pixels * 4).max(1);
        let planes = out.chunks_exact_mut(plane).zip(from.chunks_exact(plane));
        for (n, (out, from)) in planes.enumerate() {
            let (mean, std) = standard.mean_and_std(n % channels);
            standardize(from, out, mean, std);
        }
    })
}

wide! {
    /// Subtracts the mean from floats and divides them by the deviation.
    fn standardize(from: &[u8], out: &mut [u8], mean: f32, std: f32) {
        let (from, _) = from.as_chunks::<4>();
        let (out, _) = out.as_chunks_mut::<4>();
        for (out, from) in out.iter_mut().zip(from) {
            *out = ((f32::from_le_bytes(*from) - mean) / std).to_le_bytes();
        }
    }
}

/// The tensor in another dtype, its numbers scaled to that dtype's range: floats are in [0, 1], integers from 0 to
/// their greatest.
///
/// # Errors
/// If the float dtype can't represent every integer of the other dtype.
#[track_caller]
pub fn convert_image_dtype(x: &Tensor, dtype: DType) -> Result<Tensor> {
    convert_dtype_as("convert_image_dtype", x, dtype)
}

/// The tensor in another dtype, scaled as [`convert_image_dtype`] does if `scale` is set.
///
/// # Errors
/// As [`convert_image_dtype`].
#[track_caller]
pub fn to_dtype(x: &Tensor, dtype: DType, scale: bool) -> Result<Tensor> {
    match scale {
        true => convert_dtype_as("to_dtype", x, dtype),
        false => Ok(x.to_dtype(dtype).check()?.clone()),
    }
}

/// The greatest number of an integer dtype.
fn max_value(dtype: DType) -> Option<i64> {
    Some(match dtype {
        DType::Bool => 1,
        DType::U8 => 255,
        DType::I8 => 127,
        DType::I16 => 32767,
        DType::U16 => 65535,
        DType::I32 => i64::from(i32::MAX),
        DType::U32 => i64::from(u32::MAX),
        DType::I64 => i64::MAX,
        _ => return None,
    })
}

/// The number of integers up to `high_max` per integer up to `low_max`.
fn scale_factor(high_max: i64, low_max: i64) -> i64 {
    ((i128::from(high_max) + 1) / (i128::from(low_max) + 1)) as i64
}

#[track_caller]
pub(crate) fn convert_dtype_as(op: &str, x: &Tensor, dtype: DType) -> Result<Tensor> {
    let from = x.dtype();
    if from == dtype {
        return Ok(x.clone());
    }
    let refused = || {
        let message = format!("images are not converted from {from} to {dtype}");
        Err(invalid(op, message))
    };
    let y = match (from.is_float(), dtype.is_float()) {
        (true, true) => x.to_dtype(dtype),
        (true, false) => {
            // True if the float type holds every integer up to the greatest one.
            let exact = match dtype {
                DType::U8 | DType::I8 | DType::Bool => true,
                DType::I16 | DType::U16 => matches!(from, DType::F32 | DType::F64),
                DType::I32 | DType::U32 => from == DType::F64,
                _ => false,
            };
            match max_value(dtype) {
                Some(most) if exact => (x * (most as f64 + 1.0 - 1e-3)).to_dtype(dtype),
                _ => return refused(),
            }
        }
        (false, true) => match max_value(from) {
            Some(255) if dtype == DType::F32 && is_plain(x) => return divide_by_255(x),
            Some(most) => x.to_dtype(dtype) / most as f64,
            None => return refused(),
        },
        (false, false) => match (max_value(from), max_value(dtype)) {
            (Some(a), Some(b)) if a > b => x.floor_divide(scale_factor(a, b)).to_dtype(dtype),
            (Some(a), Some(b)) => x.to_dtype(dtype) * scale_factor(b, a),
            _ => return refused(),
        },
    };
    Ok(y.check()?.clone())
}

/// Levels divided by 255.
#[track_caller]
fn divide_by_255(x: &Tensor) -> Result<Tensor> {
    let table: [f32; 256] = std::array::from_fn(|v| v as f32 / 255.0);
    map_bytes(x, |from, out| {
        let (out, _) = out.as_chunks_mut::<4>();
        let pairs = out.iter_mut().zip(from);
        pairs.for_each(|(out, v)| *out = table[usize::from(*v)].to_le_bytes());
    })
}

/// A tensor of f32 in the shape of another, whose bytes `f` computes from that one's.
#[track_caller]
fn map_bytes(x: &Tensor, f: impl FnOnce(&[u8], &mut [u8])) -> Result<Tensor> {
    let shape = x.shape()?;
    on_behalf_of_caller(SOURCE, || {
        x.with_bytes(|from| {
            Tensor::filled(DType::F32, shape, |out| {
                f(from, out);
                Ok(())
            })
        })?
    })
}

/// The tensor with `height` rows from row `top` on and `width` columns from column `left` on set to a colour.
///
/// # Errors
/// If they lie outside the image, or the colour has another number of numbers than 1 and the channels.
#[track_caller]
pub fn erase(
    x: &Tensor,
    top: usize,
    left: usize,
    height: usize,
    width: usize,
    value: impl Into<Fill>,
) -> Result<Tensor> {
    let [channels, rows, columns] = x.extents("erase")?;
    let inside = |start: usize, len: usize, axis_len: usize| {
        start.checked_add(len).is_some_and(|end| end <= axis_len)
    };
    if !inside(top, height, rows) || !inside(left, width, columns) {
        let message = format!(
            "{height} rows from {top} and {width} columns from {left} lie outside an image of {rows} rows and {columns} columns"
        );
        return Err(invalid("erase", message));
    }
    let value = value.into().numbers("erase", channels)?;
    let _here = set_device(x.device());
    let value = Tensor::from_slice(&value, [channels, 1, 1]);
    erase_region(x, (top, left), (height, width), &value)
}

/// The same with a tensor that broadcasts to the erased part.
#[track_caller]
pub(crate) fn erase_region(
    x: &Tensor,
    (top, left): (usize, usize),
    (height, width): (usize, usize),
    value: &Tensor,
) -> Result<Tensor> {
    let value = value.to_dtype(x.dtype()).to(x.device());
    let y = x.set((Ellipsis, top..top + height, left..left + width), &value);
    Ok(y.check()?.clone())
}
