//! Rotated and sheared images.

use crate::fault::invalid;
use crate::image::Image;
use crate::picture::room;
use crate::resample::{Interpolation, Window, unweight, weighted};
use crate::transforms::Fill;
use kiln_tensor::{Result, options};

options! {
    /// How [`rotate`] turns an image.
    Rotate (
        /// Degrees, against the clock.
        angle: f64
    ) {
        /// How new pixels are made: `Nearest`, `Bilinear` or `Bicubic`.
        interpolation: Interpolation = Interpolation::Nearest,
        /// Whether the image becomes large enough to hold all of the turned one.
        expand: bool = false,
        /// Column and row that stay where they are; the middle, unless given.
        center: Option<(f64, f64)> = None,
        /// What lies outside the old image.
        fill: Fill = 0u8,
    }
}

options! {
    /// How [`affine`] maps an image.
    Affine () {
        /// Degrees, with the clock.
        angle: f64 = 0.0,
        /// Columns to the right and rows down.
        translate: (f64, f64) = (0.0, 0.0),
        /// How much larger, above 0.
        scale: f64 = 1.0,
        /// Degrees along the rows and along the columns.
        shear: (f64, f64) = (0.0, 0.0),
        /// How new pixels are made: `Nearest`, `Bilinear` or `Bicubic`.
        interpolation: Interpolation = Interpolation::Nearest,
        /// What lies outside the old image.
        fill: Fill = 0u8,
        /// Column and row that rotation, scale and shear leave where they are; the middle, unless given.
        center: Option<(f64, f64)> = None,
    }
}

/// The place in the old image of a place in the new one: `(a x + b y + c, d x + e y + f)`.
type Matrix = [f64; 6];

fn placed([a, b, c, d, e, f]: Matrix, x: f64, y: f64) -> (f64, f64) {
    (a * x + b * y + c, d * x + e * y + f)
}

/// The image, turned: `rotate(&x, 30.0)`, `rotate(&x, Rotate::new(30.0).expand(true))`.
///
/// # Errors
/// If an argument is not finite, the fill is no colour of the image, or the interpolation is not for this.
#[track_caller]
pub fn rotate(image: &Image, rotate: impl Into<Rotate>) -> Result<Image> {
    rotated("rotate", image, &rotate.into())
}

#[track_caller]
pub(crate) fn rotated(op: &str, image: &Image, by: &Rotate) -> Result<Image> {
    let numbers = [
        by.angle,
        by.center.map_or(0.0, |c| c.0),
        by.center.map_or(0.0, |c| c.1),
    ];
    finite(op, &numbers)?;
    let angle = by.angle.rem_euclid(360.0);
    let (w, h) = image.size();
    if by.center.is_none() {
        let quarter = by.expand || w == h;
        if angle == 0.0 {
            return Ok(image.clone());
        } else if angle == 180.0 {
            return Ok(moved(image, (w, h), |x, y| (w - 1 - x, h - 1 - y)));
        } else if angle == 90.0 && quarter {
            return Ok(moved(image, (h, w), |x, y| (w - 1 - y, x)));
        } else if angle == 270.0 && quarter {
            return Ok(moved(image, (h, w), |x, y| (y, h - 1 - x)));
        }
    }
    let (cx, cy) = by.center.unwrap_or((w as f64 / 2.0, h as f64 / 2.0));
    let radians = -angle.to_radians();
    // To 15 digits, so that quarters of a turn are whole.
    let digits = |v: f64| (v * 1e15).round_ties_even() / 1e15;
    let (sin, cos) = (digits(radians.sin()), digits(radians.cos()));
    let mut matrix = [cos, sin, 0.0, -sin, cos, 0.0];
    (matrix[2], matrix[5]) = placed(matrix, -cx, -cy);
    matrix[2] += cx;
    matrix[5] += cy;
    let (mut width, mut height) = (w, h);
    if by.expand {
        let (fw, fh) = (w as f64, h as f64);
        let corners = [(0.0, 0.0), (fw, 0.0), (fw, fh), (0.0, fh)];
        let corners = corners.map(|(x, y)| placed(matrix, x, y));
        let length = |all: [f64; 4]| {
            let most = all.iter().fold(f64::MIN, |a, b| a.max(*b));
            let least = all.iter().fold(f64::MAX, |a, b| a.min(*b));
            (most.ceil() - least.floor()) as usize
        };
        width = length(corners.map(|c| c.0));
        height = length(corners.map(|c| c.1));
        let (dx, dy) = ((width as f64 - fw) / 2.0, (height as f64 - fh) / 2.0);
        (matrix[2], matrix[5]) = placed(matrix, -dx, -dy);
    }
    warped(
        op,
        image,
        (width, height),
        matrix,
        by.interpolation,
        &by.fill,
    )
}

