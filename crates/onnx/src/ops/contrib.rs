//! Operators of onnxruntime's own (`com.microsoft`), which exporters and its optimiser emit.

use super::attention::{
    Scores, attend, attend_and_show, merge_heads, position_difference, rotate_pairs, split_heads,
};
use super::elementwise::swish;
use super::norm::{layer_normalize, rms_normalize};
use super::shape::slice_axis;
use super::{Record, quantize, sum_dtype};
use crate::call::{Call, Results, known_size, single};
use crate::fault::{invalid, unsupported};
use crate::value::{Value, iota, size_as_tensor};
use kiln_base::Dim;
use kiln_tensor::{DType, ErrorKind, PadMode, Result, Scalar, Tensor, cat, stack};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "BiasGelu" => |c| single((c.tensor(0)? + c.tensor(1)?).gelu()),
        "FastGelu" => |c| {
            let x = c.tensor(0)?;
            single(c.optional(1)?.map_or(x.clone(), |b| x + b).gelu_tanh())
        },
        "Gelu" => |c| single(c.tensor(0)?.gelu()),
        "QuickGelu" => |c| single(swish(&c.tensor(0)?, c.float("alpha", 1.702)?)),

        "FusedMatMul" => fused_matmul,
        "MatMulNBits" => matmul_bits,

        "Attention" => attention,
        "GroupQueryAttention" => grouped_attention,
        "MultiHeadAttention" => multi_head_attention,
        "RotaryEmbedding" => |c| {
            let x = c.tensor(0)?;
            let positions = first_positions(c, &x)?;
            single(rotate_pairs(
                c,
                &x,
                [&c.tensor(2)?, &c.tensor(3)?],
                Some(&positions),
            )?)
        },

        "SimplifiedLayerNormalization" => simplified_layer_norm,
        "SkipLayerNormalization" => |c| {
            let sum = add_skip(c, 4)?;
            let (y, mean, spread) = layer_normalize(
                &sum,
                &c.tensor(2)?,
                c.optional(3)?.as_ref(),
                sum.ndim() - 1,
                c.float("epsilon", 1e-12)?,
                sum_dtype(sum.dtype()),
            );
            Ok(vec![y.into(), mean.into(), spread.into(), sum.into()])
        },
        "SkipSimplifiedLayerNormalization" => |c| {
            let sum = add_skip(c, 3)?;
            let eps = c.float("epsilon", 1e-5)?;
            let y = rms_normalize(
                &sum,
                &c.tensor(2)?,
                sum.ndim() - 1,
                eps,
                sum_dtype(sum.dtype()),
            );
            let none = Value::Nothing;
            Ok(vec![y.into(), none.clone(), none, sum.into()])
        },

        "QLinearAdd" => |c| quantize::floats_of_pair(c, |a, b| a + b),
        "QLinearMul" => |c| quantize::floats_of_pair(c, |a, b| a * b),
        "QLinearLeakyRelu" => |c| {
            let alpha = c.float("alpha", 0.01)?;
            quantize::floats(c, |x| x.leaky_relu_with(alpha))
        },
        "QLinearSigmoid" => |c| quantize::floats(c, |x| x.sigmoid()),
        _ => return quantize::find(op),
    })
}

/// Operators of these, RMS normalisation among them, that onnxruntime puts into ONNX's own domain.
pub(super) fn find_in_own(op: &str) -> Option<Record> {
    (op == "SimplifiedLayerNormalization").then_some(simplified_layer_norm)
}

fn simplified_layer_norm(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let from = c.axis("axis", -1, x.ndim())?;
    let eps = c.float("epsilon", 1e-5)?;
    single(rms_normalize(
        &x,
        &c.tensor(1)?,
        from,
        eps,
        sum_dtype(x.dtype()),
    ))
}

/// The input plus the skipped value, and a bias at `bias`.
fn add_skip(c: &Call, bias: usize) -> Result<Tensor> {
    let mut sum = c.tensor(0)? + c.tensor(1)?;
    if let Some(bias) = c.optional(bias)? {
        sum += bias;
    }
    sum.check()?;
    match sum.ndim() {
        0 => Err(invalid("a single number can't be normalised")),
        _ => Ok(sum),
    }
}

