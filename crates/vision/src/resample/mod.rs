//! Resizing, as PIL does: two passes, along columns and along rows, in fixed point.

mod filter;
mod passes;

use crate::image::{Buffer, Image, Mode};
use filter::Taps;
use std::fmt;

/// The filter that computes new pixels from old ones: torchvision's `InterpolationMode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// The same as `Nearest` for images.
    NearestExact,
    /// A triangle of one pixel to each side.
    #[default]
    Bilinear,
    /// Cubic convolution (Keys, 1981) of two pixels to each side, `a = −0.5`.
    Bicubic,
    /// The mean of the covered pixels.
    Box,
    /// A sinc of one pixel to each side, in Hamming's window.
    Hamming,
    /// A sinc of three pixels to each side, in the window of another (Lanczos).
    Lanczos,
}

impl fmt::Display for Interpolation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Interpolation::Nearest => "nearest",
            Interpolation::NearestExact => "nearest-exact",
            Interpolation::Bilinear => "bilinear",
            Interpolation::Bicubic => "bicubic",
            Interpolation::Box => "box",
            Interpolation::Hamming => "hamming",
            Interpolation::Lanczos => "lanczos",
        })
    }
}

impl Interpolation {
    pub(crate) fn is_nearest(self) -> bool {
        matches!(self, Interpolation::Nearest | Interpolation::NearestExact)
    }
}

/// A rectangle inside an image. It is public only because a sealed trait uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first column.
    pub left: usize,
    /// The first row.
    pub top: usize,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

impl Window {
    /// The window of this width and height whose first pixel is in column `left` and row `top`.
    pub(crate) fn new((left, top): (usize, usize), (width, height): (usize, usize)) -> Window {
        Window {
            left,
            top,
            width,
            height,
        }
    }
}

/// The pixels of an image in a window.
#[derive(Clone, Copy)]
struct View<'a> {
    /// From the window's first pixel on.
    pixels: &'a [u8],
    /// Bytes from row to row.
    stride: usize,
    width: usize,
    height: usize,
}

impl<'a> View<'a> {
    fn new(image: &'a Image, window: Window) -> View<'a> {
        let stride = image.width() * image.channels();
        let offset = window.top * stride + window.left * image.channels();
        View {
            pixels: image.bytes().get(offset..).unwrap_or_default(),
            stride,
            width: window.width,
            height: window.height,
        }
    }

    /// The rows, each with the bytes after it.
    fn rows(self) -> impl Iterator<Item = &'a [u8]> {
        let rows = self.pixels.chunks(self.stride.max(1));
        rows.take(if self.width == 0 { 0 } else { self.height })
    }
}

/// The pixels in a window.
pub(crate) fn crop(image: &Image, window: Window) -> Image {
    let view = View::new(image, window);
    let pixels = dense(view, window.width * image.channels());
    Image::of(pixels, window.width, window.height, image.mode())
}

/// The bytes of a view, `width` a row.
fn dense(view: View, width: usize) -> Buffer {
    let mut out = Buffer::new(width * view.height);
    for (to, from) in out.chunks_exact_mut(width.max(1)).zip(view.rows()) {
        to.copy_from_slice(&from[..width]);
    }
    out
}

/// The weight of each of `len` input pixels in each of `out` output pixels along an axis: `out` rows of `len`
/// weights.
pub(crate) fn matrix(filter: Interpolation, len: usize, out: usize) -> Vec<f64> {
    let mut rows = vec![0.0; len * out];
    let mut matrix_rows = rows.chunks_exact_mut(len);
    filter::weights(filter, len, out, |start, weights| {
        if let Some(row) = matrix_rows.next() {
            row[start..start + weights.len()].copy_from_slice(weights);
        }
    });
    rows
}

