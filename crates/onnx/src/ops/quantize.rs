//! Quantised operators.
//!
//! A product or convolution of values that were dequantised is one of their integers, in i32, and is scaled behind it.

use super::Record;
use super::conv::{convolve_windows, per_channel, weight_windows};
use crate::call::{Call, Results, axis, known_size, single};
use crate::fault::invalid;
use crate::packed::Packed;
use crate::value::{Quantized, Traced, Value};
use kiln_tensor::{DType, Error, Result, Scalar, Tensor, keep};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "ConvInteger" => |c| {
            let (x, w) = (
                integer_operand(c, 0, None, Some(2), None)?,
                integer_operand(c, 1, None, Some(3), Some(0))?,
            );
            single(convolution_sums(c, &x, &w)?)
        },
        "DequantizeLinear" => dequantize,
        "DynamicQuantizeLinear" => dynamic,
        "MatMulInteger" => |c| {
            let a = integer_operand(c, 0, None, Some(2), None)?;
            let b = integer_operand(c, 1, None, Some(3), Some(1))?;
            single(product_sums(&a, &b)?)
        },
        "QLinearConv" => |c| {
            let x = integer_operand(c, 0, Some(1), Some(2), None)?;
            let w = integer_operand(c, 3, Some(4), Some(5), Some(0))?;
            let mut accumulators = convolution_sums(c, &x, &w)?;
            let spatial = x.values.ndim() - 2;
            if let Some(bias) = c.optional(8)? {
                accumulators += per_channel(&bias, spatial);
            }
            let scale = x.scale * as_channels(&w.scale, &w, 1 + spatial);
            let y = accumulators.to_dtype(DType::F32) * scale;
            single(quantize(c, &y, &c.tensor(6)?, c.optional(7)?, None)?)
        },
        "QLinearMatMul" => |c| {
            let a = integer_operand(c, 0, Some(1), Some(2), None)?;
            let b = integer_operand(c, 3, Some(4), Some(5), Some(1))?;
            let y = dequantize_sums(product_sums(&a, &b)?, &a, &b);
            single(quantize(c, &y, &c.tensor(6)?, c.optional(7)?, None)?)
        },
        "QuantizeLinear" => |c| {
            let (x, scale) = (c.tensor(0)?, c.tensor(1)?);
            let axis = c.int("axis", 1)?;
            let packed = match c.has(2) {
                true => c.traced(2)?.packed(),
                false => c.packed("output_dtype")?,
            };
            let y = match packed {
                Some(packed) => quantize_to(c, packed, &x, &scale, axis)?,
                None => quantize(c, &x, &scale, c.optional(2)?, Some(axis))?,
            };
            Ok(vec![Value::Tensor(
                Traced::from_tensor(y).packed_as(packed),
            )])
        },
        _ => return None,
    })
}

/// Returns a vector of one number as a number, and others as they are.
fn without_dims_of_one(t: &Tensor) -> Tensor {
    match t.dims() {
        [n] if n.is(1) => t.reshape(()),
        _ => t.clone(),
    }
}

/// Returns the numbers of a scale or zero point so that they broadcast: one, one for each position along an axis, or
/// one for each block along it.
fn broadcast(t: &Tensor, x: &Tensor, channel_axis: Option<i64>, block: i64) -> Result<Tensor> {
    let t = &without_dims_of_one(t);
    match (t.ndim(), channel_axis) {
        (0, _) => Ok(t.clone()),
        (1, Some(channel_axis)) if block == 0 => {
            let axis = axis(channel_axis, x.ndim())?;
            Ok(per_channel(t, x.ndim() - 1 - axis))
        }
        (_, Some(channel_axis)) if block > 0 => {
            let axis = axis(channel_axis, x.ndim())?;
            let repeated = t.repeat_interleave(block, axis as i64);
            Ok(repeated.narrow(axis as i64, 0, known_size(x, axis)?))
        }
        _ => Ok(t.clone()),
    }
}

