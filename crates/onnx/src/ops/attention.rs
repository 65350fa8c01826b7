//! Attention.

use super::{Record, sum_dtype};
use crate::call::{Call, Results, known_size, single};
use crate::fault::invalid;
use crate::value::{Value, iota, size_as_tensor};
use kiln_base::{Dim, numel};
use kiln_tensor::{Attention, DType, PadMode, Result, Scalar, Tensor, cat, keep, stack};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "Attention" => attention,
        "RotaryEmbedding" => rotary,
        _ => return None,
    })
}

/// Operators of `ai.onnx.preview`.
pub(super) fn find_preview(op: &str) -> Option<Record> {
    (op == "FlexAttention").then_some(flex_attention)
}

/// Attention whose scores and weights are changed by graphs.
fn flex_attention(c: &Call) -> Results {
    let (q, k, v) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let ([_, _, _, size], [_, _, _, _], [_, _, _, _]) = (q.dims(), k.dims(), v.dims()) else {
        return Err(invalid("queries, keys and values have 4 dims"));
    };
    let size = size.as_const().unwrap_or(1) as f64;
    let root = c.maybe_float("scale")?.unwrap_or(1.0 / size.sqrt()).sqrt();
    let wide = c.dtype("softmax_precision", sum_dtype(q.dtype()))?;
    let (k, v) = (repeat_heads(&k, &q)?, repeat_heads(&v, &q)?);
    let changed = |t: Tensor, name: &str| match c.attribute(name) {
        None => Ok(t),
        Some(_) => {
            let values = c.scope.body(c.graph(name)?, vec![t.into()])?;
            match &values[..] {
                [Value::Tensor(t)] => Ok(t.tensor().to_dtype(wide)),
                _ => Err(invalid(format!("{name} must give one tensor"))),
            }
        }
    };
    let scores = (q * root).matmul((k * root).transpose(2, 3));
    let scores = changed(scores.to_dtype(wide), "score_mod")?;
    let weights = changed(scores.softmax(3), "prob_mod")?;
    single(weights.matmul(v.to_dtype(wide)).to_dtype(v.dtype()))
}

/// Splits the last of 3 dims into heads: `[b, heads, s, e]`.
pub(super) fn split_heads(t: Tensor, count: Option<i64>) -> Result<Tensor> {
    match (t.dims(), count) {
        ([_, _, _, _], _) => Ok(t),
        ([b, s, all], Some(n)) if n > 0 => {
            let size = all
                .div_exact(&Dim::Const(n))
                .map_err(|e| invalid(e.to_string()))?;
            let split = t.reshape(vec![b.clone(), s.clone(), Dim::Const(n), size]);
            Ok(split.transpose(1, 2))
        }
        ([_, _, _], _) => Err(invalid("3 dims need the number of heads")),
        _ => Err(invalid(format!("needs 3 or 4 dims, not {}", t.ndim()))),
    }
}

/// Joins heads `[b, heads, s, e]` to `[b, s, heads · e]`.
pub(super) fn merge_heads(y: Tensor) -> Tensor {
    let y = y.transpose(1, 2);
    let [b, s, heads, size] = y.dims() else {
        return y;
    };
    let shape = vec![b.clone(), s.clone(), heads * size];
    y.reshape(shape)
}

/// The meaning of scores besides the products of queries and keys.
pub(super) struct Scores {
    scale: f64,
    /// Scores are bounded by this smoothly, unless it is 0.
    pub softcap: f64,
    /// Added to scores.
    pub bias: Option<Tensor>,
    /// True if the bias is capped too.
    caps_bias: bool,
    /// The keys that take part.
    allowed: Option<Tensor>,
    /// A score of no key, which broadcasts to `[b, h, s, 1]`.
    pub sink: Option<Tensor>,
}

