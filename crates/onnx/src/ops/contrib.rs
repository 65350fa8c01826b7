//! Operators of onnxruntime's own (`com.microsoft`), which exporters and its optimiser emit.

use super::attention::{Scores, attend, heads, merged, rotated};
use super::elementwise::swish;
use super::norm::{normalised, root_mean_square};
use super::{Record, quantize};
use crate::call::{Call, Results, one};
use crate::fault::{invalid, unsupported};
use crate::value::{iota, size_as_tensor};
use kiln_base::Dim;
use kiln_tensor::{DType, Result, Tensor, cat, stack};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "BiasGelu" => |c| one((c.tensor(0)? + c.tensor(1)?).gelu()),
        "FastGelu" => |c| {
            let x = c.tensor(0)?;
            one(c.optional(1)?.map_or(x.clone(), |b| x + b).gelu_tanh())
        },
        "Gelu" => |c| one(c.tensor(0)?.gelu()),
        "QuickGelu" => |c| one(swish(&c.tensor(0)?, c.float("alpha", 1.702)?)),

        "FusedMatMul" => fused_matmul,
        "MatMulNBits" => matmul_bits,

        "Attention" => attention,
        "GroupQueryAttention" => grouped_attention,
        "MultiHeadAttention" => multi_head_attention,
        "RotaryEmbedding" => |c| {
            let x = c.tensor(0)?;
            let positions = first_positions(c, &x)?;
            one(rotated(
                c,
                &x,
                [&c.tensor(2)?, &c.tensor(3)?],
                Some(&positions),
            )?)
        },

        "SimplifiedLayerNormalization" => simplified_layer_norm,
        "SkipLayerNormalization" => |c| {
            let sum = skipped(c, 4)?;
            let (y, mean, spread) = normalised(
                &sum,
                &c.tensor(2)?,
                c.optional(3)?.as_ref(),
                sum.ndim() - 1,
                c.float("epsilon", 1e-12)?,
                wide(&sum),
            );
            Ok(vec![y.into(), mean.into(), spread.into(), sum.into()])
        },
        "SkipSimplifiedLayerNormalization" => |c| {
            let sum = skipped(c, 3)?;
            let eps = c.float("epsilon", 1e-5)?;
            let y = root_mean_square(&sum, &c.tensor(2)?, sum.ndim() - 1, eps, wide(&sum));
            let none = crate::value::Value::Nothing;
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

/// Returns the dtype that statistics are computed in.
fn wide(t: &Tensor) -> DType {
    if t.dtype().is_half() {
        DType::F32
    } else {
        t.dtype()
    }
}

fn simplified_layer_norm(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let from = c.axis("axis", -1, x.ndim())?;
    let eps = c.float("epsilon", 1e-5)?;
    one(root_mean_square(&x, &c.tensor(1)?, from, eps, wide(&x)))
}

/// The input plus the skipped value, and a bias at `bias`.
fn skipped(c: &Call, bias: usize) -> Result<Tensor> {
    let sum = c.tensor(0)? + c.tensor(1)?;
    Ok(c.optional(bias)?.map_or(sum.clone(), |b| sum + b))
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
        1.0 => one(y),
        alpha => one(y * alpha),
    }
}

/// Returns the numbers of `bits` bits in bytes, the lowest first: the last dim becomes `8 / bits` times as long.
fn unpacked(bytes: &Tensor, bits: i64) -> Tensor {
    let each = 8 / bits;
    let wide = bytes.to_dtype(DType::I32).unsqueeze(-1);
    let shifts: Vec<i32> = (0..each).map(|i| (i * bits) as i32).collect();
    let numbers = wide
        .bitwise_right_shift(Tensor::from(shifts))
        .bitwise_and((1i64 << bits) - 1);
    let mut shape = bytes.dims().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = &*last * &Dim::Const(each);
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
    let weight =
        unpacked(&packed.reshape([n, blocks, block * bits / 8]), bits).to_dtype(DType::F32);
    let zero = match c.optional(3)? {
        None => Tensor::full((), 2f64.powi(bits as i32 - 1), DType::F32),
        Some(z) if z.dtype().is_float() => z.reshape([n, blocks, 1]).to_dtype(DType::F32),
        Some(z) => {
            let all = unpacked(&z.reshape([n, -1]), bits);
            all.narrow(1, 0, blocks).unsqueeze(-1).to_dtype(DType::F32)
        }
    };
    let scaled = (weight - zero) * scales.reshape([n, blocks, 1]).to_dtype(DType::F32);
    let weight = scaled
        .reshape([n, blocks * block])
        .narrow(1, 0, k)
        .to_dtype(x.dtype());
    one(x.linear_with(weight, c.optional(5)?))
}

/// Returns positions `[b, s]` of a rotation: given, or counted from a first one.
fn first_positions(c: &Call, x: &Tensor) -> Result<Tensor> {
    let given = c.tensor(1)?.to_dtype(DType::I64);
    if given.ndim() == 2 {
        return Ok(given);
    }
    let length = &x.dims()[if x.ndim() == 4 { 2 } else { 1 }];
    let first = given.reshape(vec![Dim::ONE, Dim::ONE]);
    Ok((iota(length) + first).expand(vec![x.dims()[0].clone(), length.clone()]))
}