fn fused_matmul(c: &Call) -> Results {
    if c.flag("transBatchA", false)? || c.flag("transBatchB", false)? {
        return Err(unsupported("products of transposed batches"));
    }
    let flipped = |t: Tensor, name: &str| match c.flag(name, false)? {
        true if t.ndim() > 1 => Ok::<_, kiln_tensor::Error>(t.transpose(-2, -1)),
        _ => Ok(t),
    };
    let (a, b) = (
        flipped(c.tensor(0)?, "transA")?,
        flipped(c.tensor(1)?, "transB")?,
    );
    let y = a.matmul(b);
    match c.float("alpha", 1.0)? {
        1.0 => single(y),
        alpha => single(y * alpha),
    }
}

/// Returns the numbers of `bits` bits in bytes, the lowest first: the last dim becomes `8 / bits` times as long.
fn unpack(bytes: &Tensor, bits: i64) -> Tensor {
    let per_byte = 8 / bits;
    let wide = bytes.to_dtype(DType::I32).unsqueeze(-1);
    let shifts: Vec<i32> = (0..per_byte).map(|i| (i * bits) as i32).collect();
    let numbers = wide
        .bitwise_right_shift(Tensor::from(shifts))
        .bitwise_and((1i64 << bits) - 1);
    let mut shape = bytes.dims().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = &*last * &Dim::Const(per_byte);
    }
    numbers.reshape(shape)
}

/// A product with a weight of small integers, in blocks of columns with a scale each.
fn matmul_bits(c: &Call) -> Results {
    let (x, packed, scales) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (k, n) = (c.int("K", 0)?, c.int("N", 0)?);
    let (bits, block) = (c.int("bits", 4)?, c.int("block_size", 0)?);
    if !matches!(bits, 2 | 4 | 8) || block < 1 || k < 1 || n < 1 {
        return Err(unsupported(format!("{bits} bits in blocks of {block}")));
    }
    if c.has(4) {
        return Err(unsupported("rows in another order (g_idx)"));
    }
    let blocks = (k + block - 1) / block;
    let weight = unpack(&packed.reshape([n, blocks, block * bits / 8]), bits).to_dtype(DType::F32);
    let zero = match c.optional(3)? {
        None => Tensor::full((), 2f64.powi(bits as i32 - 1), DType::F32),
        Some(z) if z.dtype().is_float() => z.reshape([n, blocks, 1]).to_dtype(DType::F32),
        Some(z) => {
            let zeros = unpack(&z.reshape([n, -1]), bits);
            zeros
                .narrow(1, 0, blocks)
                .unsqueeze(-1)
                .to_dtype(DType::F32)
        }
    };
    let scaled = (weight - zero) * scales.reshape([n, blocks, 1]).to_dtype(DType::F32);
    let weight = scaled
        .reshape([n, blocks * block])
        .narrow(1, 0, k)
        .to_dtype(x.dtype());
    single(x.linear_with(weight, c.optional(5)?))
}

/// Returns positions `[b, s]` of a rotation: given, or counted from a first one.
fn first_positions(c: &Call, x: &Tensor) -> Result<Tensor> {
    let positions = c.tensor(1)?.to_dtype(DType::I64);
    if positions.ndim() == 2 {
        return Ok(positions);
    }
    let [batch, .., length, _] = x.dims() else {
        return Err(invalid(format!("needs 3 or 4 dims, not {}", x.ndim())));
    };
    let start = positions.reshape(vec![Dim::ONE, Dim::ONE]);
    Ok((iota(length) + start).expand(vec![batch.clone(), length.clone()]))
}

fn multi_head_attention(c: &Call) -> Results {
    let count = c.int("num_heads", 0)?;
    // Heads `[b, s, heads, n, e]` of n operands.
    let packed = |t: &Tensor, n: i64| -> Vec<Tensor> {
        let parts = (0..n).map(|i| t.select(3, i).transpose(1, 2));
        parts.collect()
    };
    let (query, key) = (c.tensor(0)?, c.optional(1)?);
    let mut operands: Vec<Tensor> = match key {
        None if query.ndim() == 5 => packed(&query, 3),
        Some(key) if key.ndim() == 5 => [split_heads(query, Some(count))?]
            .into_iter()
            .chain(packed(&key, 2))
            .collect(),
        Some(key) if c.has(2) => {
            let operands = [query, key, c.tensor(2)?].into_iter();
            let operands = operands.map(|t| split_heads(t, Some(count)));
            operands.collect::<Result<_>>()?
        }
        _ => {
            return Err(invalid("needs keys and values, or a query that holds them"));
        }
    };
    for t in &operands {
        t.check()?;
    }
    if let Some(bias) = c.optional(3)? {
        let mut offset = 0;
        for (i, t) in operands.iter_mut().enumerate() {
            let (heads, size) = (known_size(t, 1)?, known_size(t, 3)?);
            // Keys and values of another attention, `[b, heads, s, e]`, have theirs.
            if i == 0 || c.tensor(i).map_or(5, |t| t.ndim()) != 4 {
                let head_bias = bias.narrow(0, offset, heads * size);
                *t = &*t + head_bias.reshape([heads, 1, size]);
            }
            offset += heads * size;
        }
    }
    let past = c.optional(6)?.zip(c.optional(7)?);
    let [q, k, v] = &operands[..] else {
        return Err(invalid("needs queries, keys and values"));
    };
    let used = match past {
        Some(_) => c.first_integer(8)?,
        None => None,
    };
    masked_attention(c, [q, k, v], past, used, c.optional(4)?)
}

