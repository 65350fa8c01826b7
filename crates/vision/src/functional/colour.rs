//! Colours of images.

use crate::fault::invalid;
use crate::image::{Image, Mode};
use crate::simd::wide;
use kiln_tensor::Result;

/// Checks that a factor is finite and at least 0, and narrows it to f32.
#[track_caller]
fn factor(op: &str, name: &str, value: f64) -> Result<f32> {
    if value.is_finite() && value >= 0.0 {
        return Ok(value as f32);
    }
    let message = format!("{name} is not negative, but it is {value}");
    Err(invalid(op, message))
}

/// `v as u8` in operations that vectorise: adding 2²³ to a float rounds its fraction away.
#[inline(always)]
fn to_level(v: f32) -> u8 {
    const BIG: f32 = (1 << 23) as f32;
    let v = if v > 0.0 { v } else { 0.0 };
    let v = if v < 255.0 { v } else { 255.0 };
    let rounded = v + BIG - BIG;
    let floor = if rounded > v { rounded - 1.0 } else { rounded };
    (floor + BIG).to_bits() as u8
}

wide! {
    /// `from + factor · (to − from)` of levels, rounded down and clamped to levels.
    fn blend(from: &[u8], to: &mut [u8], factor: f32) {
        for (to, from) in to.iter_mut().zip(from) {
            let (a, b) = (i32::from(*from), i32::from(*to));
            *to = to_level(a as f32 + factor * (b - a) as f32);
        }
    }
}

wide! {
    /// The same with one level as `from`.
    fn blend_one(from: u8, to: &mut [u8], factor: f32) {
        let from = i32::from(from);
        for to in to {
            *to = to_level(from as f32 + factor * (i32::from(*to) - from) as f32);
        }
    }
}

/// The image extrapolated from another one: PIL's `Image.blend`.
fn blend_images(mut image: Image, from: &Image, factor: f32) -> Image {
    if factor != 1.0 {
        blend(from.bytes(), image.bytes_mut(), factor);
    }
    image
}

/// The image extrapolated from a grey. Alpha stays.
fn blend_with_grey(mut image: Image, from: u8, factor: f32) -> Image {
    if factor == 1.0 {
        return image;
    }
    if !image.mode().has_alpha() {
        blend_one(from, image.bytes_mut(), factor);
        return image;
    }
    let mut table: [u8; 256] = std::array::from_fn(|v| v as u8);
    blend_one(from, &mut table, factor);
    map_colours(&image, |v| table[usize::from(v)])
}

/// The image with `f` applied to every level of its colours. Alpha stays.
fn map_colours(image: &Image, f: impl Fn(u8) -> u8) -> Image {
    let mut out = image.clone();
    match image.mode() {
        Mode::L | Mode::RGB => out.bytes_mut().iter_mut().for_each(|v| *v = f(*v)),
        Mode::LA => {
            let (pixels, _) = out.bytes_mut().as_chunks_mut::<2>();
            pixels.iter_mut().for_each(|[l, _]| *l = f(*l));
        }
        Mode::RGBA => {
            let (pixels, _) = out.bytes_mut().as_chunks_mut::<4>();
            let colours = pixels.iter_mut();
            colours.for_each(|[r, g, b, _]| (*r, *g, *b) = (f(*r), f(*g), f(*b)));
        }
    }
    out
}

/// Brighter or darker: 0 gives black, 1 the image, 2 twice the brightness.
///
/// # Errors
/// If the factor is negative or not finite.
#[track_caller]
pub fn adjust_brightness(image: &Image, brightness_factor: f64) -> Result<Image> {
    adjust_brightness_as("adjust_brightness", image.clone(), brightness_factor)
}

#[track_caller]
pub(crate) fn adjust_brightness_as(op: &str, image: Image, by: f64) -> Result<Image> {
    let factor_value = factor(op, "brightness_factor", by)?;
    Ok(blend_with_grey(image, 0, factor_value))
}

/// More or less contrast: 0 gives the mean grey everywhere, 1 the image.
///
/// # Errors
/// If the factor is negative or not finite.
#[track_caller]
pub fn adjust_contrast(image: &Image, contrast_factor: f64) -> Result<Image> {
    adjust_contrast_as("adjust_contrast", image.clone(), contrast_factor)
}

#[track_caller]
pub(crate) fn adjust_contrast_as(op: &str, image: Image, by: f64) -> Result<Image> {
    let factor_value = factor(op, "contrast_factor", by)?;
    let grey = image.convert(Mode::L);
    let sum: u64 = grey.bytes().iter().map(|v| u64::from(*v)).sum();
    let mean = (sum as f64 / grey.bytes().len().max(1) as f64 + 0.5) as u8;
    Ok(blend_with_grey(image, mean, factor_value))
}

/// More or less colour: 0 gives grey, 1 the image.
///
/// # Errors
/// If the factor is negative or not finite.
#[track_caller]
pub fn adjust_saturation(image: &Image, saturation_factor: f64) -> Result<Image> {
    adjust_saturation_as("adjust_saturation", image.clone(), saturation_factor)
}