fn multi_head_attention(c: &Call) -> Results {
    if !c.has(1) || !c.has(2) {
        return Err(unsupported("a query that holds keys and values"));
    }
    let mut operands = [c.tensor(0)?, c.tensor(1)?, c.tensor(2)?];
    if let Some(bias) = c.optional(3)? {
        let mut at = 0;
        for t in &mut operands {
            let size = t.dims()[2]
                .as_const()
                .ok_or_else(|| invalid("needs known widths"))?;
            *t = &*t + bias.narrow(0, at, size);
            at += size;
        }
    }
    let past = c.optional(6)?.zip(c.optional(7)?);
    let (y, k, v) = masked_attention(c, operands, past, c.optional(4)?, c.optional(5)?)?;
    Ok(vec![y.into(), k.into(), v.into()])
}

/// Attention of queries, keys and values that one product computes.
fn attention(c: &Call) -> Results {
    if c.flag("do_rotary", false)? || c.flag("past_present_share_buffer", false)? {
        return Err(unsupported(
            "attention with rotary embeddings or a shared buffer",
        ));
    }
    let product = c.tensor(0)?.matmul(c.tensor(1)?);
    let product = c.optional(2)?.map_or(product.clone(), |b| product + b);
    let width = product.dims().last().and_then(Dim::as_const).unwrap_or(0);
    let sizes = c
        .ints("qkv_hidden_sizes")?
        .unwrap_or_else(|| vec![width / 3; 3]);
    let [q, k, v] = sizes[..] else {
        return Err(invalid("qkv_hidden_sizes must hold 3 sizes"));
    };
    let operands = [
        product.narrow(-1, 0, q),
        product.narrow(-1, q, k),
        product.narrow(-1, q.saturating_add(k), v),
    ];
    let past = c
        .optional(4)?
        .map(|past| (past.select(0, 0), past.select(0, 1)));
    let (y, k, v) = masked_attention(c, operands, past, c.optional(3)?, c.optional(5)?)?;
    let mut results = vec![y.into()];
    if c.wants(1) {
        results.push(stack([k, v], 0).into());
    }
    Ok(results)
}

/// Attention of `[batch, length, width]`, with the mask of the keys. Returns the result, and all keys and values.
fn masked_attention(
    c: &Call,
    [q, k, v]: [Tensor; 3],
    past: Option<(Tensor, Tensor)>,
    mask: Option<Tensor>,
    bias: Option<Tensor>,
) -> Result<(Tensor, Tensor, Tensor)> {
    let count = c.int("num_heads", 0)?;
    let q = heads(q, Some(count))?;
    let (mut k, mut v) = (heads(k, Some(count))?, heads(v, Some(count))?);
    let mut seen = Dim::ZERO;
    if let Some((a, b)) = past {
        seen = a.dims().get(2).cloned().unwrap_or(Dim::ZERO);
        (k, v) = (cat([a, k], 2), cat([b, v], 2));
    }
    let mut scores = Scores::new(&q, c.maybe_float("scale")?.filter(|s| *s != 0.0));
    scores.bias = bias;
    if let Some(mask) = mask {
        let mask = match mask.ndim() {
            // Lengths, or one flag a key.
            1 => iota(&k.dims()[2]).lt(mask.to_dtype(DType::I64).unsqueeze(-1)),
            _ => mask.ne(0),
        };
        let mask = match mask.ndim() {
            2 => mask.unsqueeze(1).unsqueeze(1),
            _ => mask.unsqueeze(1),
        };
        scores.allow(mask);
    }
    if c.flag("unidirectional", false)? {
        scores.causal(&q, &k, &seen);
    }
    k.check()?;
    v.check()?;
    Ok((merged(attend(&q, &k, &v, scores)?), k, v))
}

fn grouped_attention(c: &Call) -> Results {
    let (count, key_count) = (c.int("num_heads", 0)?, c.int("kv_num_heads", 0)?);
    let (mut q, mut k, mut v) = match c.has(1) && c.has(2) {
        true => (
            heads(c.tensor(0)?, Some(count))?,
            heads(c.tensor(1)?, Some(key_count))?,
            heads(c.tensor(2)?, Some(key_count))?,
        ),
        // The query holds the heads of keys and values too.
        false => {
            let all = heads(c.tensor(0)?, Some(count + 2 * key_count))?;
            (
                all.narrow(1, 0, count),
                all.narrow(1, count, key_count),
                all.narrow(1, count + key_count, key_count),
            )
        }
    };
    let past = c.optional(3)?.map_or(Dim::ZERO, |t| t.dims()[2].clone());
    if c.flag("do_rotary", false)? {
        let table = [&c.tensor(7)?, &c.tensor(8)?];
        let length = q.dims()[2].clone();
        let positions = iota(&length) + size_as_tensor(&past);
        let positions = positions
            .unsqueeze(0)
            .expand(vec![q.dims()[0].clone(), length]);
        q = rotated(c, &q, table, Some(&positions))?;
        k = rotated(c, &k, table, Some(&positions))?;
    }
    if let (Some(a), Some(b)) = (c.optional(3)?, c.optional(4)?)
        && !past.is(0)
    {
        (k, v) = (cat([a, k], 2), cat([b, v], 2));
    }
    let mut scores = Scores::new(&q, c.maybe_float("scale")?.filter(|s| *s != 0.0));
    scores.softcap = c.float("softcap", 0.0)?;
    scores.causal(&q, &k, &past);
    let window = c.int("local_window_size", -1)?;
    if window > 0 {
        scores.window(&q, &k, &past, window);
    }
    // The last key of each sample.
    let last = c.tensor(5)?.to_dtype(DType::I64).reshape(vec![
        q.dims()[0].clone(),
        Dim::ONE,
        Dim::ONE,
        Dim::ONE,
    ]);
    scores.allow(iota(&k.dims()[2]).le(last));
    k.check()?;
    v.check()?;
    let y = merged(attend(&q, &k, &v, scores)?);
    Ok(vec![y.into(), k.into(), v.into()])
}
