//! Decoded images.

mod buffer;
mod codec;
mod convert;
mod tensor;

pub(crate) use buffer::Buffer;
pub use codec::{Encoding, Format, Limits};

use crate::fault::invalid;
use kiln_tensor::Result;
use std::fmt;

/// The channels of a pixel, by PIL's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Grey.
    L,
    /// Grey and alpha.
    LA,
    /// Red, green, blue.
    RGB,
    /// Red, green, blue, alpha.
    RGBA,
}

impl Mode {
    /// The number of channels of a pixel.
    pub fn channels(self) -> usize {
        match self {
            Mode::L => 1,
            Mode::LA => 2,
            Mode::RGB => 3,
            Mode::RGBA => 4,
        }
    }

    /// The mode with `channels` channels, 1 to 4.
    pub fn of_channels(channels: usize) -> Option<Mode> {
        [Mode::L, Mode::LA, Mode::RGB, Mode::RGBA]
            .into_iter()
            .find(|m| m.channels() == channels)
    }

    /// True if the last channel is alpha.
    pub fn has_alpha(self) -> bool {
        matches!(self, Mode::LA | Mode::RGBA)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Mode::L => "L",
            Mode::LA => "LA",
            Mode::RGB => "RGB",
            Mode::RGBA => "RGBA",
        })
    }
}

/// A decoded image: rows of pixels from the top, each pixel 1 to 4 adjacent `u8` (HWC). It takes the place of
/// torchvision's PIL images.
///
/// ```
/// use kiln_vision::{Format, Image, Mode};
///
/// let red = Image::filled(4, 2, Mode::RGB, &[255, 0, 0])?;
/// let png = red.encode(Format::Png)?;
/// assert_eq!(Image::decode(&png)?, red);
/// assert_eq!(red.convert(Mode::L).bytes()[0], 76);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    mode: Mode,
    /// `height · width · channels` numbers.
    pixels: Buffer,
}

impl Image {
    /// An image of the bytes of its pixels, row by row.
    ///
    /// # Errors
    /// If there are not `width · height · channels` bytes.
    #[track_caller]
    pub fn from_bytes(
        pixels: impl Into<Vec<u8>>,
        width: usize,
        height: usize,
        mode: Mode,
    ) -> Result<Image> {
        let pixels: Vec<u8> = pixels.into();
        let expected_len = area(width, height, mode);
        if expected_len != Some(pixels.len()) {
            let message = format!(
                "an image {width} wide and {height} high in mode {mode} has {} bytes a pixel, but {} bytes are given",
                mode.channels(),
                pixels.len()
            );
            return Err(invalid("Image::from_bytes", message));
        }
        Ok(Image::of(pixels, width, height, mode))
    }

    /// An image of one colour, which has one number per channel.
    ///
    /// # Errors
    /// If the colour has another number of numbers, or there is no memory for the image.
    #[track_caller]
    pub fn filled(width: usize, height: usize, mode: Mode, colour: &[u8]) -> Result<Image> {
        if colour.len() != mode.channels() {
            let message = format!("{colour:?} is not a colour of mode {mode}");
            return Err(invalid("Image::filled", message));
        }
        let fits = |n: &usize| Vec::<u8>::new().try_reserve_exact(*n).is_ok();
        let Some(bytes) = area(width, height, mode).filter(fits) else {
            let message = format!("there is no memory for an image {width} wide and {height} high");
            return Err(invalid("Image::filled", message));
        };
        let mut pixels = Buffer::new(bytes);
        let mut done = colour.len().min(bytes);
        pixels[..done].copy_from_slice(&colour[..done]);
        // Doubles the filled part by copying it after itself.
        while done < bytes {
            let more = done.min(bytes - done);
            pixels.copy_within(..more, done);
            done += more;
        }
        Ok(Image::of(pixels, width, height, mode))
    }

    /// The number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Columns and rows: PIL's `size`.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// The channels of a pixel.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The number of channels of a pixel.
    pub fn channels(&self) -> usize {
        self.mode.channels()
    }

    /// The numbers of the pixels, row by row.
    pub fn bytes(&self) -> &[u8] {
        &self.pixels
    }

    /// The numbers of the pixels, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.pixels
    }

    /// The numbers of the pixels, row by row.
    pub fn into_bytes(self) -> Vec<u8> {
        self.pixels.into_vec()
    }

    /// The numbers of the pixel in column `x` of row `y`, if there is one.
    pub fn pixel(&self, x: usize, y: usize) -> Option<&[u8]> {
        let (inside, c) = (x < self.width && y < self.height, self.channels());
        inside.then(|| &self.pixels[(y * self.width + x) * c..][..c])
    }

    /// An image of bytes whose length is known to match.
    pub(crate) fn of(pixels: impl Into<Buffer>, width: usize, height: usize, mode: Mode) -> Image {
        let pixels = pixels.into();
        debug_assert_eq!(area(width, height, mode), Some(pixels.len()));
        Image {
            width,
            height,
            mode,
            pixels,
        }
    }
}

/// The number of bytes of an image, or `None` on overflow.
fn area(width: usize, height: usize, mode: Mode) -> Option<usize> {
    width.checked_mul(height)?.checked_mul(mode.channels())
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Image {
            width,
            height,
            mode,
            ..
        } = self;
        write!(f, "<Image mode={mode} size={width}x{height}>")
    }
}