/// Quantises values to numbers of few bits.
fn quantize_to(c: &Call, packed: Packed, x: &Tensor, scale: &Tensor, axis: i64) -> Result<Tensor> {
    let block = c.int("block_size", 0)?;
    let wide = |t: &Tensor| broadcast(&t.to_dtype(DType::F32), x, Some(axis), block);
    let ratio = x.to_dtype(DType::F32) / wide(scale)?;
    let moved = |q: Tensor| match c.optional(2)? {
        Some(zero) => Ok::<_, Error>(q + wide(&zero)?),
        None => Ok(q),
    };
    Ok(match packed.range() {
        Some((low, high)) => {
            let q = moved(ratio.round())?;
            q.clamp(low as f64, high as f64).to_dtype(packed.storage())
        }
        None => packed.cast(&moved(ratio)?, "up"),
    })
}

/// Quantises values: rounded to even, moved by the zero point, and clamped to the dtype. Floats of 8 bits are rounded.
fn quantize(
    c: &Call,
    x: &Tensor,
    scale: &Tensor,
    zero: Option<Tensor>,
    axis: Option<i64>,
) -> Result<Tensor> {
    let block = c.int("block_size", 0)?;
    let dtype = match &zero {
        Some(zero) => zero.dtype(),
        None => c.dtype("output_dtype", DType::U8)?,
    };
    let ratio = x.to_dtype(DType::F32) / broadcast(&scale.to_dtype(DType::F32), x, axis, block)?;
    if let Some(float) = dtype.float().filter(|_| dtype.size() == 1) {
        return Ok(match c.flag("saturate", true)? {
            true => ratio.clamp(-float.largest, float.largest).to_dtype(dtype),
            false => ratio.to_dtype(dtype),
        });
    }
    let (low, high) = dtype
        .int_range()
        .ok_or_else(|| invalid(format!("values are not quantised to {dtype}")))?;
    let q = ratio.round();
    let q = match zero {
        Some(zero) => q + broadcast(&zero.to_dtype(DType::F32), x, axis, block)?,
        None => q,
    };
    Ok(q.clamp(low as f64, high as f64).to_dtype(dtype))
}

fn dequantize(c: &Call) -> Results {
    let (x, scale) = (c.tensor(0)?, c.tensor(1)?);
    let (axis_number, block) = (c.int("axis", 1)?, c.int("block_size", 0)?);
    let wide = match x.dtype().is_float() {
        true => DType::F32,
        false => DType::I32,
    };
    let zero = c.optional(2)?.map(|z| z.to_dtype(wide));
    let dtype = c.dtype("output_dtype", scale.dtype())?;
    let integers = match &zero {
        Some(zero) => x.to_dtype(wide) - broadcast(zero, &x, Some(axis_number), block)?,
        None => x.to_dtype(wide),
    };
    let factor = broadcast(&scale, &x, Some(axis_number), block)?;
    let y = (integers.to_dtype(DType::F32) * factor.to_dtype(DType::F32)).to_dtype(dtype);
    let is_small = matches!(x.dtype(), DType::I8 | DType::U8);
    if !is_small || block > 0 || dtype != DType::F32 {
        return single(y);
    }
    let single = scale.ndim() == 0 || scale.dims()[0].is(1);
    let from = Quantized {
        known_zero: if c.has(2) { known_zero(c, 2) } else { Some(0) },
        axis: (!single).then(|| axis(axis_number, x.ndim())).transpose()?,
        values: x,
        scale,
        zero,
    };
    Ok(vec![Value::Tensor(Traced::dequantized(y, from))])
}

fn known_zero(c: &Call, i: usize) -> Option<i64> {
    let known = c.traced(i).ok()?.known()?.integers()?;
    let zero = *known.first()?;
    known.iter().all(|z| *z == zero).then_some(zero)
}

