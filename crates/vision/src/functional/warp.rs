//! Rotated and sheared images.

use crate::fault::invalid;
use crate::image::{Image, Mode};
use crate::picture::check_room;
use crate::resample::{Interpolation, Window, premultiply, unpremultiply};
use crate::transforms::Fill;
use kiln_tensor::{Result, options};
use std::ops::Range;

options! {
    /// Options of [`rotate`].
    Rotate (
        /// Degrees, counterclockwise.
        angle: f64
    ) {
        /// The interpolation: `Nearest`, `Bilinear` or `Bicubic`.
        interpolation: Interpolation = Interpolation::Nearest,
        /// If true, the image is enlarged to hold all of the rotated one.
        expand: bool = false,
        /// The column and row of the fixed point; the middle, unless given.
        center: Option<(f64, f64)> = None,
        /// The colour outside the old image.
        fill: Fill = 0u8,
    }
}

options! {
    /// Options of [`affine`].
    Affine () {
        /// Degrees, clockwise.
        angle: f64 = 0.0,
        /// Columns to the right and rows down.
        translate: (f64, f64) = (0.0, 0.0),
        /// The scale, above 0.
        scale: f64 = 1.0,
        /// Degrees along the rows and along the columns.
        shear: (f64, f64) = (0.0, 0.0),
        /// The interpolation: `Nearest`, `Bilinear` or `Bicubic`.
        interpolation: Interpolation = Interpolation::Nearest,
        /// The colour outside the old image.
        fill: Fill = 0u8,
        /// The column and row of the fixed point of rotation, scale and shear; the middle, unless given.
        center: Option<(f64, f64)> = None,
    }
}

/// Maps a position in the new image to the old one: `(a x + b y + c, d x + e y + f)`.
type Matrix = [f64; 6];

fn transform_point([a, b, c, d, e, f]: Matrix, x: f64, y: f64) -> (f64, f64) {
    (a * x + b * y + c, d * x + e * y + f)
}

/// The image, rotated: `rotate(&x, 30.0)`, `rotate(&x, Rotate::new(30.0).expand(true))`.
///
/// # Errors
/// If an argument is not finite, the fill is not a colour of the image, or the interpolation is not supported here.
#[track_caller]
pub fn rotate(image: &Image, rotate: impl Into<Rotate>) -> Result<Image> {
    rotate_as("rotate", image, &rotate.into())
}

#[track_caller]
pub(crate) fn rotate_as(op: &str, image: &Image, options: &Rotate) -> Result<Image> {
    let numbers = [
        options.angle,
        options.center.map_or(0.0, |c| c.0),
        options.center.map_or(0.0, |c| c.1),
    ];
    check_finite(op, &numbers)?;
    let angle = options.angle.rem_euclid(360.0);
    let (w, h) = image.size();
    if options.center.is_none() {
        let quarter = options.expand || w == h;
        if angle == 0.0 {
            return Ok(image.clone());
        } else if angle == 180.0 {
            return Ok(gather_pixels(image, (w, h), |x, y| (w - 1 - x, h - 1 - y)));
        } else if angle == 90.0 && quarter {
            return Ok(gather_pixels(image, (h, w), |x, y| (w - 1 - y, x)));
        } else if angle == 270.0 && quarter {
            return Ok(gather_pixels(image, (h, w), |x, y| (y, h - 1 - x)));
        }
    }
    let (cx, cy) = options.center.unwrap_or((w as f64 / 2.0, h as f64 / 2.0));
    let radians = -angle.to_radians();
    // Rounded to 15 digits, as Python does, so that quarter turns are exact.
    let digits = |v: f64| format!("{v:.15}").parse().unwrap_or(v);
    let (sin, cos) = (digits(radians.sin()), digits(radians.cos()));
    let mut matrix = [cos, sin, 0.0, -sin, cos, 0.0];
    (matrix[2], matrix[5]) = transform_point(matrix, -cx, -cy);
    matrix[2] += cx;
    matrix[5] += cy;
    let (mut width, mut height) = (w, h);
    if options.expand {
        let (fw, fh) = (w as f64, h as f64);
        let corners = [(0.0, 0.0), (fw, 0.0), (fw, fh), (0.0, fh)];
        let corners = corners.map(|(x, y)| transform_point(matrix, x, y));
        let length = |coordinates: [f64; 4]| {
            let max = coordinates.iter().fold(f64::MIN, |a, b| a.max(*b));
            let min = coordinates.iter().fold(f64::MAX, |a, b| a.min(*b));
            (max.ceil() - min.floor()) as usize
        };
        width = length(corners.map(|c| c.0));
        height = length(corners.map(|c| c.1));
        let (dx, dy) = ((width as f64 - fw) / 2.0, (height as f64 - fh) / 2.0);
        (matrix[2], matrix[5]) = transform_point(matrix, -dx, -dy);
    }
    transform(
        op,
        image,
        (width, height),
        matrix,
        options.interpolation,
        &options.fill,
    )
}

