//! Gaussian blur.

use crate::fault::invalid;
use crate::image::Image;
use crate::picture::mirror;
use crate::simd::wide;
use crate::transforms::{KernelSize, PaddingMode};
use kiln_tensor::Result;

/// The image, each pixel a mean of those around it, weighted by a Gaussian of a standard deviation of
/// `sigma = (x, y)` pixels; at the edge the image is mirrored.
///
/// # Errors
/// If a size of the kernel is even or 0, or as wide as the image is mirrored, or a deviation is not above 0.
#[track_caller]
pub fn gaussian_blur(
    image: &Image,
    kernel_size: impl Into<KernelSize>,
    sigma: (f64, f64),
) -> Result<Image> {
    blur_as("gaussian_blur", image, kernel_size.into(), sigma)
}

#[track_caller]
pub(crate) fn blur_as(
    op: &str,
    image: &Image,
    size: KernelSize,
    (across, down): (f64, f64),
) -> Result<Image> {
    let (w, h, c) = (image.width(), image.height(), image.channels());
    let half = (size.x / 2, size.y / 2);
    // They limit the size of the kernel to that of the image.
    let left = mirror(op, w, (half.0, half.0), PaddingMode::Reflect)?;
    let above = mirror(op, h, (half.1, half.1), PaddingMode::Reflect)?;
    let columns = kernel(op, size.x, across)?;
    let rows = kernel(op, size.y, down)?;
    let mut wide_row = vec![0.0; left.len() * c];
    let mut acc = vec![0.0; w * h * c];
    for (row, acc) in image
        .bytes()
        .chunks_exact((w * c).max(1))
        .zip(acc.chunks_exact_mut((w * c).max(1)))
    {
        for (accumulator, wide) in left.iter().zip(wide_row.chunks_exact_mut(c)) {
            let pixel = &row[accumulator * c..][..c];
            wide.iter_mut()
                .zip(pixel)
                .for_each(|(o, v)| *o = f32::from(*v));
        }
        for (n, weight) in columns.iter().enumerate() {
            add(acc, &wide_row[n * c..][..w * c], *weight);
        }
    }
    let mut out = image.clone();
    let mut sum = vec![0.0; w * c];
    for (y, out) in out.bytes_mut().chunks_exact_mut((w * c).max(1)).enumerate() {
        sum.fill(0.0);
        for (n, weight) in rows.iter().enumerate() {
            add(&mut sum, &acc[above[y + n] * w * c..][..w * c], *weight);
        }
        out.iter_mut()
            .zip(&sum)
            .for_each(|(o, s)| *o = s.round_ties_even() as u8);
    }
    Ok(out)
}

wide! {
    fn add(sums: &mut [f32], values: &[f32], weight: f32) {
        for (sum, v) in sums.iter_mut().zip(values) {
            *sum += v * weight;
        }
    }
}

/// The weights of `len` pixels, which sum to 1.
#[track_caller]
fn kernel(op: &str, len: usize, sigma: f64) -> Result<Vec<f32>> {
    if len.is_multiple_of(2) {
        let message = format!("kernel_size is odd, so that it has a middle, but it is {len}");
        return Err(invalid(op, message));
    }
    if !(sigma > 0.0 && sigma.is_finite()) {
        return Err(invalid(op, format!("sigma is above 0, not {sigma}")));
    }
    let half = (len / 2) as f64;
    let weights = (0..len).map(|n| (-0.5 * ((n as f64 - half) / sigma).powi(2)).exp());
    let weights: Vec<f64> = weights.collect();
    let sum: f64 = weights.iter().sum();
    Ok(weights.iter().map(|w| (w / sum) as f32).collect())
}