/// Attention of queries, keys and values that one product computes.
fn attention(c: &Call) -> Results {
    let product = c.tensor(0)?.matmul(c.tensor(1)?);
    let product = c.optional(2)?.map_or(product.clone(), |b| product + b);
    let width = product.dims().last().and_then(Dim::as_const).unwrap_or(0);
    let sizes = c
        .ints("qkv_hidden_sizes")?
        .unwrap_or_else(|| vec![width / 3; 3]);
    let [q, k, v] = sizes[..] else {
        return Err(invalid("qkv_hidden_sizes must hold 3 sizes"));
    };
    let count = Some(c.int("num_heads", 0)?);
    let mut q_heads = split_heads(product.narrow(-1, 0, q), count)?;
    let mut k_heads = split_heads(product.narrow(-1, q, k), count)?;
    let v_heads = split_heads(product.narrow(-1, q.saturating_add(k), v), count)?;
    let past = c
        .optional(4)?
        .map(|past| (past.select(0, 0), past.select(0, 1)));
    let used = match c.flag("past_present_share_buffer", false)? {
        true => {
            let used = c.first_integer(6)?;
            Some(used.ok_or_else(|| invalid("needs past_sequence_length"))?)
        }
        false => None,
    };
    if c.flag("do_rotary", false)? {
        let start = past_len(past.as_ref(), used)?;
        (q_heads, k_heads) = (
            rotate_heads(c, &q_heads, &start)?,
            rotate_heads(c, &k_heads, &start)?,
        );
    }
    let operands = [&q_heads, &k_heads, &v_heads];
    let mut results = masked_attention(c, operands, past, used, c.optional(3)?)?;
    let keys_and_values = results.split_off(1);
    if let ([Value::Tensor(k), Value::Tensor(v)], true) = (&keys_and_values[..], c.wants(1)) {
        results.push(stack([k.tensor(), v.tensor()], 0).into());
    }
    Ok(results)
}

/// Rotates heads `[b, heads, s, e]` by the angles of their positions from `first` on, as in the paper.
fn rotate_heads(c: &Call, x: &Tensor, first: &Dim) -> Result<Tensor> {
    x.check()?;
    let size = x.dims()[3].as_const().unwrap_or(0);
    let width = match c.int("rotary_embedding_dim", 0)? {
        0 => size,
        n => n.min(size),
    };
    let frequencies: Vec<f32> = (0..width / 2)
        .map(|i| 10000f32.powf(-2.0 * i as f32 / width as f32))
        .collect();
    let positions = iota(&x.dims()[2]) + size_as_tensor(first);
    let angles = positions.to_dtype(DType::F32).unsqueeze(1) * Tensor::from(frequencies);
    let tables = [angles.cos(), angles.sin()].map(|t| t.to_dtype(x.dtype()).unsqueeze(0));
    rotate_pairs(c, x, tables.each_ref(), None)
}