/// The image, rotated, translated, scaled and sheared.
///
/// # Errors
/// If an argument is not finite, the scale not above 0, the fill no colour of the image, or the interpolation not
/// supported here.
#[track_caller]
pub fn affine(image: &Image, affine: impl Into<Affine>) -> Result<Image> {
    affine_as("affine", image, &affine.into())
}

#[track_caller]
pub(crate) fn affine_as(op: &str, image: &Image, options: &Affine) -> Result<Image> {
    let (w, h) = image.size();
    let (cx, cy) = options.center.unwrap_or((w as f64 * 0.5, h as f64 * 0.5));
    let ((tx, ty), (sx, sy)) = (options.translate, options.shear);
    check_finite(op, &[options.angle, tx, ty, options.scale, sx, sy, cx, cy])?;
    if options.scale <= 0.0 {
        return Err(invalid(
            op,
            format!("scale is above 0, not {}", options.scale),
        ));
    }
    let (angle, sx, sy) = (options.angle.to_radians(), sx.to_radians(), sy.to_radians());
    // Rotation and shears have a determinant of 1, so the inverse only rearranges their elements.
    let a = (angle - sy).cos() / sy.cos();
    let b = -(angle - sy).cos() * sx.tan() / sy.cos() - angle.sin();
    let c = (angle - sy).sin() / sy.cos();
    let d = -(angle - sy).sin() * sx.tan() / sy.cos() + angle.cos();
    let mut matrix = [d, -b, 0.0, -c, a, 0.0].map(|v| v / options.scale);
    let (x, y) = transform_point(matrix, -cx - tx, -cy - ty);
    (matrix[2], matrix[5]) = (x + cx, y + cy);
    transform(
        op,
        image,
        (w, h),
        matrix,
        options.interpolation,
        &options.fill,
    )
}

#[track_caller]
fn check_finite(op: &str, numbers: &[f64]) -> Result<()> {
    match numbers.iter().find(|n| !n.is_finite()) {
        None => Ok(()),
        Some(n) => Err(invalid(op, format!("{n} is among the arguments"))),
    }
}

/// Builds an image of the pixels at the positions that `from` returns.
fn gather_pixels(
    image: &Image,
    (width, height): (usize, usize),
    from: impl Fn(usize, usize) -> (usize, usize),
) -> Image {
    let c = image.channels();
    let mut out = Vec::with_capacity(image.bytes().len());
    for y in 0..height {
        for x in 0..width {
            let (x, y) = from(x, y);
            out.extend_from_slice(&image.bytes()[(y * image.width() + x) * c..][..c]);
        }
    }
    Image::of(out, width, height, image.mode())
}

/// Builds an image of a size; a matrix maps its pixels to positions in `image`.
#[track_caller]
fn transform(
    op: &str,
    image: &Image,
    (width, height): (usize, usize),
    matrix: Matrix,
    filter: Interpolation,
    fill: &Fill,
) -> Result<Image> {
    let c = image.channels();
    let fill = fill.levels(op, c)?;
    check_room(op, width, height, c)?;
    let mut out = Image::filled(width, height, image.mode(), &fill)?;
    let cubic = match filter {
        Interpolation::Nearest | Interpolation::NearestExact => {
            match image.mode() {
                Mode::L => nearest::<1>(image, &mut out, matrix),
                Mode::LA => nearest::<2>(image, &mut out, matrix),
                Mode::RGB => nearest::<3>(image, &mut out, matrix),
                Mode::RGBA => nearest::<4>(image, &mut out, matrix),
            }
            return Ok(out);
        }
        Interpolation::Bilinear => false,
        Interpolation::Bicubic => true,
        Interpolation::Box | Interpolation::Hamming | Interpolation::Lanczos => {
            let message =
                format!("images are turned by nearest, bilinear and bicubic, not {filter}");
            return Err(invalid(op, message));
        }
    };
    let full_window = Window::new((0, 0), image.size());
    // PIL takes the fill as a colour that is multiplied by alpha already.
    match image.mode() {
        Mode::L => smooth::<1>(image, &mut out, matrix, cubic),
        Mode::LA => smooth::<2>(&premultiply(image, full_window), &mut out, matrix, cubic),
        Mode::RGB => smooth::<3>(image, &mut out, matrix, cubic),
        Mode::RGBA => smooth::<4>(&premultiply(image, full_window), &mut out, matrix, cubic),
    }
    if image.mode().has_alpha() {
        unpremultiply(&mut out);
    }
    Ok(out)
}

