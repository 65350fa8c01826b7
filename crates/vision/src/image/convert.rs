//! Conversions between modes.

use super::{Buffer, Image, Mode};
use crate::simd::wide;

impl Image {
    /// The image in another mode, as PIL converts: grey is `0.299 R + 0.587 G + 0.114 B`, alpha is dropped, or
    /// 255 where there was none.
    pub fn convert(&self, mode: Mode) -> Image {
        self.clone().into_mode(mode)
    }

    /// [`Image::convert`] that consumes the image.
    pub fn into_mode(self, mode: Mode) -> Image {
        let (from, to) = (self.mode, mode);
        let p = &self.pixels;
        let pixels = match (from, to) {
            _ if from == to => return self,
            (Mode::L, Mode::LA) => map_pixels(p, |[l]| [l, 255]),
            (Mode::L, Mode::RGB) => map_pixels(p, |[l]| [l; 3]),
            (Mode::L, Mode::RGBA) => map_pixels(p, |[l]| [l, l, l, 255]),
            (Mode::LA, Mode::L) => map_pixels(p, |[l, _]| [l]),
            (Mode::LA, Mode::RGB) => map_pixels(p, |[l, _]| [l; 3]),
            (Mode::LA, Mode::RGBA) => map_pixels(p, |[l, a]| [l, l, l, a]),
            (Mode::RGB, Mode::L) => {
                let (pixels, _) = p.as_chunks::<3>();
                let mut out = Buffer::new(pixels.len());
                convert_to_grey(pixels, &mut out);
                out
            }
            (Mode::RGB, Mode::LA) => map_pixels(p, |c| [grey(c), 255]),
            (Mode::RGB, Mode::RGBA) => map_pixels(p, |[r, g, b]| [r, g, b, 255]),
            (Mode::RGBA, Mode::L) => map_pixels(p, |[r, g, b, _]| [grey([r, g, b])]),
            (Mode::RGBA, Mode::LA) => map_pixels(p, |[r, g, b, a]| [grey([r, g, b]), a]),
            (Mode::RGBA, Mode::RGB) => map_pixels(p, |[r, g, b, _]| [r, g, b]),
            (Mode::L, Mode::L) | (Mode::LA, Mode::LA) => return self,
            (Mode::RGB, Mode::RGB) | (Mode::RGBA, Mode::RGBA) => return self,
        };
        Image::of(pixels, self.width, self.height, mode)
    }
}

/// PIL's grey (ITU-R 601-2), in 16 bits of fraction.
#[inline(always)]
fn grey([r, g, b]: [u8; 3]) -> u8 {
    let sum = u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471;
    ((sum + 0x8000) >> 16) as u8
}

wide! {
    fn convert_to_grey(pixels: &[[u8; 3]], out: &mut [u8]) {
        for (out, pixel) in out.iter_mut().zip(pixels) {
            *out = grey(*pixel);
        }
    }
}

fn map_pixels<const A: usize, const B: usize>(
    pixels: &[u8],
    f: impl Fn([u8; A]) -> [u8; B],
) -> Buffer {
    let mut out = Buffer::new(pixels.len() / A * B);
    let (from, _) = pixels.as_chunks::<A>();
    let (to, _) = out.as_chunks_mut::<B>();
    for (to, from) in to.iter_mut().zip(from) {
        *to = f(*from);
    }
    out
}
