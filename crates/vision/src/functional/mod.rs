//! The transforms as functions, torchvision's `functional`, with PIL's results on images.

mod blur;
mod colour;
mod geometry;
mod tensor;
mod warp;

pub use blur::gaussian_blur;
pub use colour::{
    adjust_brightness, adjust_contrast, adjust_gamma, adjust_hue, adjust_saturation,
    adjust_sharpness, autocontrast, equalize, invert, posterize, rgb_to_grayscale, solarize,
};
pub use geometry::{
    center_crop, crop, five_crop, get_dimensions, hflip, pad, resize, resized_crop, ten_crop, vflip,
};
pub use tensor::{
    array_to_tensor, convert_image_dtype, erase, normalize, pil_to_tensor, to_dtype, to_image,
    to_pil_image, to_tensor,
};
pub use warp::{Affine, Rotate, affine, rotate};

pub(crate) use blur::blurred;
pub(crate) use colour::{brightened, contrasted, greyed, rotated_hue, saturated};
pub(crate) use geometry::{centred, cropped, fits, five, resized, ten};
pub(crate) use tensor::{converted, erased, normalized};
pub(crate) use warp::{mapped, rotated};