/// Samples the nearest pixel at each mapped centre. Positions have 16 bits of fraction, as PIL's do, unless the
/// image is too large for that.
fn nearest<const C: usize>(image: &Image, out: &mut Image, m: Matrix) {
    let (width, height) = (out.width(), out.height());
    let (w, h) = (image.width(), image.height());
    let (from, _) = image.bytes().as_chunks::<C>();
    let (to, _) = out.bytes_mut().as_chunks_mut::<C>();
    let rows = to.chunks_exact_mut(width.max(1)).enumerate();
    // A pixel whose position is outside stays unchanged. The cast makes negative positions huge, so they are outside too.
    let put = |to: &mut [u8; C], x: i64, y: i64| {
        if (x as usize) < w && (y as usize) < h {
            *to = from[y as usize * w + x as usize];
        }
    };
    let (right, below) = (width as f64, height as f64);
    let corners = [(0.0, 0.0), (right, below), (0.0, below), (right, 0.0)];
    let small = corners.iter().all(|(x, y)| {
        let (x, y) = transform_point(m, *x, *y);
        x.abs() < 32768.0 && y.abs() < 32768.0
    });
    let truncate = |v: f64| if v < 0.0 { -1 } else { v as i64 };
    if m[1] == 0.0 && m[3] == 0.0 {
        // Without rotation or shear, rows and columns are found by accumulating steps.
        let steps = |start: f64, step: f64, n: usize| {
            let positions =
                std::iter::successors(Some(start), move |position| Some(position + step));
            positions.take(n).map(truncate).collect::<Vec<i64>>()
        };
        let columns = steps(m[2] + m[0] * 0.5, m[0], width);
        let lines = steps(m[5] + m[4] * 0.5, m[4], height);
        for ((_, row), y) in rows.zip(lines) {
            row.iter_mut()
                .zip(&columns)
                .for_each(|(to, x)| put(to, *x, y));
        }
    } else if small {
        let fixed = |v: f64| (v * 65536.0 + 0.5).floor() as i64;
        let [a, b, d, e] = [m[0], m[1], m[3], m[4]].map(fixed);
        let (left, top) = transform_point(m, 0.5, 0.5);
        let (left, top) = (fixed(left), fixed(top));
        let (end_u, end_v) = ((w as i64) << 16, (h as i64) << 16);
        for (y, row) in rows {
            let (u, v) = (left + b * y as i64, top + e * y as i64);
            let (us, vs) = (inside(u, a, end_u, width), inside(v, d, end_v, width));
            let (start, end) = (us.start.max(vs.start), us.end.min(vs.end));
            let (mut u, mut v) = (u + a * start as i64, v + d * start as i64);
            for to in row.get_mut(start..end).unwrap_or_default() {
                *to = from[(v >> 16) as usize * w + (u >> 16) as usize];
                (u, v) = (u + a, v + d);
            }
        }
    } else {
        for (y, row) in rows {
            for (x, to) in row.iter_mut().enumerate() {
                let (u, v) = transform_point(m, x as f64 + 0.5, y as f64 + 0.5);
                put(to, truncate(u), truncate(v));
            }
        }
    }
}

/// The range of `x` in `0..n` for which `start + step · x` lies in `0..most`.
fn inside(start: i64, step: i64, limit: i64, n: usize) -> Range<usize> {
    let (begin, end) = match step.signum() {
        0 if (0..limit).contains(&start) => (0, n as i64),
        0 => (0, 0),
        1 => (-start.div_euclid(step), -(start - limit).div_euclid(step)),
        _ => (
            (start - limit).div_euclid(-step) + 1,
            start.div_euclid(-step) + 1,
        ),
    };
    let clamped = |x: i64| x.clamp(0, n as i64) as usize;
    clamped(begin)..clamped(end)
}