#[track_caller]
pub(crate) fn adjust_saturation_as(op: &str, image: Image, by: f64) -> Result<Image> {
    let factor_value = factor(op, "saturation_factor", by)?;
    let grey = image.convert(match image.mode().has_alpha() {
        true => Mode::LA,
        false => Mode::L,
    });
    let grey = grey.into_mode(image.mode());
    Ok(blend_images(image, &grey, factor_value))
}

/// Other hues: the hue circle rotated by this fraction of it, from −0.5 to 0.5. Grey images stay.
///
/// # Errors
/// If the factor lies outside, or is NaN.
#[track_caller]
pub fn adjust_hue(image: &Image, hue_factor: f64) -> Result<Image> {
    adjust_hue_as("adjust_hue", image.clone(), hue_factor)
}

#[track_caller]
pub(crate) fn adjust_hue_as(op: &str, mut image: Image, by: f64) -> Result<Image> {
    if !(-0.5..=0.5).contains(&by) {
        let message = format!("hue_factor is in [-0.5, 0.5], not {by}");
        return Err(invalid(op, message));
    }
    let shift = (by * 255.0) as i32 as u8;
    let rotate = |pixel: [u8; 3]| {
        let [h, s, v] = hsv(pixel);
        rgb([h.wrapping_add(shift), s, v])
    };
    match image.mode() {
        Mode::L | Mode::LA => {}
        Mode::RGB => {
            let (pixels, _) = image.bytes_mut().as_chunks_mut::<3>();
            pixels.iter_mut().for_each(|p| *p = rotate(*p));
        }
        Mode::RGBA => {
            let (pixels, _) = image.bytes_mut().as_chunks_mut::<4>();
            for [r, g, b, _] in pixels {
                [*r, *g, *b] = rotate([*r, *g, *b]);
            }
        }
    }
    Ok(image)
}

/// Hue, saturation and value in levels, as PIL has them.
fn hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
    let (max, min) = (r.max(g).max(b), r.min(g).min(b));
    if max == min {
        return [0, 0, max];
    }
    let range = f32::from(max - min);
    let distance = |v: u8| f64::from(f32::from(max - v) / range);
    let (red, green, blue) = (distance(r), distance(g), distance(b));
    let sixths = if r == max {
        (blue as f32 - green as f32) as f64
    } else if g == max {
        2.0 + red - blue
    } else {
        4.0 + green - red
    };
    let hue = (f64::from(sixths as f32) / 6.0 + 1.0) % 1.0;
    let saturation = range / f32::from(max);
    let level = |v: f64| (v * 255.0) as u8;
    [
        level(f64::from(hue as f32)),
        level(f64::from(saturation)),
        max,
    ]
}

/// Red, green and blue of hue, saturation and value.
fn rgb([h, s, v]: [u8; 3]) -> [u8; 3] {
    if s == 0 {
        return [v; 3];
    }
    let sixths = f64::from(h) * 6.0 / 255.0;
    let sector = sixths.floor();
    let (f, s, value) = (
        f64::from((sixths - sector) as f32),
        f64::from((f64::from(s) / 255.0) as f32),
        f64::from(v),
    );
    let level = |fraction: f64| (value * fraction).round() as u8;
    let p = level(1.0 - s);
    let q = level(1.0 - s * f);
    let t = level(1.0 - s * (1.0 - f));
    match sector as u8 % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}

/// Levels to the power of `gamma`, times `gain`: `255 · gain · (v / 255)^gamma`.
///
/// # Errors
/// If either is negative or not finite.
#[track_caller]
pub fn adjust_gamma(image: &Image, gamma: f64, gain: f64) -> Result<Image> {
    factor("adjust_gamma", "gamma", gamma)?;
    factor("adjust_gamma", "gain", gain)?;
    let table: [u8; 256] = std::array::from_fn(|v| {
        let power = (v as f64 / 255.0).powf(gamma);
        ((255.0 + 1.0 - 1e-3) * gain * power) as u8
    });
    Ok(map_colours(image, |v| table[usize::from(v)]))
}

/// Sharper or softer: 0 gives the smoothed image, 1 the image, 2 a sharpened one. Pixels at the edge stay.
///
/// # Errors
/// If the factor is negative or not finite.
#[track_caller]
pub fn adjust_sharpness(image: &Image, sharpness_factor: f64) -> Result<Image> {
    let factor_value = factor("adjust_sharpness", "sharpness_factor", sharpness_factor)?;
    let smooth = smooth(image);
    Ok(blend_images(image.clone(), &smooth, factor_value))
}

