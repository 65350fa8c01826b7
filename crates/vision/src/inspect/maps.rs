//! Feature maps and filters as pictures.

use super::gradients::as_f32;
use crate::fault::invalid;
use kiln_nn::{Forward, Module, extract};
use kiln_tensor::{Result, Tensor, keep};

/// Scales each map `[h, w]` of `[.., h, w]` to 0..=1 by its minimum and maximum; 0 if all its numbers are equal.
///
/// # Errors
/// If there are fewer than two dims.
#[track_caller]
pub fn normalise(maps: &Tensor) -> Result<Tensor> {
    maps.check()?;
    if maps.ndim() < 2 {
        let message = format!("maps are [.., h, w], not {:?}", maps.shape()?);
        return Err(invalid("normalise", message));
    }
    scale_to_unit(&as_f32(maps), &[-2, -1])
}

/// Scales numbers to 0..=1 by the minimum and the maximum along some dims.
#[track_caller]
fn scale_to_unit(x: &Tensor, dims: &[i64]) -> Result<Tensor> {
    let (low, high) = (x.amin(keep(dims.to_vec())), x.amax(keep(dims.to_vec())));
    let range = &high - &low;
    let flat = range.eq(0.0);
    let scaled = ((x - &low) / range.masked_fill(&flat, 1.0)).clamp(0.0, 1.0);
    Ok(scaled.check()?.clone())
}

/// The feature maps of the layer at a path for images `[n, c, h, w]`. Each of its k channels is a grey picture between
/// 0 and 1, `[n · k, 1, h', w']`, for `make_grid`.
///
/// # Errors
/// If there is no such layer, it gives no maps, or the model fails.
#[track_caller]
pub fn feature_maps<M: Forward>(model: &M, layer: &str, images: &Tensor) -> Result<Tensor> {
    let (_, [outputs]) = extract(model, [layer], images)?;
    let layer_output = outputs.first();
    let maps =
        layer_output.ok_or_else(|| invalid("feature_maps", format!("{layer} gives no tensor")))?;
    let shape = maps.shape()?;
    let [n, k, h, w] = shape[..] else {
        let message = format!("{layer} gives {shape:?}, not maps [n, k, h, w]");
        return Err(invalid("feature_maps", message));
    };
    let maps = normalise(maps)?.reshape([n * k, 1, h, w]);
    Ok(maps.check()?.clone())
}

/// The filters of the convolution at a path, scaled to 0..=1. With three input channels they are RGB pictures,
/// `[out, 3, h, w]`. Otherwise each channel of each filter is a grey picture, `[out · in, 1, h, w]`.
///
/// # Errors
/// If there is no such layer, or it has no weight `[out, in, h, w]`.
#[track_caller]
pub fn filters(model: &(impl Module + ?Sized), layer: &str) -> Result<Tensor> {
    let weight = model.get_parameter(&format!("{layer}.weight"))?.get();
    let shape = weight.shape()?;
    let [out_channels, in_channels, h, w] = shape[..] else {
        let message = format!("the weight of {layer} is {shape:?}, not [out, in, h, w]");
        return Err(invalid("filters", message));
    };
    let weight = as_f32(&weight);
    match in_channels {
        3 => scale_to_unit(&weight, &[-3, -2, -1]),
        _ => normalise(&weight.reshape([out_channels * in_channels, 1, h, w])),
    }
}
