//! Images as tensors.

use super::{Image, Mode};
use crate::fault::invalid;
use crate::simd::wide;
use kiln_tensor::{DType, Result, Tensor};

impl Image {
    /// The image as a u8 tensor `[C, H, W]`: torchvision's `pil_to_tensor`.
    ///
    /// # Errors
    /// If there is no memory for it.
    #[track_caller]
    pub fn to_tensor(&self) -> Result<Tensor> {
        let (w, h, c) = (self.width, self.height, self.channels());
        Tensor::filled(DType::U8, [c, h, w], |out| {
            let planes = out.chunks_exact_mut((w * h).max(1)).enumerate();
            planes.for_each(|(channel, out)| match self.mode {
                Mode::L => plane::<1>(&self.pixels, channel, out),
                Mode::LA => plane::<2>(&self.pixels, channel, out),
                Mode::RGB => plane::<3>(&self.pixels, channel, out),
                Mode::RGBA => plane::<4>(&self.pixels, channel, out),
            });
            Ok(())
        })
    }

    /// The image as a u8 tensor `[H, W, C]`, in the order of its bytes: PIL's `numpy.asarray(image)`, except that
    /// grey keeps its one channel.
    ///
    /// # Errors
    /// If there is no memory for it.
    #[track_caller]
    pub fn to_array(&self) -> Result<Tensor> {
        let shape = [self.height, self.width, self.channels()];
        Tensor::filled(DType::U8, shape, |out| {
            out.copy_from_slice(&self.pixels);
            Ok(())
        })
    }

    /// An image of a u8 tensor `[H, W, C]` of 1 to 4 channels, or `[H, W]`: PIL's `Image.fromarray`.
    ///
    /// # Errors
    /// If the tensor has another shape or dtype.
    #[track_caller]
    pub fn from_array(array: &Tensor) -> Result<Image> {
        let (op, shape) = ("Image::from_array", array.shape()?);
        let size = match shape[..] {
            [h, w] => Some((h, w, Mode::L)),
            [h, w, c] => Mode::of_channels(c).map(|mode| (h, w, mode)),
            _ => None,
        };
        match size {
            Some((h, w, mode)) if array.dtype() == DType::U8 => {
                Ok(Image::of(array.to_vec::<u8>()?, w, h, mode))
            }
            _ => {
                let message = format!(
                    "{}{shape:?} is not an image; it takes u8 of the shape [H, W, C] with 1 to 4 channels, or [H, W]",
                    array.dtype()
                );
                Err(invalid(op, message))
            }
        }
    }

    /// An image of a tensor `[C, H, W]` or `[H, W]` of 1 to 4 channels. u8 is taken as it is; floats in [0, 1] are
    /// multiplied by 255 and rounded down, as in torchvision's `to_pil_image`.
    ///
    /// # Errors
    /// If the tensor has another shape or dtype, or a float that is not in [0, 1].
    #[track_caller]
    pub fn from_tensor(tensor: &Tensor) -> Result<Image> {
        let shape = tensor.shape()?;
        let wrong = || {
            let message = format!(
                "{}{shape:?} is not an image; it takes u8 or a float of the shape [C, H, W] with 1 to 4 channels, or [H, W]",
                tensor.dtype()
            );
            invalid("Image::from_tensor", message)
        };
        let (channels, height, width) = match shape[..] {
            [h, w] => (1, h, w),
            [c, h, w] => (c, h, w),
            _ => return Err(wrong()),
        };
        let mode = Mode::of_channels(channels).ok_or_else(wrong)?;
        let planes = match tensor.dtype() {
            DType::U8 => tensor.to_vec::<u8>()?,
            t if t.is_float() => levels(&tensor.to_dtype(DType::F32).to_vec::<f32>()?)?,
            _ => return Err(wrong()),
        };
        let mut pixels = vec![0; planes.len()];
        for (channel, plane) in planes.chunks_exact((width * height).max(1)).enumerate() {
            let pixels = pixels.chunks_exact_mut(channels);
            pixels.zip(plane).for_each(|(p, v)| p[channel] = *v);
        }
        Ok(Image::of(pixels, width, height, mode))
    }
}

wide! {
    /// Copies one channel of pixels of `C` channels.
    fn plane<const C: usize>(pixels: &[u8], channel: usize, out: &mut [u8]) {
        let (pixels, _) = pixels.as_chunks::<C>();
        for (out, pixel) in out.iter_mut().zip(pixels) {
            *out = pixel[channel];
        }
    }
}

/// Floats in [0, 1] as levels of 255.
#[track_caller]
fn levels(values: &[f32]) -> Result<Vec<u8>> {
    if let Some(v) = values.iter().find(|v| !(0.0..=1.0).contains(*v)) {
        let message = format!("floats of an image are in [0, 1], but {v} is among them");
        return Err(invalid("Image::from_tensor", message));
    }
    Ok(values.iter().map(|v| (v * 255.0) as u8).collect())
}