impl Scores {
    /// Scores of queries `[b, h, s, e]`, whose scale is 1 / √e if none is given.
    pub fn new(q: &Tensor, scale: Option<f64>) -> Scores {
        let size = q.dims().get(3).and_then(Dim::as_const).unwrap_or(1) as f64;
        Scores {
            scale: scale.unwrap_or(1.0 / size.sqrt()),
            softcap: 0.0,
            bias: None,
            caps_bias: false,
            allowed: None,
            sink: None,
        }
    }

    /// Excludes the keys where the mask is false.
    pub fn allow(&mut self, mask: Tensor) {
        self.allowed = Some(match self.allowed.take() {
            Some(before) => before.logical_and(mask),
            None => mask,
        });
    }

    /// Excludes keys behind their query, which stands behind `past` keys.
    pub fn causal(&mut self, q: &Tensor, k: &Tensor, past: &Dim) {
        let distance = position_difference(q, k, past_offset(past));
        self.allow(distance.ge(0));
    }
}

fn past_offset(past_len: &Dim) -> Option<Tensor> {
    (!past_len.is(0)).then(|| size_as_tensor(past_len))
}

/// The positions of queries minus those of keys.
pub(super) fn position_difference(q: &Tensor, k: &Tensor, offset: Option<Tensor>) -> Tensor {
    let position = iota(&q.dims()[2]).unsqueeze(-1);
    let position = match offset {
        Some(offset) => position + offset,
        None => position,
    };
    position - iota(&k.dims()[2])
}

/// Returns the number of query heads that share a key head.
fn queries_per_key(q: &Tensor, k: &Tensor) -> Result<i64> {
    match (q.dims()[1].as_const(), k.dims()[1].as_const()) {
        (Some(q), Some(k)) if k > 0 && q % k == 0 => Ok(q / k),
        (a, b) if a == b => Ok(1),
        _ => Err(invalid(format!(
            "{} heads of the query for {} of the key",
            q.dims()[1],
            k.dims()[1]
        ))),
    }
}

/// Returns the heads of keys or values, once for each head of the query that shares them.
fn repeat_heads(t: &Tensor, q: &Tensor) -> Result<Tensor> {
    Ok(match queries_per_key(q, t)? {
        1 => t.clone(),
        n => t.repeat_interleave(n, 1),
    })
}

/// Attention of queries to keys: `[b, h, s, v]`.
pub(super) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, scores: Scores) -> Result<Tensor> {
    if scores.softcap == 0.0
        && scores.sink.is_none()
        && !(scores.bias.is_some() && scores.allowed.is_some())
    {
        let options = Attention::new()
            .scale(Some(scores.scale))
            .enable_gqa(queries_per_key(q, k)? > 1)
            .attn_mask(scores.bias.or(scores.allowed));
        return Ok(q.scaled_dot_product_attention_with(k, v, options));
    }
    Ok(attend_in_steps(q, k, v, &scores, q.dtype(), 0)?.0)
}

/// Attention, and the scores after one of the steps if the node has an output for them.
pub(super) fn attend_and_show(
    c: &Call,
    [q, k, v]: [&Tensor; 3],
    scores: Scores,
    precision: DType,
    shown: i64,
) -> Result<(Tensor, Option<Value>)> {
    if !c.wants(3) {
        return Ok((attend(q, k, v, scores)?, None));
    }
    let (y, shown) = attend_in_steps(q, k, v, &scores, precision, shown)?;
    Ok((y, Some(shown.into())))
}

