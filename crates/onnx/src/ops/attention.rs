//! Attention.

use super::Record;
use crate::call::{Call, Results, one};
use crate::fault::invalid;
use crate::tensor;
use crate::value::iota;
use kiln_base::Dim;
use kiln_tensor::{Attention, DType, PadMode, Result, Scalar, Tensor, cat, keep};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "Attention" => attention,
        "RotaryEmbedding" => rotary,
        _ => return None,
    })
}

/// Splits the last of 3 dims into heads: `[b, heads, s, e]`.
fn heads(t: Tensor, count: Option<i64>) -> Result<Tensor> {
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

fn attention(c: &Call) -> Results {
    let count = |name: &str| {
        let given = c.attribute(name).is_some();
        given.then(|| c.int(name, 0)).transpose()
    };
    let (query_heads, key_heads) = (count("q_num_heads")?, count("kv_num_heads")?);
    let flat = c.tensor(0)?.ndim() == 3;
    let q = heads(c.tensor(0)?, query_heads)?;
    let (mut k, mut v) = (
        heads(c.tensor(1)?, key_heads)?,
        heads(c.tensor(2)?, key_heads)?,
    );
    let past = c
        .optional(4)?
        .map_or(Dim::ZERO, |t| t.dims().get(2).cloned().unwrap_or(Dim::ZERO));
    if let (Some(past_key), Some(past_value)) = (c.optional(4)?, c.optional(5)?) {
        k = cat([past_key, k], 2);
        v = cat([past_value, v], 2);
    }
    k.check()?;
    v.check()?;
    let present = (k.clone(), v.clone());
    let size = q.dims()[3].as_const().unwrap_or(1) as f64;
    let scale = c.maybe_float("scale")?.unwrap_or(1.0 / size.sqrt());
    let softcap = c.float("softcap", 0.0)?;
    let (rows, columns) = (q.dims()[2].clone(), k.dims()[2].clone());
    let lengths = c.optional(6)?;

    // Where keys take part, and what is added to their scores.
    let mut allowed: Option<Tensor> = None;
    let mut allow = |mask: Tensor| {
        allowed = Some(match allowed.take() {
            Some(before) => before.logical_and(mask),
            None => mask,
        });
    };
    let mut bias = None;
    if let Some(mask) = c.optional(3)? {
        let mask = widened_mask(&mask, &columns)?;
        match mask.dtype() {
            DType::Bool => allow(mask),
            _ => bias = Some(mask),
        }
    }
    let position = iota(&rows).unsqueeze(-1);
    let key_position = iota(&columns);
    let offset = match (&lengths, past.as_const()) {
        (Some(n), _) if !c.has(4) => Some(
            n.to_dtype(DType::I64)
                .reshape(vec![n.dims()[0].clone(), Dim::ONE, Dim::ONE, Dim::ONE])
                - size_of(&rows),
        ),
        (_, Some(0)) => None,
        _ => Some(size_of(&past)),
    };
    let position = match offset {
        Some(offset) => position + offset,
        None => position,
    };
    let is_causal = c.flag("is_causal", false)?;
    if is_causal {
        allow(key_position.le(&position));
    }
    let (left, right) = (
        c.int("left_window_size", -1)?,
        c.int("right_window_size", -1)?,
    );
    if left >= 0 {
        allow((&position - &key_position).le(left));
    }
    if right >= 0 {
        allow((&key_position - &position).le(right));
    }
    if let Some(n) = &lengths {
        let n =
            n.to_dtype(DType::I64)
                .reshape(vec![n.dims()[0].clone(), Dim::ONE, Dim::ONE, Dim::ONE]);
        allow(key_position.lt(n));
    }

    let shared = match (q.dims()[1].as_const(), k.dims()[1].as_const()) {
        (Some(q), Some(k)) if k > 0 && q % k == 0 => q / k,
        (a, b) if a == b => 1,
        _ => {
            return Err(invalid(format!(
                "{} heads of the query for {} of the key",
                q.dims()[1],
                k.dims()[1]
            )));
        }
    };
    let merged = |y: Tensor| match flat {
        true => {
            let y = y.transpose(1, 2);
            let all = &y.dims()[2] * &y.dims()[3];
            let shape = vec![y.dims()[0].clone(), y.dims()[1].clone(), all];
            y.reshape(shape)
        }
        false => y,
    };
    if softcap == 0.0 && !c.wants(3) && !(bias.is_some() && allowed.is_some()) {
        let how = Attention::new()
            .scale(Some(scale))
            .enable_gqa(shared > 1)
            .attn_mask(bias.or(allowed));
        let y = q.scaled_dot_product_attention_with(&k, &v, how);
        return Ok(vec![merged(y).into(), present.0.into(), present.1.into()]);
    }
    if shared > 1 {
        k = k.repeat_interleave(shared, 1);
        v = v.repeat_interleave(shared, 1);
    }
    let dtype = q.dtype();
    let products = (q * scale.sqrt()).matmul((k * scale.sqrt()).transpose(2, 3));
    let cap = |t: &Tensor| match softcap > 0.0 {
        true => (t / softcap).tanh() * softcap,
        false => t.clone(),
    };
    let biased = |t: &Tensor| match &bias {
        Some(bias) => t + bias.to_dtype(dtype),
        None => t.clone(),
    };
    let excluded = |t: Tensor| match &allowed {
        Some(allowed) => t.where_cond(allowed, f64::NEG_INFINITY),
        None => t,
    };
    // Before version 25, a bias was capped too, and the first of both was shown without what is excluded.
    let (first, masked) = match c.version < 25 {
        true => (
            excluded(biased(&products)),
            excluded(cap(&biased(&products))),
        ),
        false => (cap(&products), excluded(biased(&cap(&products)))),
    };
    let precise = match c.int("softmax_precision", 0)? {
        0 => masked.clone(),
        n => masked.to_dtype(tensor::dtype(n)?),
    };
    // A query without keys gives zeros.
    let none = precise.amax(keep(3)).eq(f64::NEG_INFINITY);
    let weights = precise.softmax(3).masked_fill(none, 0.0).to_dtype(dtype);
    let shown = match c.int("qk_matmul_output_mode", 0)? {
        0 => products,
        1 => first,
        2 => masked,
        _ => weights.clone(),
    };
    let y = merged(weights.matmul(v));
    Ok(vec![
        y.into(),
        present.0.into(),
        present.1.into(),
        shown.to_dtype(dtype).into(),
    ])
}

fn size_of(d: &Dim) -> Tensor {
    match d.as_const() {
        Some(n) => Tensor::full((), n, DType::I64),
        None => Tensor::ones(vec![d.clone()], DType::I64).sum(()),
    }
}

/// Returns a mask that excludes keys beyond those it was given for.
fn widened_mask(mask: &Tensor, columns: &Dim) -> Result<Tensor> {
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
    let flat = x.ndim() == 3;
    let count = c.int("num_heads", 0)?;
    // [b, s, heads, e].
    let split = heads(x.clone(), (count > 0).then_some(count))?.transpose(1, 2);
    split.check()?;
    let size = split.dims()[3]
        .as_const()
        .ok_or_else(|| invalid("the head size must be known"))?;
    let turned = match c.int("rotary_embedding_dim", 0)? {
        0 => size,
        n if n > 0 && n <= size && n % 2 == 0 => n,
        n => return Err(invalid(format!("rotary_embedding_dim can't be {n}"))),
    };
    let positions = c.optional(3)?;
    let table = |i: usize| {
        let t = c.tensor(i)?;
        let t = match &positions {
            Some(p) => {
                let flat = p
                    .to_dtype(DType::I64)
                    .reshape(vec![kiln_base::numel(p.dims())]);
                let shape = [p.dims(), &t.dims()[t.ndim() - 1..]].concat();
                t.index_select(0, flat).reshape(shape)
            }
            None => t,
        };
        Ok::<_, kiln_tensor::Error>(t.unsqueeze(2))
    };
    let (cos, sin) = (table(1)?, table(2)?);
    let part = split.narrow(3, 0, turned);
    let (a, b) = match c.flag("interleaved", false)? {
        true => {
            let mut shape = part.dims().to_vec();
            shape[3] = Dim::Const(turned / 2);
            shape.push(Dim::Const(2));
            let pairs = part.reshape(shape);
            (pairs.select(4, 0), pairs.select(4, 1))
        }
        false => (
            part.narrow(3, 0, turned / 2),
            part.narrow(3, turned / 2, turned / 2),
        ),
    };
    let (real, imaginary) = (&cos * &a - &sin * &b, sin * a + cos * b);
    let rotated = match c.flag("interleaved", false)? {
        true => kiln_tensor::stack([real, imaginary], 4).reshape(part.dims()),
        false => cat([real, imaginary], 3),
    };
    let y = match turned < size {
        true => cat([rotated, split.narrow(3, turned, size - turned)], 3),
        false => rotated,
    };
    one(if flat {
        y.reshape(x.dims())
    } else {
        y.transpose(1, 2)
    })
}
