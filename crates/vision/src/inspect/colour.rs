//! Pictures of maps.

use super::gradients::as_f32;
use crate::fault::invalid;
use crate::{Image, Mode};
use kiln_tensor::{InterpolateMode, InterpolateSize, Result, Tensor};

/// A map from numbers between 0 and 1 to colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColourMap {
    /// Black to white.
    Grey,
    /// Blue over green to red, MATLAB's.
    Jet,
    /// Violet over green to yellow, of even steps to the eye.
    Viridis,
    /// Blue over green to red without the bands of `Jet`.
    Turbo,
}

/// Colours at equal distances, interpolated linearly.
const VIRIDIS: [u32; 17] = [
    0x440154, 0x48186a, 0x472d7b, 0x424086, 0x3b528b, 0x33638d, 0x2c728e, 0x26828e, 0x21918c,
    0x1fa088, 0x28ae80, 0x3fbc73, 0x5ec962, 0x84d44b, 0xaddc30, 0xd8e219, 0xfde725,
];
const TURBO: [u32; 15] = [
    0x30123b, 0x4145ab, 0x4675ed, 0x39a2fc, 0x1bcfd4, 0x24eca6, 0x61fc6c, 0xa4fc3b, 0xd1e834,
    0xf3c63a, 0xfe9b2d, 0xf36315, 0xd93806, 0xb11901, 0x7a0402,
];

impl ColourMap {
    /// The colour of a number: red, green and blue. Numbers are clamped to 0 and 1, and NaN counts as 0.
    pub fn colour(self, x: f32) -> [u8; 3] {
        let x = if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) };
        let level = |v: f32| (v.clamp(0.0, 1.0) * 255.0).round() as u8;
        match self {
            ColourMap::Grey => [level(x); 3],
            ColourMap::Jet => [3.0, 2.0, 1.0].map(|peak| level(1.5 - (4.0 * x - peak).abs())),
            ColourMap::Viridis => interpolate_colour(&VIRIDIS, x),
            ColourMap::Turbo => interpolate_colour(&TURBO, x),
        }
    }

    /// A picture of a map `[h, w]`.
    ///
    /// # Errors
    /// If the map has another number of dims.
    #[track_caller]
    pub fn image(self, map: &Tensor) -> Result<Image> {
        let shape = map.shape()?;
        let [h, w] = shape[..] else {
            let message = format!("a map is [h, w], not {shape:?}");
            return Err(invalid("ColourMap::image", message));
        };
        let numbers = as_f32(map).to_vec::<f32>()?;
        let pixels: Vec<u8> = numbers.into_iter().flat_map(|x| self.colour(x)).collect();
        Image::from_bytes(pixels, w, h, Mode::RGB)
    }
}

fn interpolate_colour(colours: &[u32], x: f32) -> [u8; 3] {
    let position = x * (colours.len() - 1) as f32;
    let low = (position as usize).min(colours.len() - 2);
    let fraction = position - low as f32;
    [16, 8, 0].map(|shift| {
        let [a, b] = [colours[low], colours[low + 1]].map(|c| (c >> shift & 0xff) as f32);
        (a + (b - a) * fraction).round() as u8
    })
}

/// An image with a map `[h, w]` of numbers between 0 and 1 over it, resized to the image: `alpha` times the map's
/// colours plus `1 − alpha` times the image's.
///
/// # Errors
/// If the map has another number of dims or no numbers, or `alpha` is not between 0 and 1.
#[track_caller]
pub fn overlay(image: &Image, map: &Tensor, colours: ColourMap, alpha: f32) -> Result<Image> {
    if !(0.0..=1.0).contains(&alpha) {
        let message = format!("alpha is between 0 and 1, not {alpha}");
        return Err(invalid("overlay", message));
    }
    let shape = map.shape()?;
    if shape.len() != 2 || shape.contains(&0) {
        let message = format!("a map is [h, w], not {shape:?}");
        return Err(invalid("overlay", message));
    }
    let (width, height) = image.size();
    let size = InterpolateSize::Size(vec![height as i64, width as i64].into());
    let linear = InterpolateMode::Linear {
        align_corners: false,
    };
    let large = as_f32(map)
        .unsqueeze(0)
        .unsqueeze(0)
        .interpolate(size, linear);
    let over = colours.image(&large.squeeze(0).squeeze(0))?;
    let mut image = image.convert(Mode::RGB);
    for (under, over) in image.bytes_mut().iter_mut().zip(over.bytes()) {
        let mixed = f32::from(*over) * alpha + f32::from(*under) * (1.0 - alpha);
        *under = mixed.round() as u8;
    }
    Ok(image)
}