/// Attention by products and a softmax, and the scores after one of the steps.
fn attend_in_steps(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    scores: &Scores,
    precision: DType,
    shown: i64,
) -> Result<(Tensor, Tensor)> {
    let (k, v, dtype) = (repeat_heads(k, q)?, repeat_heads(v, q)?, q.dtype());
    let root = scores.scale.sqrt();
    let products = (q * root).matmul((k * root).transpose(2, 3));
    let cap = |t: &Tensor| match scores.softcap > 0.0 {
        true => (t / scores.softcap).tanh() * scores.softcap,
        false => t.clone(),
    };
    let biased = |t: &Tensor| match &scores.bias {
        Some(bias) => t + bias.to_dtype(dtype),
        None => t.clone(),
    };
    let excluded = |t: Tensor| match &scores.allowed {
        Some(allowed) => t.where_cond(allowed, f64::NEG_INFINITY),
        None => t,
    };
    let (before_cap, masked) = match scores.caps_bias {
        true => (
            excluded(biased(&products)),
            excluded(cap(&biased(&products))),
        ),
        false => (cap(&products), excluded(biased(&cap(&products)))),
    };
    let precise = masked.to_dtype(precision);
    // A query without keys gives zeros.
    let none = precise.amax(keep(3)).eq(f64::NEG_INFINITY);
    let weights = match &scores.sink {
        None => precise.softmax(3),
        Some(sink) => {
            let sum = precise.logsumexp(keep(3));
            (&precise - sum.logaddexp(sink.to_dtype(precision))).exp()
        }
    };
    let weights = weights.masked_fill(none, 0.0).to_dtype(dtype);
    let shown = match shown {
        0 => products,
        1 => before_cap,
        2 => masked,
        _ => weights.clone(),
    };
    Ok((weights.matmul(v), shown.to_dtype(dtype)))
}

fn attention(c: &Call) -> Results {
    let count = |name: &str| {
        let is_given = c.attribute(name).is_some();
        is_given.then(|| c.int(name, 0)).transpose()
    };
    let (query_heads, key_heads) = (count("q_num_heads")?, count("kv_num_heads")?);
    let flat = c.tensor(0)?.ndim() == 3;
    let q = split_heads(c.tensor(0)?, query_heads)?;
    let mut k = split_heads(c.tensor(1)?, key_heads)?;
    let mut v = split_heads(c.tensor(2)?, key_heads)?;
    let mut past_len = Dim::ZERO;
    if let (Some(past_key), Some(past_value)) = (c.optional(4)?, c.optional(5)?) {
        past_len = past_key.dims().get(2).cloned().unwrap_or(Dim::ZERO);
        k = cat([past_key, k], 2);
        v = cat([past_value, v], 2);
    }
    k.check()?;
    v.check()?;
    let mut scores = Scores::new(&q, c.maybe_float("scale")?);
    scores.softcap = c.float("softcap", 0.0)?;
    // As release 1.19.1 of the standard has it.
    scores.caps_bias = c.version < 25;
    if let Some(mask) = c.optional(3)? {
        let mask = widen_mask(&mask, &k.dims()[2])?;
        match mask.dtype() {
            DType::Bool => scores.allow(mask),
            _ => scores.bias = Some(mask),
        }
    }
    let lengths = c.optional(6)?.map(|n| {
        let shape = vec![numel(n.dims()), Dim::ONE, Dim::ONE, Dim::ONE];
        n.to_dtype(DType::I64).reshape(shape)
    });
    let offset = match &lengths {
        Some(n) if !c.has(4) => Some(n - size_as_tensor(&q.dims()[2])),
        _ => past_offset(&past_len),
    };
    let (left, right) = (
        c.int("left_window_size", -1)?,
        c.int("right_window_size", -1)?,
    );
    let is_causal = c.flag("is_causal", false)?;
    if is_causal || left >= 0 || right >= 0 {
        let distance = position_difference(&q, &k, offset);
        if is_causal {
            scores.allow(distance.ge(0));
        }
        if left >= 0 {
            scores.allow(distance.le(left));
        }
        if right >= 0 {
            scores.allow(distance.ge(-right));
        }
    }
    if let Some(n) = lengths {
        scores.allow(iota(&k.dims()[2]).lt(n));
    }
    let precision = c.dtype("softmax_precision", q.dtype())?;
    let mode = c.int("qk_matmul_output_mode", 0)?;
    let (y, shown) = attend_and_show(c, [&q, &k, &v], scores, precision, mode)?;
    let y = if flat { merge_heads(y) } else { y };
    let mut results = vec![y.into(), k.into(), v.into()];
    results.extend(shown);
    Ok(results)
}