/// Returns an operand of integers, whose scale and zero point are inputs; several stand along `axis`.
fn integer_operand(
    c: &Call,
    input: usize,
    scale: Option<usize>,
    zero: Option<usize>,
    axis: Option<usize>,
) -> Result<Quantized> {
    let values = c.tensor(input)?;
    let scale = match scale {
        Some(i) => c.tensor(i)?.to_dtype(DType::F32),
        None => Tensor::scalar(1f32),
    };
    let zero_at = zero.filter(|i| c.has(*i));
    let zero = zero_at.map(|i| c.tensor(i)).transpose()?;
    let several = |t: &Tensor| t.ndim() > 0 && !t.dims()[t.ndim() - 1].is(1);
    let along = several(&scale) || zero.as_ref().is_some_and(several);
    Ok(Quantized {
        known_zero: zero_at.map_or(Some(0), |i| known_zero(c, i)),
        axis: axis.filter(|_| along),
        zero: zero.map(|z| z.to_dtype(DType::I32)),
        values,
        scale,
    })
}

/// Returns numbers of an operand's channels as `[c, 1, ..]` of `rank` dims; a single one as it is.
fn as_channels(t: &Tensor, q: &Quantized, rank: usize) -> Tensor {
    match (q.axis, t.ndim()) {
        (Some(_), 1) => per_channel(t, rank - 1),
        (None, 1) => t.reshape(()),
        _ => t.clone(),
    }
}

/// Sums of products `(a − zero) · (b − zero)` in i32. The zero points are subtracted behind the product, so that it is
/// one of bytes.
fn product_sums(a: &Quantized, b: &Quantized) -> Result<Tensor> {
    let [x, y] = [a, b].map(|q| q.values.to_dtype(DType::I32));
    if x.ndim() == 0 || y.ndim() == 0 {
        return Err(invalid("a product needs matrices"));
    }
    let mut accumulators = x.matmul(&y);
    let columns = |t: &Tensor| match y.ndim() {
        1 => t.sum(0),
        n => t.sum(keep(n - 2)),
    };
    let zero = |q: &Quantized| {
        let zero = q.zero.as_ref().filter(|_| q.known_zero != Some(0));
        zero.map(without_dims_of_one)
    };
    let (a_zero, b_zero) = (zero(a).map(as_column), zero(b));
    if let Some(z) = &a_zero {
        accumulators -= columns(&y).to_dtype(DType::I32) * z;
    }
    if let Some(z) = &b_zero {
        let rows = x.sum(keep(-1)).to_dtype(DType::I32);
        accumulators -= match y.ndim() {
            1 => rows.squeeze(-1) * z,
            _ => rows * z,
        };
    }
    if let (Some(a), Some(b)) = (a_zero, b_zero) {
        accumulators += a * b * known_size(&x, x.ndim() - 1)?;
    }
    Ok(accumulators.to_dtype(DType::I32))
}

/// Returns a vector as a column, and others as they are.
fn as_column(t: Tensor) -> Tensor {
    match t.ndim() {
        1 => t.unsqueeze(-1),
        _ => t,
    }
}

/// Returns sums of products as floats.
fn dequantize_sums(accumulators: Tensor, a: &Quantized, b: &Quantized) -> Tensor {
    let [a, b] = [a, b].map(|q| without_dims_of_one(&q.scale));
    accumulators.to_dtype(DType::F32) * (as_column(a) * b)
}

