//! Image files: decoding and encoding.

use super::{Buffer, Image, Mode};
use crate::fault::{damaged, invalid, io, read_error};
use crate::transforms::Count;
use image::codecs::jpeg::JpegEncoder;
use image::{
    ColorType, DynamicImage, ImageDecoder, ImageEncoder, ImageError, ImageFormat, ImageReader,
    ImageResult,
};
use kiln_tensor::memory::{Budget, read_file};
use kiln_tensor::{Result, options};
use std::io::{self, Cursor, Write};
use std::path::Path;

/// The formats that can be read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Windows bitmaps.
    Bmp,
    /// GIF, of which the first picture is read.
    Gif,
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// WebP, written without loss.
    WebP,
}

options! {
    /// Limits of a decoder.
    Limits () {
        /// The maximum number of pixels that an image may have: by default PIL's limit for decompression bombs.
        max_pixels: Count = 178_956_970,
    }
}

options! {
    /// Options for writing an image.
    Encoding () {
        /// The quality of a JPEG, from 1 to 100.
        quality: u8 = 75,
    }
}

impl Format {
    /// The format by a file's extension.
    pub fn of_path(path: impl AsRef<Path>) -> Option<Format> {
        let end = path.as_ref().extension()?.to_str()?.to_ascii_lowercase();
        Some(match end.as_str() {
            "bmp" => Format::Bmp,
            "gif" => Format::Gif,
            "jpg" | "jpeg" | "jpe" | "jfif" => Format::Jpeg,
            "png" => Format::Png,
            "webp" => Format::WebP,
            _ => return None,
        })
    }

    fn known(self) -> ImageFormat {
        match self {
            Format::Bmp => ImageFormat::Bmp,
            Format::Gif => ImageFormat::Gif,
            Format::Jpeg => ImageFormat::Jpeg,
            Format::Png => ImageFormat::Png,
            Format::WebP => ImageFormat::WebP,
        }
    }
}

impl Image {
    /// Decodes the image in a file, whose format is found by its content: PIL's `Image.open`, read at once. As there,
    /// the orientation noted by a camera is left to the caller, and of 16 bits the upper 8 are kept.
    ///
    /// # Errors
    /// If the file can't be read, or as [`Image::decode`].
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<Image> {
        let path = path.as_ref();
        let image = read_file(path).and_then(|bytes| decode(&bytes, &Limits::new()));
        image.map_err(|e| io("Image::open", path, e))
    }

    /// Decodes the image in the bytes of a file, whose format is found by its content.
    ///
    /// # Errors
    /// If the bytes are not an image of a known [`Format`], are damaged, or exceed the default [`Limits`]; or if
    /// decoding takes more memory than the limit leaves
    /// ([`Device::set_memory_limit`](kiln_tensor::Device::set_memory_limit)).
    #[track_caller]
    pub fn decode(bytes: &[u8]) -> Result<Image> {
        Image::decode_with(bytes, &Limits::new())
    }

    /// [`Image::decode`] within limits.
    ///
    /// # Errors
    /// As [`Image::decode`].
    #[track_caller]
    pub fn decode_with(bytes: &[u8], limits: &Limits) -> Result<Image> {
        decode(bytes, limits).map_err(|e| read_error("Image::decode", e.to_string(), e.kind()))
    }

    /// Writes the image to a file, in the format that its name ends with. A reader sees the old file or the whole new
    /// one, never a part.
    ///
    /// # Errors
    /// If the name ends otherwise, as [`Image::encode`], or if the file can't be written; an older one then stays.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_with(path, &Encoding::new())
    }

    /// [`Image::save`] with options.
    ///
    /// # Errors
    /// As [`Image::save`], or if the quality is out of range.
    #[track_caller]
    pub fn save_with(&self, path: impl AsRef<Path>, encoding: &Encoding) -> Result<()> {
        let path = path.as_ref();
        let format = Format::of_path(path).ok_or_else(|| {
            let message = format!(
                "{}: the name doesn't say a format: it ends with bmp, gif, jpg, png or webp",
                path.display()
            );
            invalid("Image::save", message)
        })?;
        let bytes = encode(self, format, encoding)
            .map_err(|m| invalid("Image::save", format!("{}: {m}", path.display())))?;
        kiln_base::file::replace(path, |file| file.write_all(&bytes))
            .map_err(|e| io("Image::save", path, e))
    }

    /// The image encoded as the bytes of a file.
    ///
    /// # Errors
    /// If the format can't hold it: no pixels, too many, or alpha in a JPEG.
    #[track_caller]
    pub fn encode(&self, format: Format) -> Result<Vec<u8>> {
        self.encode_with(format, &Encoding::new())
    }

    /// [`Image::encode`] with options.
    ///
    /// # Errors
    /// As [`Image::encode`], or if the quality is out of range.
    #[track_caller]
    pub fn encode_with(&self, format: Format, encoding: &Encoding) -> Result<Vec<u8>> {
        encode(self, format, encoding).map_err(|m| invalid("Image::encode", m))
    }
}

