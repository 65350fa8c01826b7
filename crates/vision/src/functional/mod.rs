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

pub(crate) use blur::blur_as;
pub(crate) use colour::{
    adjust_brightness_as, adjust_contrast_as, adjust_hue_as, adjust_saturation_as, to_grayscale_as,
};
pub(crate) use geometry::{
    center_crop_as, check_crop, crop_as, five_crop_as, resize_as, ten_crop_as,
};
pub(crate) use tensor::{convert_dtype_as, erase_region, normalize_as};
pub(crate) use warp::{affine_as, rotate_as};