/// Sums of a convolution in i32. The border is the number that stands for 0.
fn convolution_sums(c: &Call, x: &Quantized, w: &Quantized) -> Result<Tensor> {
    let windows = weight_windows(c, &x.values, &w.values)?;
    let spatial = windows.kernel.len();
    let wide = |t: &Tensor| t.to_dtype(DType::I32);
    let weight = match &w.zero {
        Some(z) if w.known_zero != Some(0) => wide(&w.values) - as_channels(z, w, 2 + spatial),
        _ => wide(&w.values),
    };
    let Some(zero) = x.known_zero else {
        let centred = match &x.zero {
            Some(z) => wide(&x.values) - z.reshape(()),
            None => wide(&x.values),
        };
        return convolve_windows(c, &windows, &centred, &weight, None);
    };
    if zero == 0 {
        return convolve_windows(c, &windows, &wide(&x.values), &weight, None);
    }
    let padded = windows.padded(&x.values, Scalar::Int(zero));
    let accumulators =
        convolve_windows(c, &windows.without_border(), &wide(&padded), &weight, None)?;
    let over: Vec<usize> = (1..weight.ndim()).collect();
    let channel_sums = per_channel(&weight.sum(over).to_dtype(DType::I32), spatial);
    Ok((accumulators - channel_sums * zero).to_dtype(DType::I32))
}

/// The product of values that were dequantised, or none if they were not.
pub(super) fn product(c: &Call) -> Result<Option<Tensor>> {
    let (Some(a), Some(b)) = (c.traced(0)?.quantized(), c.traced(1)?.quantized()) else {
        return Ok(None);
    };
    let per_column = b
        .axis
        .is_none_or(|axis| axis + 1 == b.values.ndim() && axis > 0);
    if a.axis.is_some() || !per_column {
        return Ok(None);
    }
    Ok(Some(dequantize_sums(product_sums(a, b)?, a, b)))
}

/// The convolution of values that were dequantised, or none if they were not.
pub(super) fn convolution(c: &Call) -> Result<Option<Tensor>> {
    let (Some(x), Some(w)) = (c.traced(0)?.quantized(), c.traced(1)?.quantized()) else {
        return Ok(None);
    };
    if x.axis.is_some() || w.axis.is_some_and(|axis| axis != 0) {
        return Ok(None);
    }
    let accumulators = convolution_sums(c, x, w)?;
    let spatial = x.values.ndim() - 2;
    let scale = x.scale.reshape(()) * as_channels(&w.scale, w, 1 + spatial);
    let y = accumulators.to_dtype(DType::F32) * scale;
    Ok(Some(match c.optional(2)? {
        Some(bias) => y + per_channel(&bias, spatial),
        None => y,
    }))
}

fn dynamic(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let (smallest, largest) = x.aminmax(());
    let (smallest, largest) = (smallest.clamp_max(0.0), largest.clamp_min(0.0));
    let scale = (largest - &smallest) / 255.0;
    let zero = (-smallest / &scale).clamp(0.0, 255.0).round();
    let q = ((x / &scale).round() + &zero).clamp(0.0, 255.0);
    Ok(vec![
        q.to_dtype(DType::U8).into(),
        scale.into(),
        zero.to_dtype(DType::U8).into(),
    ])
}

/// Returns the floats that an operand of integers stands for.
fn floats_of(q: &Quantized) -> Tensor {
    let scalar = |t: &Tensor| t.reshape(());
    let values = q.values.to_dtype(DType::I32);
    let centred = match &q.zero {
        Some(z) => values - scalar(z),
        None => values,
    };
    centred.to_dtype(DType::F32) * scalar(&q.scale)
}

/// An operator that is computed in floats, of an operand of integers.
pub(super) fn floats(c: &Call, f: impl Fn(Tensor) -> Tensor) -> Results {
    let x = integer_operand(c, 0, Some(1), Some(2), None)?;
    single(quantize(
        c,
        &f(floats_of(&x)),
        &c.tensor(3)?,
        c.optional(4)?,
        None,
    )?)
}

/// An operator that is computed in floats, of two operands of integers.
pub(super) fn floats_of_pair(c: &Call, f: impl Fn(Tensor, Tensor) -> Tensor) -> Results {
    let a = integer_operand(c, 0, Some(1), Some(2), None)?;
    let b = integer_operand(c, 3, Some(4), Some(5), None)?;
    let y = f(floats_of(&a), floats_of(&b));
    single(quantize(c, &y, &c.tensor(6)?, c.optional(7)?, None)?)
}
