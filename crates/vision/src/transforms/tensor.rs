//! Conversions between images, tensors and dtypes.

use super::Transform;
use super::arguments::{printed, truth};
use crate::functional::{self, convert_dtype_as, normalize_as};
use crate::image::Image;
use kiln_data::Rng;
use kiln_tensor::{DType, Result, Tensor, options};

macro_rules! conversions {
    ($($(#[$doc:meta])* $name:ident $from:ty => $to:ty: $does:expr;)*) => {$(
        options! {
            $(#[$doc])*
            $name () {}
        }

        impl Transform<$from> for $name {
            type Output = $to;
            fn apply(&self, x: $from, _: &mut Rng) -> Result<$to> {
                $does(&x)
            }
        }

        printed! { $name, _t: "" }
    )*};
}
conversions! {
    /// An image as an f32 tensor `[C, H, W]` of levels divided by 255.
    ToTensor Image => Tensor: functional::to_tensor;
    /// An image as a u8 tensor `[C, H, W]`.
    PILToTensor Image => Tensor: functional::pil_to_tensor;
    /// An image as a u8 tensor `[C, H, W]`, by the name of torchvision's `v2`.
    ToImage Image => Tensor: functional::to_image;
    /// An image of a tensor; see [`Image::from_tensor`].
    ToPILImage Tensor => Image: functional::to_pil_image;
}

/// An array `[H, W, C]` or `[H, W]` as a tensor `[C, H, W]`: u8 as f32 divided by 255, other dtypes as they are.
impl Transform<Tensor> for ToTensor {
    type Output = Tensor;
    fn apply(&self, x: Tensor, _: &mut Rng) -> Result<Tensor> {
        functional::array_to_tensor(&x)
    }
}

options! {
    /// A tensor in another dtype, its numbers scaled to that dtype's range; see
    /// [`functional::convert_image_dtype`].
    ConvertImageDtype (
        /// The dtype.
        dtype: DType
    ) {}
}

impl Transform<Tensor> for ConvertImageDtype {
    type Output = Tensor;
    fn apply(&self, x: Tensor, _: &mut Rng) -> Result<Tensor> {
        convert_dtype_as("ConvertImageDtype", &x, self.dtype)
    }
}

printed! { ConvertImageDtype, _t: "" }

options! {
    /// A tensor in another dtype.
    ToDtype (
        /// The dtype.
        dtype: DType
    ) {
        /// If true, the numbers are scaled to the dtype's range.
        scale: bool = false,
    }
}

impl Transform<Tensor> for ToDtype {
    type Output = Tensor;
    fn apply(&self, x: Tensor, _: &mut Rng) -> Result<Tensor> {
        match self.scale {
            true => convert_dtype_as("ToDtype", &x, self.dtype),
            false => Ok(x.to_dtype(self.dtype).check()?.clone()),
        }
    }
}

printed! { ToDtype, t: "scale={}", truth(t.scale) }

options! {
    /// `(x − mean) / std` of every channel of a float tensor `[.., C, H, W]`.
    Normalize (
        /// One number, or one per channel.
        mean: Vec<f64>,
        /// One number, or one per channel, none of them 0.
        std: Vec<f64>
    ) {}
}

impl Transform<Tensor> for Normalize {
    type Output = Tensor;
    fn apply(&self, x: Tensor, _: &mut Rng) -> Result<Tensor> {
        normalize_as("Normalize", &x, &self.mean, &self.std)
    }
}

printed! { Normalize, t: "mean={:?}, std={:?}", t.mean, t.std }