/// Decodes the image in the bytes of a file, or returns what is wrong with them.
fn decode(bytes: &[u8], limits: &Limits) -> io::Result<Image> {
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
    let Some(format) = reader.format() else {
        let len = bytes.len();
        let message = format!("these {len} bytes are not an image of a known format");
        return Err(damaged(message));
    };
    let check = |w: u32, h: u32| match u64::from(w) * u64::from(h) <= limits.max_pixels.0 as u64 {
        true => Ok(()),
        false => Err(damaged(format!(
            "the image claims {w}x{h} pixels, and at most {} are read",
            limits.max_pixels.0
        ))),
    };
    let mut budget = Budget::new();
    let mut pixels = limits.max_pixels.0 as u64;
    // A PNG has its size before all that can be packed.
    if let (ImageFormat::Png, Some([w, h])) = (format, bytes.get(16..24).map(big_endian)) {
        check(w, h)?;
        pixels = u64::from(w) * u64::from(h);
    }
    let mut limits_of_decoder = image::Limits::no_limits();
    // Eight bytes per pixel (twice four numbers), and what a decoder needs for itself.
    let max_alloc = pixels.saturating_mul(8).saturating_add(1 << 22);
    limits_of_decoder.max_alloc = Some(max_alloc.min(budget.remaining()));
    reader.limits(limits_of_decoder);
    let decoder = reader.into_decoder().map_err(fault)?;
    let (w, h) = decoder.dimensions();
    check(w, h)?;
    if u64::from(w) * u64::from(h) > max_pixels(format, bytes) {
        let len = bytes.len();
        let message = format!("the image claims {w}x{h} pixels, more than {len} bytes hold");
        return Err(damaged(message));
    }
    if format == ImageFormat::Jpeg && !jpeg_ends(bytes) {
        let message = format!("the JPEG is cut off after {} bytes", bytes.len());
        return Err(damaged(message));
    }
    // The decoder has about as many bytes for itself. They are taken once it is known that there is room for them.
    let bytes = decoder.total_bytes().saturating_mul(2);
    budget.reserve::<u8>(
        usize::try_from(bytes).unwrap_or(usize::MAX),
        &format!("an image of {w}x{h} pixels"),
    )?;
    let image = read(decoder).map_err(fault)?;
    // Every GIF is decoded with alpha, even if it is opaque.
    let opaque = || image.bytes().iter().skip(3).step_by(4).all(|a| *a == 255);
    Ok(
        match format == ImageFormat::Gif && image.mode == Mode::RGBA && opaque() {
            true => image.into_mode(Mode::RGB),
            false => image,
        },
    )
}

/// True if the scans of a JPEG end with its end marker. Without it the decoder fills in the missing pixels.
fn jpeg_ends(bytes: &[u8]) -> bool {
    let mut position = 2;
    while let Some(n) = bytes
        .get(position..)
        .and_then(|b| b.iter().position(|b| *b == 0xFF))
    {
        position += n + 1;
        match bytes.get(position) {
            None => return false,
            Some(0xD9) => return true,
            // A stuffed 255 in a scan, or a marker without a length.
            Some(0x00 | 0x01 | 0xD0..=0xD8) => position += 1,
            Some(0xFF) => {}
            Some(_) => {
                let Some(length) = bytes.get(position + 1..position + 3) else {
                    return false;
                };
                position += 1 + usize::from(u16::from_be_bytes([length[0], length[1]]));
            }
        }
    }
    false
}

/// The maximum number of pixels in the bytes of a file, of formats for which that is bounded.
fn max_pixels(format: ImageFormat, bytes: &[u8]) -> u64 {
    /// The maximum number of bytes that a byte of zlib's stands for.
    const INFLATED: u64 = 1032;
    /// The maximum number of pixels that a bit of a GIF stands for: a code has two bits at least and is one of 4096,
    /// each of which stands for one pixel more than an earlier one.
    const LZW: u64 = 4096 / 2;
    /// A GIF may be larger than its picture; up to here it is read.
    const SCREEN: u64 = 1 << 20;
    let bits = 8 * bytes.len() as u64;
    match format {
        ImageFormat::Png => bits.saturating_mul(INFLATED),
        ImageFormat::Gif => bits.saturating_mul(LZW).max(SCREEN),
        // It is not compressed.
        ImageFormat::Bmp if bytes.get(30..34) == Some(&[0; 4]) => bits,
        _ => u64::MAX,
    }
}