/// The image, turned, moved, scaled and sheared.
///
/// # Errors
/// If an argument is not finite, the scale not above 0, the fill no colour of the image, or the interpolation not
/// for this.
#[track_caller]
pub fn affine(image: &Image, affine: impl Into<Affine>) -> Result<Image> {
    mapped("affine", image, &affine.into())
}

#[track_caller]
pub(crate) fn mapped(op: &str, image: &Image, by: &Affine) -> Result<Image> {
    let (w, h) = image.size();
    let (cx, cy) = by.center.unwrap_or((w as f64 * 0.5, h as f64 * 0.5));
    let ((tx, ty), (sx, sy)) = (by.translate, by.shear);
    finite(op, &[by.angle, tx, ty, by.scale, sx, sy, cx, cy])?;
    if by.scale <= 0.0 {
        return Err(invalid(op, format!("scale is above 0, not {}", by.scale)));
    }
    let (turn, sx, sy) = (by.angle.to_radians(), sx.to_radians(), sy.to_radians());
    // Rotation and shears have a determinant of 1, so the inverse is these turned round.
    let a = (turn - sy).cos() / sy.cos();
    let b = -(turn - sy).cos() * sx.tan() / sy.cos() - turn.sin();
    let c = (turn - sy).sin() / sy.cos();
    let d = -(turn - sy).sin() * sx.tan() / sy.cos() + turn.cos();
    let mut matrix = [d, -b, 0.0, -c, a, 0.0].map(|v| v / by.scale);
    let (x, y) = placed(matrix, -cx - tx, -cy - ty);
    (matrix[2], matrix[5]) = (x + cx, y + cy);
    warped(op, image, (w, h), matrix, by.interpolation, &by.fill)
}

#[track_caller]
fn finite(op: &str, numbers: &[f64]) -> Result<()> {
    match numbers.iter().find(|n| !n.is_finite()) {
        None => Ok(()),
        Some(n) => Err(invalid(op, format!("{n} is among the arguments"))),
    }
}

