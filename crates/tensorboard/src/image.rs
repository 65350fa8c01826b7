//! Images.

use crate::messages::Image;
use crate::writer::{floats, or_invalid};
use kiln_tensor::{DType, Result, Tensor};

/// A drawn figure: four bytes a pixel (red, green, blue, opacity), row by row. With the feature `svg`, an SVG is drawn by
/// `SummaryWriter::add_figure_svg`.
#[derive(Copy, Clone, Debug)]
pub struct Figure<'a> {
    /// Pixels in a row.
    pub width: usize,
    /// The number of rows.
    pub height: usize,
    /// The bytes.
    pub rgba: &'a [u8],
}

impl Figure<'_> {
    pub(crate) fn pixels(self) -> Result<Pixels, String> {
        let (width, height) = (self.width, self.height);
        if width.checked_mul(height).and_then(|n| n.checked_mul(4)) != Some(self.rgba.len()) {
            let bytes = self.rgba.len();
            return Err(format!(
                "{width} by {height} pixels of 4 bytes are not {bytes} bytes"
            ));
        }
        let opaque = self.rgba.chunks_exact(4).flat_map(|p| &p[..3]);
        Ok(Pixels {
            width,
            height,
            channels: 3,
            bytes: opaque.copied().collect(),
        })
    }
}

/// Bytes of pixels, row by row, channels last.
pub(crate) struct Pixels {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) channels: usize,
    pub(crate) bytes: Vec<u8>,
}

/// The factor that scales elements to 0 to 255: u8 have that range, others range from 0 to 1.
pub(crate) fn scale(t: &Tensor) -> f32 {
    match t.dtype() {
        DType::U8 => 1.0,
        _ => 255.0,
    }
}

impl Pixels {
    /// The pixels of a tensor whose dims have these letters. Several images are laid out eight in a row.
    #[track_caller]
    pub(crate) fn of_tensor(t: &Tensor, letters: &str, op: &str) -> Result<Pixels> {
        Pixels::arrange(t, letters, 8, op)
    }

    /// [`Pixels::of_tensor`] with at most `per_row` images in a row.
    #[track_caller]
    pub(crate) fn arrange(t: &Tensor, letters: &str, per_row: usize, op: &str) -> Result<Pixels> {
        let (shape, scale) = (t.shape()?, scale(t));
        or_invalid(
            op,
            Pixels::of_values(&floats(t)?, &shape, scale, letters, per_row),
        )
    }

    /// The pixels of images in row-major order; `scale` brings values to 0 to 255.
    pub(crate) fn of_values(
        values: &[f64],
        shape: &[usize],
        scale: f32,
        letters: &str,
        per_row: usize,
    ) -> Result<Pixels, String> {
        let letters: Vec<char> = letters.to_uppercase().chars().collect();
        let is_unique = |c: &char| letters.iter().filter(|d| *d == c).count() == 1;
        let known = letters.iter().all(|c| "NCHW".contains(*c) && is_unique(c));
        if !known
            || letters.len() != shape.len()
            || !letters.contains(&'H')
            || !letters.contains(&'W')
        {
            let letters: String = letters.into_iter().collect();
            return Err(format!(
                "the dims {letters} are not those of an image of the shape {shape:?}"
            ));
        }
        // Sizes and strides of n, c, h, w.
        let mut dims = [(1, 0); 4];
        let mut stride = 1;
        for (letter, size) in letters.iter().zip(shape).rev() {
            let dim = "NCHW".find(*letter).unwrap_or(0);
            dims[dim] = (*size, stride);
            stride *= size;
        }
        let [
            (count, image_stride),
            (given_channels, channel_stride),
            (rows, row_stride),
            (columns, column_stride),
        ] = dims;
        // A single channel is repeated as red, green and blue.
        let (channels, channel_stride) = if given_channels == 1 {
            (3, 0)
        } else {
            (given_channels, channel_stride)
        };
        if !(3..=4).contains(&channels) || stride == 0 {
            return Err(format!(
                "an image has 1, 3 or 4 channels and at least one pixel, not the shape {shape:?}"
            ));
        }
        let per_row = per_row.min(count);
        let (width, height) = (columns * per_row, rows * count.div_ceil(per_row));
        let mut bytes = vec![0; width * height * channels];
        for n in 0..count {
            let (left, top) = (n % per_row * columns, n / per_row * rows);
            for y in 0..rows {
                for x in 0..columns {
                    let from = n * image_stride + y * row_stride + x * column_stride;
                    let to = ((top + y) * width + left + x) * channels;
                    for c in 0..channels {
                        // NaN becomes 0.
                        bytes[to + c] = (values[from + c * channel_stride] as f32 * scale) as u8;
                    }
                }
            }
        }
        Ok(Pixels {
            width,
            height,
            channels,
            bytes,
        })
    }

    /// The PNG file of the image.
    pub(crate) fn png(&self) -> Result<Vec<u8>, String> {
        let size = |n: usize| u32::try_from(n).map_err(|_| format!("{n} pixels are too many"));
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, size(self.width)?, size(self.height)?);
        encoder.set_color(match self.channels {
            4 => png::ColorType::Rgba,
            _ => png::ColorType::Rgb,
        });
        encoder.set_depth(png::BitDepth::Eight);
        let written = encoder
            .write_header()
            .and_then(|mut w| w.write_image_data(&self.bytes));
        written.map_err(|e| e.to_string())?;
        Ok(file)
    }
}

/// The message of an image.
pub(crate) fn message(pixels: &Pixels) -> Result<Image, String> {
    Ok(Image {
        encoded_image_string: pixels.png()?,
        height: pixels.height as i32,
        width: pixels.width as i32,
        colorspace: pixels.channels as i32,
    })
}