/// PIL's `SMOOTH`: every pixel five times and its eight neighbours once.
fn smooth(image: &Image) -> Image {
    let (w, h, c) = (image.width(), image.height(), image.channels());
    let colours = c - usize::from(image.mode().has_alpha());
    let (from, mut out) = (image.bytes(), image.clone());
    for y in 1..h.saturating_sub(1) {
        for x in 1..w.saturating_sub(1) {
            for colour in 0..colours {
                let get = |y: usize, x: usize| f32::from(from[(y * w + x) * c + colour]);
                let mut sum = 0.5;
                // The order matters because of rounding.
                for row in [y + 1, y, y - 1] {
                    let middle = if row == y { 5.0f32 } else { 1.0 } / 13.0;
                    let side = 1.0f32 / 13.0;
                    sum += get(row, x - 1) * side + get(row, x) * middle + get(row, x + 1) * side;
                }
                out.bytes_mut()[(y * w + x) * c + colour] = sum as u8;
            }
        }
    }
    out
}

/// Every level as far from white as it was from black. Alpha stays.
pub fn invert(image: &Image) -> Image {
    map_colours(image, |v| !v)
}

/// The upper `bits` bits of every level. Alpha stays.
///
/// # Errors
/// If there are more than 8.
#[track_caller]
pub fn posterize(image: &Image, bits: usize) -> Result<Image> {
    if bits > 8 {
        let message = format!("a level has 8 bits, not {bits}");
        return Err(invalid("posterize", message));
    }
    let mask = !((1u32 << (8 - bits)) - 1) as u8;
    Ok(map_colours(image, |v| v & mask))
}

/// Levels of `threshold` and above, inverted. Alpha stays.
///
/// # Errors
/// If the threshold is NaN.
#[track_caller]
pub fn solarize(image: &Image, threshold: f64) -> Result<Image> {
    if threshold.is_nan() {
        return Err(invalid("solarize", "the threshold is NaN"));
    }
    // The smallest level that is inverted, and 256 for none.
    let start = threshold.ceil().clamp(0.0, 256.0) as u16;
    let solarized = |v: u8| {
        if u16::from(v) >= start { !v } else { v }
    };
    Ok(map_colours(image, solarized))
}

/// Maps every colour through a table that is computed from its histogram.
fn map_histogram(image: &Image, table: impl Fn(&[u64; 256]) -> Option<[u8; 256]>) -> Image {
    let (c, mut out) = (image.channels(), image.clone());
    let colours = c - usize::from(image.mode().has_alpha());
    for colour in 0..colours {
        let mut counts = [0; 256];
        let levels = image.bytes().iter().skip(colour).step_by(c);
        levels.for_each(|v| counts[usize::from(*v)] += 1);
        if let Some(table) = table(&counts) {
            let levels = out.bytes_mut().iter_mut().skip(colour).step_by(c);
            levels.for_each(|v| *v = table[usize::from(*v)]);
        }
    }
    out
}

/// Every colour stretched, so that its darkest level becomes 0 and its brightest 255. Alpha stays.
pub fn autocontrast(image: &Image) -> Image {
    map_histogram(image, |counts| {
        let low = counts.iter().position(|n| *n > 0)?;
        let high = counts.iter().rposition(|n| *n > 0)?;
        let scale = 255.0 / (high - low) as f64;
        let offset = -(low as f64) * scale;
        (high > low).then(|| std::array::from_fn(|v| (v as f64 * scale + offset) as u8))
    })
}

/// Equalises the histogram of every colour. Alpha stays.
pub fn equalize(image: &Image) -> Image {
    map_histogram(image, |counts| {
        let last = counts.iter().rposition(|n| *n > 0)?;
        let step = counts[..last].iter().sum::<u64>() / 255;
        let mut sum = step / 2;
        (step > 0).then(|| {
            counts.map(|n| {
                let level = (sum / step).min(255) as u8;
                sum += n;
                level
            })
        })
    })
}

/// The image in grey, of 1 channel or of 3 that are equal.
///
/// # Errors
/// If it is another number of channels.
#[track_caller]
pub fn rgb_to_grayscale(image: &Image, num_output_channels: usize) -> Result<Image> {
    to_grayscale_as("rgb_to_grayscale", image, num_output_channels)
}

#[track_caller]
pub(crate) fn to_grayscale_as(op: &str, image: &Image, channels: usize) -> Result<Image> {
    match channels {
        1 => Ok(image.convert(Mode::L)),
        3 => Ok(image.convert(Mode::L).into_mode(Mode::RGB)),
        _ => {
            let message = format!("num_output_channels is 1 or 3, not {channels}");
            Err(invalid(op, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_levels_are_those_of_a_cast() {
        let mut draw = fastrand::Rng::with_seed(4);
        let special = [
            0.0, -0.0, 0.5, 1.5, 254.5, 255.0, 256.0, -1.0, 1e30, -1e30, 0.99999994,
        ];
        let some = (0..100_000).map(|_| draw.f32() * 300.0 - 20.0);
        let edges = (0..256).flat_map(|n| {
            let n = n as f32;
            [n, n.next_up(), n.next_down()]
        });
        for v in special.into_iter().chain(some).chain(edges) {
            assert_eq!(to_level(v), v as u8, "{v}");
        }
    }
}