/// Returns a mask that excludes keys beyond those it was given for.
fn widen_mask(mask: &Tensor, columns: &Dim) -> Result<Tensor> {
    let own = mask.dims().last().cloned().unwrap_or(Dim::ONE);
    match (own.as_const(), columns.as_const()) {
        (Some(own), Some(all)) if own < all && own != 1 => {
            let fill = match mask.dtype() {
                DType::Bool => Scalar::Bool(false),
                _ => Scalar::Float(f64::NEG_INFINITY),
            };
            Ok(mask.pad([0, all - own], PadMode::Constant(fill)))
        }
        _ => Ok(mask.clone()),
    }
}

fn rotary(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let tables = [&c.tensor(1)?, &c.tensor(2)?];
    single(rotate_pairs(c, &x, tables, c.optional(3)?.as_ref())?)
}

/// Rotates pairs of elements of heads by angles, whose cosines and sines are rows of tables, at these positions.
pub(super) fn rotate_pairs(
    c: &Call,
    x: &Tensor,
    [cos, sin]: [&Tensor; 2],
    positions: Option<&Tensor>,
) -> Result<Tensor> {
    let flat = x.ndim() == 3;
    let count = c.int("num_heads", 0)?;
    let table = |t: &Tensor| match (positions, t.dims()) {
        (Some(p), [_, width]) => {
            let flat = p.to_dtype(DType::I64).reshape(vec![numel(p.dims())]);
            let shape = [p.dims(), std::slice::from_ref(width)].concat();
            Ok(t.index_select(0, flat).reshape(shape).unsqueeze(2))
        }
        (Some(_), dims) => Err(invalid(format!(
            "a table of angles needs 2 dims, not {}",
            dims.len()
        ))),
        (None, _) => Ok(t.unsqueeze(2)),
    };
    let width = cos.dims().last().and_then(Dim::as_const);
    let count = match (count, x.dims().last().and_then(Dim::as_const), width) {
        // The table tells the size of a head.
        (0, Some(all), Some(half)) if flat && half > 0 => all / (2 * half),
        (count, ..) => count,
    };
    let (cos, sin) = (table(cos)?, table(sin)?);
    // [b, s, heads, e].
    let split = split_heads(x.clone(), (count > 0).then_some(count))?.transpose(1, 2);
    split.check()?;
    let size = known_size(&split, 3)?;
    let width = match c.int("rotary_embedding_dim", 0)? {
        0 => size,
        n if n > 0 && n <= size && n % 2 == 0 => n,
        n => return Err(invalid(format!("rotary_embedding_dim can't be {n}"))),
    };
    let interleaved = match c.node.op_type() {
        "GroupQueryAttention" => c.flag("rotary_interleaved", false)?,
        _ => c.flag("interleaved", false)?,
    };
    let rotating = split.narrow(3, 0, width);
    let (a, b) = match interleaved {
        true => {
            let mut shape = rotating.dims().to_vec();
            shape[3] = Dim::Const(width / 2);
            shape.push(Dim::Const(2));
            let pairs = rotating.reshape(shape);
            (pairs.select(4, 0), pairs.select(4, 1))
        }
        false => (
            rotating.narrow(3, 0, width / 2),
            rotating.narrow(3, width / 2, width / 2),
        ),
    };
    let (real, imaginary) = (&cos * &a - &sin * &b, sin * a + cos * b);
    let y = match interleaved {
        true => stack([real, imaginary], 4).reshape(rotating.dims()),
        false => cat([real, imaginary], 3),
    };
    let y = match width < size {
        true => cat([y, split.narrow(3, width, size - width)], 3),
        false => y,
    };
    y.check()?;
    if y.ndim() != 4 {
        return Err(invalid("the positions don't fit the input"));
    }
    Ok(match flat {
        true => y.reshape(x.dims()),
        false => y.transpose(1, 2),
    })
}