/// Interpolates between the pixels around each mapped centre.
fn smooth<const C: usize>(image: &Image, out: &mut Image, m: Matrix, cubic: bool) {
    let width = out.width();
    let (from, _) = image.bytes().as_chunks::<C>();
    let source = Source {
        pixels: from,
        width: image.width(),
        height: image.height(),
    };
    let (w, h) = (image.width() as f64, image.height() as f64);
    let (to, _) = out.bytes_mut().as_chunks_mut::<C>();
    for (y, row) in to.chunks_exact_mut(width.max(1)).enumerate() {
        for (x, to) in row.iter_mut().enumerate() {
            let (u, v) = transform_point(m, x as f64 + 0.5, y as f64 + 0.5);
            if (0.0..w).contains(&u) && (0.0..h).contains(&v) {
                let levels = match cubic {
                    true => source.bicubic(u - 0.5, v - 0.5),
                    false => source.bilinear(u - 0.5, v - 0.5),
                };
                *to = levels.map(|v| v as u8);
            }
        }
    }
}

/// The pixels of the source image.
struct Source<'a, const C: usize> {
    pixels: &'a [[u8; C]],
    width: usize,
    height: usize,
}

impl<const C: usize> Source<'_, C> {
    /// A row; rows outside are clamped to the edge.
    fn row(&self, y: i64) -> &[[u8; C]] {
        let y = y.clamp(0, self.height as i64 - 1) as usize;
        &self.pixels[y * self.width..][..self.width]
    }

    /// The index of a column, clamped to the edge.
    fn column(&self, x: i64) -> usize {
        x.clamp(0, self.width as i64 - 1) as usize
    }

    /// Linear interpolation in both directions between four pixels.
    fn bilinear(&self, x: f64, y: f64) -> [f64; C] {
        let (left, top) = (x.floor(), y.floor());
        let (dx, dy) = (x - left, y - top);
        let (x, y) = (left as i64, top as i64);
        let (a, b) = (self.column(x), self.column(x + 1));
        let (above, below) = (self.row(y), self.row(y + 1));
        std::array::from_fn(|c| {
            let across = |row: &[[u8; C]]| {
                let (a, b) = (f64::from(row[a][c]), f64::from(row[b][c]));
                a + (b - a) * dx
            };
            let (above, below) = (across(above), across(below));
            above + (below - above) * dy
        })
    }

    /// Keys' cubic convolution with `a = −1` over sixteen pixels.
    fn bicubic(&self, x: f64, y: f64) -> [f64; C] {
        let (left, top) = (x.floor(), y.floor());
        let (dx, dy) = (x - left, y - top);
        let (x, y) = (left as i64, top as i64);
        let columns = [-1, 0, 1, 2].map(|d| self.column(x + d));
        let rows = [-1, 0, 1, 2].map(|d| {
            let row = self.row(y + d);
            let pixels = columns.map(|x| row[x]);
            std::array::from_fn::<f64, C, _>(|c| cubic(pixels.map(|p| f64::from(p[c])), dx))
        });
        std::array::from_fn(|c| cubic(rows.map(|row| row[c]), dy))
    }
}

/// Interpolates between the middle two of four levels by the cubic through them.
#[inline(always)]
fn cubic([a, b, c, d]: [f64; 4], t: f64) -> f64 {
    let (p1, p2) = (b, -a + c);
    let (p3, p4) = (2.0 * (a - b) + c - d, -a + b - c + d);
    p1 + t * (p2 + t * (p3 + t * p4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_inside_are_those_that_a_count_finds() {
        let mut draw = fastrand::Rng::with_seed(8);
        for _ in 0..20_000 {
            let (start, step) = (draw.i64(-90..90), draw.i64(-9..9));
            let (most, n) = (draw.i64(1..60), draw.usize(0..30));
            let found = inside(start, step, most, n);
            let counted = (0..n).filter(|x| (0..most).contains(&(start + step * *x as i64)));
            let counted: Vec<usize> = counted.collect();
            assert_eq!(
                found.clone().collect::<Vec<_>>(),
                counted,
                "{start} {step} {most} {n}"
            );
        }
    }
}