/// An image of the pixels that lie where `from` says.
fn moved(
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

/// The image of a size whose pixels are found in another one by a matrix.
#[track_caller]
fn warped(
    op: &str,
    image: &Image,
    (width, height): (usize, usize),
    matrix: Matrix,
    filter: Interpolation,
    fill: &Fill,
) -> Result<Image> {
    let c = image.channels();
    let fill = fill.levels(op, c)?;
    room(op, width, height, c)?;
    let mut out = Image::filled(width, height, image.mode(), &fill)?;
    let sample = match filter {
        Interpolation::Nearest | Interpolation::NearestExact => {
            nearest(image, &mut out, matrix);
            return Ok(out);
        }
        Interpolation::Bilinear => bilinear,
        Interpolation::Bicubic => bicubic,
        Interpolation::Box | Interpolation::Hamming | Interpolation::Lanczos => {
            let message =
                format!("images are turned by nearest, bilinear and bicubic, not {filter}");
            return Err(invalid(op, message));
        }
    };
    if !image.mode().has_alpha() {
        smooth(image, &mut out, matrix, sample);
        return Ok(out);
    }
    let whole = |image: &Image| Window {
        left: 0,
        top: 0,
        width: image.width(),
        height: image.height(),
    };
    let from = weighted(image, whole(image));
    // PIL takes the fill for a colour that is multiplied already.
    smooth(&from, &mut out, matrix, sample);
    unweight(&mut out);
    Ok(out)
}

/// The pixel whose place a new pixel's centre falls on. Places are counted in 16 bits of fraction, as PIL counts
/// them, unless the image is too large for that.
fn nearest(image: &Image, out: &mut Image, m: Matrix) {
    let (width, height, c) = (out.width(), out.height(), out.channels());
    let (w, h) = (image.width() as i64, image.height() as i64);
    let (right, below) = (width as f64, height as f64);
    let corners = [(0.0, 0.0), (right, below), (0.0, below), (right, 0.0)];
    let small = corners.iter().all(|(x, y)| {
        let (x, y) = placed(m, *x, *y);
        x.abs() < 32768.0 && y.abs() < 32768.0
    });
    let first = placed(m, 0.5, 0.5);
    let mut put = |x: usize, y: usize, from: (i64, i64)| {
        if (0..w).contains(&from.0) && (0..h).contains(&from.1) {
            let from = (from.1 * w + from.0) as usize * c;
            let at = (y * width + x) * c;
            out.bytes_mut()[at..at + c].copy_from_slice(&image.bytes()[from..from + c]);
        }
    };
    // Where nothing turns, rows and columns are found by steps that add up.
    if m[1] == 0.0 && m[3] == 0.0 {
        let steps = |start: f64, step: f64, n: usize| {
            let mut at = start;
            let mut next = move || {
                let place = if at < 0.0 { -1 } else { at as i64 };
                at += step;
                place
            };
            (0..n).map(|_| next()).collect::<Vec<i64>>()
        };
        let columns = steps(m[2] + m[0] * 0.5, m[0], width);
        for (y, row) in steps(m[5] + m[4] * 0.5, m[4], height)
            .into_iter()
            .enumerate()
        {
            let columns = columns.iter().enumerate();
            columns.for_each(|(x, column)| put(x, y, (*column, row)));
        }
    } else if small {
        let fixed = |v: f64| (v * 65536.0 + 0.5).floor() as i64;
        let [a, b, d, e] = [m[0], m[1], m[3], m[4]].map(fixed);
        let (left, top) = (fixed(first.0), fixed(first.1));
        for y in 0..height {
            let row = (left + b * y as i64, top + e * y as i64);
            for x in 0..width {
                let at = (row.0 + a * x as i64, row.1 + d * x as i64);
                put(x, y, (at.0 >> 16, at.1 >> 16));
            }
        }
    } else {
        let whole = |v: f64| if v < 0.0 { -1 } else { v as i64 };
        for y in 0..height {
            for x in 0..width {
                let (u, v) = placed(m, x as f64 + 0.5, y as f64 + 0.5);
                put(x, y, (whole(u), whole(v)));
            }
        }
    }
}

/// A colour of an image at a place between pixels.
type Sample = fn(&Image, usize, f64, f64) -> f64;

fn smooth(image: &Image, out: &mut Image, m: Matrix, sample: Sample) {
    let (width, c) = (out.width(), out.channels());
    let (w, h) = (image.width() as f64, image.height() as f64);
    for (n, pixel) in out.bytes_mut().chunks_exact_mut(c).enumerate() {
        let (x, y) = (n % width, n / width);
        let (u, v) = placed(m, x as f64 + 0.5, y as f64 + 0.5);
        if (0.0..w).contains(&u) && (0.0..h).contains(&v) {
            for (colour, out) in pixel.iter_mut().enumerate() {
                *out = sample(image, colour, u - 0.5, v - 0.5) as u8;
            }
        }
    }
}

/// The level in a column and a row, those outside moved to the edge.
fn at(image: &Image, colour: usize, x: i64, y: i64) -> f64 {
    let x = x.clamp(0, image.width() as i64 - 1) as usize;
    let y = y.clamp(0, image.height() as i64 - 1) as usize;
    f64::from(image.bytes()[(y * image.width() + x) * image.channels() + colour])
}

fn bilinear(image: &Image, colour: usize, x: f64, y: f64) -> f64 {
    let (column, row) = (x.floor(), y.floor());
    let (dx, dy) = (x - column, y - row);
    let (column, row) = (column as i64, row as i64);
    let across = |row: i64| {
        let (a, b) = (
            at(image, colour, column, row),
            at(image, colour, column + 1, row),
        );
        a + (b - a) * dx
    };
    let (above, below) = (across(row), across(row + 1));
    above + (below - above) * dy
}

/// Keys' cubic convolution with `a = −1`, as a polynomial.
fn bicubic(image: &Image, colour: usize, x: f64, y: f64) -> f64 {
    let (column, row) = (x.floor(), y.floor());
    let (dx, dy) = (x - column, y - row);
    let (column, row) = (column as i64, row as i64);
    let cubic = |[a, b, c, d]: [f64; 4], t: f64| {
        let (p1, p2) = (b, -a + c);
        let (p3, p4) = (2.0 * (a - b) + c - d, -a + b - c + d);
        p1 + t * (p2 + t * (p3 + t * p4))
    };
    let rows = [-1, 0, 1, 2].map(|r| {
        let levels = [-1, 0, 1, 2].map(|c| at(image, colour, column + c, row + r));
        cubic(levels, dx)
    });
    cubic(rows, dy)
}