/// Resizes a window of an image to `width` and `height`. None of the sizes is 0.
pub(crate) fn resized(
    image: &Image,
    window: Window,
    (width, height): (usize, usize),
    filter: Interpolation,
) -> Image {
    let mode = image.mode();
    if filter.is_nearest() {
        return nearest(image, window, (width, height));
    }
    // Colours are weighted by alpha.
    if mode.has_alpha() {
        let weighted = premultiply(image, window);
        let full_window = Window::new((0, 0), (window.width, window.height));
        let mut out = resize_opaque(&weighted, full_window, (width, height), filter);
        unpremultiply(&mut out);
        return out;
    }
    resize_opaque(image, window, (width, height), filter)
}

fn resize_opaque(
    image: &Image,
    window: Window,
    (width, height): (usize, usize),
    filter: Interpolation,
) -> Image {
    let mode = image.mode();
    let view = View::new(image, window);
    let pixels = match mode {
        Mode::L => both::<1>(view, width, height, filter),
        Mode::LA => both::<2>(view, width, height, filter),
        Mode::RGB => both::<3>(view, width, height, filter),
        Mode::RGBA => both::<4>(view, width, height, filter),
    };
    Image::of(pixels, width, height, mode)
}

/// Runs both passes; one that changes nothing is left out.
fn both<const C: usize>(view: View, width: usize, height: usize, filter: Interpolation) -> Buffer {
    let rows = Taps::new(filter, view.height, height);
    if width == view.width {
        if height == view.height {
            return dense(view, width * C);
        }
        return passes::resample_columns(view.pixels, view.stride, width * C, &rows);
    }
    let columns = Taps::new(filter, view.width, width);
    if height == view.height {
        return passes::resample_rows::<C>(view, &columns).dense(width * C);
    }
    // Rows come first where they shrink by more than twice as much as the columns, as in Pillow 13. The order matters
    // because levels are rounded between the passes.
    let gone = (
        view.width as i64 - width as i64,
        view.height as i64 - height as i64,
    );
    if gone.1 > 0 && gone.1 > 2 * gone.0 {
        let down = passes::resample_columns(view.pixels, view.stride, view.width * C, &rows);
        let view = View {
            pixels: &down,
            stride: view.width * C,
            width: view.width,
            height,
        };
        return passes::resample_rows::<C>(view, &columns).dense(width * C);
    }
    let across = passes::resample_rows::<C>(view, &columns);
    passes::resample_columns(&across.bytes, across.stride, width * C, &rows)
}

/// The pixel under each new pixel's centre, found by steps that add up as PIL's do.
fn nearest(image: &Image, window: Window, (width, height): (usize, usize)) -> Image {
    let c = image.channels();
    let view = View::new(image, window);
    let source_positions = |len: usize, out: usize| {
        let step = len as f64 / out as f64;
        let mut position = step * 0.5;
        let mut next = move || {
            let source = (position as usize).min(len - 1);
            position += step;
            source
        };
        (0..out).map(|_| next()).collect::<Vec<usize>>()
    };
    let columns = source_positions(window.width, width);
    let mut out = Vec::with_capacity(width * height * c);
    for y in source_positions(window.height, height) {
        let row = &view.pixels[y * view.stride..];
        for x in &columns {
            out.extend_from_slice(&row[x * c..][..c]);
        }
    }
    Image::of(out, width, height, image.mode())
}

/// The window with its colours times alpha.
pub(crate) fn premultiply(image: &Image, window: Window) -> Image {
    let mut out = crop(image, window);
    let c = out.channels();
    for pixel in out.bytes_mut().chunks_exact_mut(c) {
        if let [colours @ .., alpha] = pixel {
            for colour in colours {
                let product = u32::from(*colour) * u32::from(*alpha) + 128;
                *colour = ((product + (product >> 8)) >> 8) as u8;
            }
        }
    }
    out
}

/// Divides the colours by alpha again.
pub(crate) fn unpremultiply(image: &mut Image) {
    let c = image.channels();
    for pixel in image.bytes_mut().chunks_exact_mut(c) {
        if let [colours @ .., alpha @ 1..=254] = pixel {
            for colour in colours {
                *colour = (u32::from(*colour) * 255 / u32::from(*alpha)).min(255) as u8;
            }
        }
    }
}