/// Attention of heads `[b, heads, s, e]`, with the mask of the keys. With `used`, the past is a buffer that holds as many
/// keys, and takes the new ones behind them. Returns the result, all keys and values, and the scores if they are wanted.
fn masked_attention(
    c: &Call,
    [q, k, v]: [&Tensor; 3],
    past: Option<(Tensor, Tensor)>,
    used: Option<i64>,
    mask: Option<Tensor>,
) -> Results {
    for t in [q, k, v] {
        t.check()?;
    }
    let (mut k, mut v) = (k.clone(), v.clone());
    let past_len = past_len(past.as_ref(), used)?;
    if let Some((a, b)) = &past {
        let past_rows = |t: &Tensor| slice_axis(t, 2, &Dim::ZERO, &past_len, 1);
        (k, v) = (cat([past_rows(a)?, k], 2), cat([past_rows(b)?, v], 2));
    }
    k.check()?;
    v.check()?;
    let mut scores = Scores::new(q, c.maybe_float("scale")?.filter(|s| *s != 0.0));
    scores.bias = c.optional(5)?;
    if let Some(mask) = mask {
        let mask = key_mask(&mask, q, &k, &past_len)?;
        // Added, so that a query whose keys are all masked weighs them.
        let filter = c.float("mask_filter_value", -10000.0)?;
        let added = Tensor::zeros((), q.dtype()).where_cond(mask, filter);
        scores.bias = Some(match scores.bias.take() {
            Some(bias) => bias + added,
            None => added,
        });
    }
    if c.flag("unidirectional", false)? {
        scores.bias = match scores.bias.take() {
            Some(bias) => {
                let distance = position_difference(q, &k, Some(size_as_tensor(&past_len)));
                Some(bias.where_cond(distance.ge(0), f64::NEG_INFINITY))
            }
            None => {
                scores.causal(q, &k, &past_len);
                None
            }
        };
    }
    let (y, shown) = attend_and_show(c, [q, &k, &v], scores, q.dtype(), 2)?;
    if let (Some((a, b)), Some(_)) = (&past, used) {
        let tail = |full: &Tensor, buffer: &Tensor| {
            let (end, room) = (known_extent(full, 2)?, known_extent(buffer, 2)?);
            if (&room - &end).as_const().is_some_and(|n| n < 0) {
                return Err(invalid(format!(
                    "{end} keys don't fit into a buffer of {room}"
                )));
            }
            let tail = slice_axis(buffer, 2, &end, &room, 1)?;
            Ok(cat([full.clone(), tail], 2))
        };
        (k, v) = (tail(&k, a)?, tail(&v, b)?);
        k.check()?;
        v.check()?;
    }
    let mut results = vec![merge_heads(y).into(), k.into(), v.into()];
    results.extend(shown);
    Ok(results)
}

/// Returns the number of keys in the past.
fn past_len(past: Option<&(Tensor, Tensor)>, used: Option<i64>) -> Result<Dim> {
    let Some((keys, _)) = past else {
        return Ok(Dim::ZERO);
    };
    let room = known_extent(keys, 2)?;
    match used {
        None => Ok(room),
        Some(n) if n >= 0 && room.as_const().is_none_or(|room| n <= room) => Ok(Dim::Const(n)),
        Some(n) => Err(invalid(format!("the past holds {room} keys, not {n}"))),
    }
}

/// Returns a size of a tensor that should have 4 dims.
fn known_extent(t: &Tensor, axis: usize) -> Result<Dim> {
    t.check()?;
    match t.dims() {
        dims @ [_, _, _, _] => Ok(dims[axis].clone()),
        dims => Err(invalid(format!("needs 4 dims, not {}", dims.len()))),
    }
}

/// The keys that take part, in a shape that broadcasts to scores: from flags, the numbers of keys, their ends and starts,
/// or flags of all positions.
fn key_mask(mask: &Tensor, q: &Tensor, k: &Tensor, past_len: &Dim) -> Result<Tensor> {
    let (batch, positions) = (q.dims()[0].clone(), iota(&k.dims()[2]));
    let segment = |i: i64| {
        let [start, end] = [i, i + 1].map(|i| &batch * &Dim::Const(i));
        let segment = slice_axis(mask, 0, &start, &end, 1)?;
        Ok::<_, kiln_tensor::Error>(segment.to_dtype(DType::I64).unsqueeze(-1))
    };
    Ok(match mask.dims() {
        [n] => {
            let mut flags = positions.lt(segment(0)?);
            if *n == &batch * &Dim::Const(2) {
                flags = flags.logical_and(positions.ge(segment(1)?));
            }
            flags.unsqueeze(1).unsqueeze(1)
        }
        [_, _] => mask.ne(0).unsqueeze(1).unsqueeze(1),
        [_, _, _] => mask.ne(0).unsqueeze(1),
        [_, _, _, _] => {
            let rows = slice_axis(mask, 2, past_len, &(past_len + &q.dims()[2]), 1)?;
            slice_axis(&rows, 3, &Dim::ZERO, &k.dims()[2], 1)?.ne(0)
        }
        _ => return Err(invalid(format!("a mask of {} dims", mask.ndim()))),
    })
}