/// Two numbers of 32 bits.
fn big_endian(bytes: &[u8]) -> [u32; 2] {
    let (numbers, _) = bytes.as_chunks::<4>();
    [0, 1].map(|n| numbers.get(n).map_or(0, |n| u32::from_be_bytes(*n)))
}

/// The error of a decoder.
fn fault(e: ImageError) -> io::Error {
    match e {
        ImageError::Limits(_) => {
            let message =
                format!("it takes more memory to decode than its size or the limit allows: {e}");
            io::Error::new(io::ErrorKind::OutOfMemory, message)
        }
        e => damaged(e.to_string()),
    }
}

/// Reads the pixels of a decoder.
fn read(decoder: impl ImageDecoder) -> ImageResult<Image> {
    let (w, h) = decoder.dimensions();
    let mode = match decoder.color_type() {
        ColorType::L8 => Mode::L,
        ColorType::La8 => Mode::LA,
        ColorType::Rgb8 => Mode::RGB,
        ColorType::Rgba8 => Mode::RGBA,
        _ => return DynamicImage::from_decoder(decoder).map(of_dynamic),
    };
    let mut pixels = Buffer::new(decoder.total_bytes() as usize);
    decoder.read_image(&mut pixels)?;
    Ok(Image::of(pixels, w as usize, h as usize, mode))
}

/// Converts a decoded image of more than eight bits per level; sixteen bits are cut to the upper eight.
fn of_dynamic(decoded: DynamicImage) -> Image {
    let (w, h) = (decoded.width() as usize, decoded.height() as usize);
    let high = |v: Vec<u16>| v.into_iter().map(|v| (v >> 8) as u8).collect::<Vec<u8>>();
    match decoded {
        DynamicImage::ImageLuma16(i) => Image::of(high(i.into_raw()), w, h, Mode::L),
        DynamicImage::ImageLumaA16(i) => Image::of(high(i.into_raw()), w, h, Mode::LA),
        DynamicImage::ImageRgb16(i) => Image::of(high(i.into_raw()), w, h, Mode::RGB),
        DynamicImage::ImageRgba16(i) => Image::of(high(i.into_raw()), w, h, Mode::RGBA),
        other => Image::of(other.into_rgba8().into_raw(), w, h, Mode::RGBA),
    }
}

/// Encodes the image as the bytes of a file, or returns why it can't.
fn encode(image: &Image, format: Format, encoding: &Encoding) -> Result<Vec<u8>, String> {
    if !(1..=100).contains(&encoding.quality) {
        return Err(format!(
            "a quality is from 1 to 100, not {}",
            encoding.quality
        ));
    }
    let (width, height) = image.size();
    let sizes = (u32::try_from(width), u32::try_from(height));
    let (Ok(w), Ok(h)) = sizes else {
        return Err(format!("{width}x{height} pixels are too many for a file"));
    };
    if w == 0 || h == 0 {
        return Err(format!("an image of {width}x{height} has no pixels"));
    }
    if format == Format::Jpeg && image.mode.has_alpha() {
        return Err(format!(
            "a JPEG holds no alpha, and the mode is {}",
            image.mode
        ));
    }
    // GIF and WebP are encoded from colours, and none of the three from grey with alpha.
    let image = match (format, image.mode) {
        (Format::Gif | Format::WebP, Mode::L) => &image.convert(Mode::RGB),
        (Format::Gif | Format::WebP | Format::Bmp, Mode::LA) => &image.convert(Mode::RGBA),
        _ => image,
    };
    let colour = match image.mode {
        Mode::L => image::ExtendedColorType::L8,
        Mode::LA => image::ExtendedColorType::La8,
        Mode::RGB => image::ExtendedColorType::Rgb8,
        Mode::RGBA => image::ExtendedColorType::Rgba8,
    };
    let mut out = Cursor::new(Vec::new());
    let written = match format {
        Format::Jpeg => JpegEncoder::new_with_quality(&mut out, encoding.quality).write_image(
            &image.pixels,
            w,
            h,
            colour,
        ),
        _ => image::write_buffer_with_format(&mut out, &image.pixels, w, h, colour, format.known()),
    };
    written.map_err(|e| e.to_string())?;
    Ok(out.into_inner())
}
