//! The weights of input pixels in each output pixel.

use super::Interpolation;
use std::f64::consts::PI;

/// The fractional bits of a weight in fixed point: a sum of weights times a level fits an `i32`, with two bits to spare
/// for the overshoot of negative weights.
pub(super) const PRECISION: u32 = 32 - 8 - 2;

/// The input pixels of every output pixel along an axis, and their weights. Each output pixel has the same number of
/// taps, some of weight 0, so that loops over them have one length.
pub(super) struct Taps {
    /// The number of taps of an output pixel.
    pub count: usize,
    /// The first input pixel of each output pixel.
    firsts: Vec<usize>,
    /// Weights in fixed point, output pixel by output pixel.
    weights: Vec<i32>,
}

/// Calls `give` for each of `out` pixels that `len` pixels are resized to. Its arguments are the first input pixel,
/// and the weights of it and of those after it, which sum to 1. The filter is stretched by the scale where the image
/// shrinks (antialiasing).
pub(super) fn weights(
    filter: Interpolation,
    len: usize,
    out: usize,
    mut give: impl FnMut(usize, &[f64]),
) {
    let scale = len as f64 / out as f64;
    let stretch = scale.max(1.0);
    let support = filter.support() * stretch;
    let mut weights = Vec::new();
    for index in 0..out {
        let centre = (index as f64 + 0.5) * scale;
        let start = (centre - support + 0.5).max(0.0) as usize;
        let end = ((centre + support + 0.5) as usize).min(len);
        weights.clear();
        weights.extend((start..end).map(|x| {
            let distance = (x as f64 - centre + 0.5) * (1.0 / stretch);
            filter.weight(distance)
        }));
        let sum: f64 = weights.iter().sum();
        if sum != 0.0 {
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        give(start, &weights);
    }
}

impl Taps {
    /// The taps for `len` input pixels resized to `out`, both at least 1.
    pub(super) fn new(filter: Interpolation, len: usize, out: usize) -> Taps {
        let mut count = 0;
        let (mut spans, mut reals) = (Vec::with_capacity(out), Vec::new());
        weights(filter, len, out, |start, pixel_weights| {
            count = count.max(pixel_weights.len());
            spans.push((start, pixel_weights.len()));
            reals.extend_from_slice(pixel_weights);
        });
        let mut taps = Taps {
            count,
            firsts: Vec::with_capacity(out),
            weights: vec![0; out * count],
        };
        let mut remaining = &reals[..];
        for ((first, n), fixed_weights) in spans.iter().zip(taps.weights.chunks_exact_mut(count)) {
            let start = (*first).min(len - count);
            let (span_weights, tail) = remaining.split_at(*n);
            remaining = tail;
            for (fixed, w) in fixed_weights[first - start..].iter_mut().zip(span_weights) {
                *fixed = (w * f64::from(1 << PRECISION) + f64::copysign(0.5, *w)) as i32;
            }
            taps.firsts.push(start);
        }
        taps
    }

    /// The number of output pixels.
    pub(super) fn len(&self) -> usize {
        self.firsts.len()
    }

    /// The first input pixel of each output pixel, and the weights.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let weights = self.weights.chunks_exact(self.count);
        self.firsts.iter().copied().zip(weights)
    }
}

impl Interpolation {
    /// The radius of the filter, in pixels of the smaller image. `Nearest` does not use it.
    fn support(self) -> f64 {
        match self {
            Interpolation::Nearest | Interpolation::NearestExact | Interpolation::Box => 0.5,
            Interpolation::Bilinear | Interpolation::Hamming => 1.0,
            Interpolation::Bicubic => 2.0,
            Interpolation::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let d = x.abs();
        match self {
            Interpolation::Nearest | Interpolation::NearestExact | Interpolation::Box => {
                f64::from(x > -0.5 && x <= 0.5)
            }
            Interpolation::Bilinear => (1.0 - d).max(0.0),
            Interpolation::Hamming if d == 0.0 => 1.0,
            Interpolation::Hamming if d >= 1.0 => 0.0,
            Interpolation::Hamming => {
                let x = d * PI;
                x.sin() / x * (0.54 + 0.46 * x.cos())
            }
            Interpolation::Bicubic => cubic(d),
            Interpolation::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Interpolation::Lanczos => 0.0,
        }
    }
}

/// Keys' cubic convolution (1981), with `a = −0.5`.
fn cubic(d: f64) -> f64 {
    const A: f64 = -0.5;
    if d < 1.0 {
        ((A + 2.0) * d - (A + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        (((d - 5.0) * d + 8.0) * d - 4.0) * A
    } else {
        0.0
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * PI;
    x.sin() / x
}