fn grouped_attention(c: &Call) -> Results {
    if c.has(12) || c.has(14) || c.has(16) || c.flag("sliding_window_cache", false)? {
        return Err(unsupported(
            "quantised or sliding caches, norms of queries and padded queries",
        ));
    }
    let (count, key_count) = (c.int("num_heads", 0)?, c.int("kv_num_heads", 0)?);
    let (mut q, mut k, mut v) = match c.has(1) && c.has(2) {
        true => (
            split_heads(c.tensor(0)?, Some(count))?,
            split_heads(c.tensor(1)?, Some(key_count))?,
            split_heads(c.tensor(2)?, Some(key_count))?,
        ),
        // The query holds the heads of keys and values too.
        false => {
            let keys = key_count.saturating_mul(2);
            let all_heads = split_heads(c.tensor(0)?, Some(count.saturating_add(keys)))?;
            (
                all_heads.narrow(1, 0, count),
                all_heads.narrow(1, count, key_count),
                all_heads.narrow(1, count.saturating_add(key_count), key_count),
            )
        }
    };
    for t in [&q, &k, &v] {
        t.check()?;
    }
    let (batch, length) = (q.dims()[0].clone(), q.dims()[2].clone());
    let past = c.optional(3)?.zip(c.optional(4)?);
    // The keys of each sample, and those in front of the query: [b, 1, 1, 1].
    let total = c.tensor(5)?.to_dtype(DType::I64).reshape(vec![
        batch.clone(),
        Dim::ONE,
        Dim::ONE,
        Dim::ONE,
    ]) + 1;
    let start = (&total - size_as_tensor(&length)).clamp_min(0);
    if c.flag("do_rotary", false)? {
        let table = [&c.tensor(7)?, &c.tensor(8)?];
        let positions = match c.optional(9)? {
            Some(given) => given,
            None => iota(&length) + start.reshape(vec![batch.clone(), Dim::ONE]),
        };
        q = rotate_pairs(c, &q, table, Some(&positions))?;
        k = rotate_pairs(c, &k, table, Some(&positions))?;
    }
    if let Some((a, b)) = &past {
        // A buffer with room for the new keys takes them; another one grows.
        let room = known_extent(a, 2)?;
        let total_len = match c.sizes(6) {
            Err(e) if e.kind() == ErrorKind::ReadWhileCompiling => None,
            sizes => sizes?.and_then(|sizes| sizes.first().cloned()),
        };
        let extra = total_len.and_then(|total| (&total - &room).as_const());
        let extra = extra.filter(|n| length.as_const().is_some_and(|length| *n < length));
        let grown = extra.map_or(length.clone(), |n| Dim::Const(n.max(0)));
        let rows = (iota(&length).unsqueeze(-1) + &start).expand(k.dims());
        let written = |buffer: &Tensor, new: &Tensor| {
            let mut shape = new.dims().to_vec();
            shape[2] = grown.clone();
            let buffer = cat([buffer.clone(), Tensor::zeros(shape, new.dtype())], 2);
            buffer.scatter(2, &rows, new)
        };
        (k, v) = match batch.is(1) && grown == length {
            true => (cat([a.clone(), k], 2), cat([b.clone(), v], 2)),
            false => (written(a, &k), written(b, &v)),
        };
    }
    k.check()?;
    v.check()?;
    let mut scores = Scores::new(&q, c.maybe_float("scale")?.filter(|s| *s != 0.0));
    scores.softcap = c.float("softcap", 0.0)?;
    if let Some(bias) = c.optional(10)? {
        let missing = &k.dims()[2] - &known_extent(&bias, 3)?;
        scores.bias = Some(match missing.as_const() {
            Some(n) if n > 0 => bias.pad([0, n], PadMode::Constant(Scalar::Float(0.0))),
            _ => bias,
        });
    }
    scores.sink = match c.optional(11)? {
        Some(sink) => Some(sink.reshape([1, count, 1, 1])),
        None if c.int("smooth_softmax", 0)? > 0 => Some(Tensor::zeros([1, count, 1, 1], q.dtype())),
        None => None,
    };
    let distance = position_difference(&q, &k, Some(start));
    if c.flag("causal", true)? {
        scores.allow(distance.ge(0));
    }
    let window = c.int("local_window_size", -1)?;
    if window > 0 {
        scores.allow(distance.lt(window));
    }
    scores.allow(iota(&k.dims()[2]).lt(total));
    let y = merge_heads(attend(&q, &k, &v, scores)?);
    Ok(vec![y.into(), k.into(), v.into()])
}
