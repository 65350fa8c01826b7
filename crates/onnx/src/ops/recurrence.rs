//! Layers that hand a state from one part of a sequence to the next.

use super::Record;
use super::attention::{merge_heads, split_heads};
use crate::call::{Call, Results, known_size};
use crate::fault::{invalid, unsupported};
use kiln_base::Dim;
use kiln_tensor::{Conv, DType, Error, Result, Tensor, cat, scan};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "CausalConvWithState" => causal_conv,
        "LinearAttention" => linear_attention,
        _ => return None,
    })
}

/// A depthwise convolution of `[n, c, l]`, whose border in front are the last elements of the part before.
fn causal_conv(c: &Call) -> Results {
    let (x, weight) = (c.tensor(0)?, c.tensor(1)?);
    let ([n, channels, _], [_, _, _]) = (x.dims(), weight.dims()) else {
        return Err(invalid(format!(
            "takes [n, c, l] and [c, 1, k], not {} and {} dims",
            x.ndim(),
            weight.ndim()
        )));
    };
    let (groups, width) = (known_size(&x, 1)?, known_size(&weight, 2)?);
    if width < 1 {
        return Err(invalid("the weights have no elements"));
    }
    let border = match c.optional(3)? {
        Some(past) => past,
        None => Tensor::zeros(
            vec![n.clone(), channels.clone(), Dim::Const(width - 1)],
            x.dtype(),
        ),
    };
    let padded = cat([border, x.clone()], 2);
    padded.check()?;
    let y = padded.conv1d_with(&weight, Conv::new().groups(groups).bias(c.optional(2)?));
    let y = match c.text("activation", "none")? {
        "none" => y,
        "silu" | "swish" => y.to_dtype(DType::F32).silu().to_dtype(x.dtype()),
        other => return Err(unsupported(format!("the activation {other:?}"))),
    };
    let state = padded.narrow(2, 1 - width, width - 1);
    Ok(vec![y.into(), state.into()])
}

/// Attention whose state is a matrix for each head: `state · exp(decay) + key ⊗ value`, read by the query.
fn linear_attention(c: &Call) -> Results {
    let (query_heads, key_heads) = (c.int("q_num_heads", 0)?, c.int("kv_num_heads", 0)?);
    if key_heads < 1 || query_heads < 1 || query_heads % key_heads != 0 {
        return Err(invalid(format!(
            "{query_heads} heads of queries for {key_heads} of keys"
        )));
    }
    let rule = c.text("update_rule", "gated_delta")?;
    let (gated, delta) = match rule {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return Err(invalid(format!("there is no rule {other:?}"))),
    };
    if gated != c.has(4) || delta != c.has(5) {
        return Err(invalid(format!("the rule {rule:?} takes other inputs")));
    }
    // [b, h, t, d], computed in f32.
    let dtype = c.tensor(0)?.dtype();
    let split = |i: usize, count: i64| {
        let t = split_heads(c.tensor(i)?.to_dtype(DType::F32), Some(count))?;
        t.check()?;
        Ok::<_, Error>(t)
    };
    let (q, k, v) = (
        split(0, query_heads)?,
        split(1, key_heads)?,
        split(2, key_heads)?,
    );
    let (key_size, value_size) = (known_size(&k, 3)?, known_size(&v, 3)?);
    let batch = q.dims()[0].clone();
    let (state, state_dtype) = match c.optional(3)? {
        Some(past) => (past.to_dtype(DType::F32), past.dtype()),
        None => {
            let shape = [key_heads, key_size, value_size].map(Dim::Const);
            let shape: Vec<Dim> = [batch].into_iter().chain(shape).collect();
            (Tensor::zeros(shape, DType::F32), dtype)
        }
    };
    let scale = match c.float("scale", 0.0)? {
        0.0 => 1.0 / (key_size as f64).sqrt(),
        scale => scale,
    };
    let by_turn = |t: &Tensor| t.movedim(2, 0);
    let mut steps = vec![by_turn(&q), by_turn(&k), by_turn(&v)];
    if gated {
        steps.push(by_turn(&split(4, key_heads)?));
    }
    if delta {
        // One factor, or one for each head.
        let factors = c.tensor(5)?.to_dtype(DType::F32);
        steps.push(factors.transpose(0, 1).unsqueeze(-1));
    }
    let shared = query_heads / key_heads;
    let (state, rows) = scan(state, steps, |state: Tensor, inputs: Vec<Tensor>| {
        attention_step([gated, delta], state, &inputs, shared)
    })?;
    let y = rows.movedim(0, 2) * scale;
    Ok(vec![
        merge_heads(y).to_dtype(dtype).into(),
        state.to_dtype(state_dtype).into(),
    ])
}

/// A step of linear attention: the next state `[b, h, dk, dv]`, and its product with the query `[b, h, dk]`.
fn attention_step(
    [gated, delta]: [bool; 2],
    mut state: Tensor,
    inputs: &[Tensor],
    shared: i64,
) -> Result<(Tensor, Tensor)> {
    let (q, k, mut v) = (&inputs[0], &inputs[1], inputs[2].clone());
    if gated {
        state *= inputs[3].exp().unsqueeze(-1);
    }
    if delta {
        let read = (&state * k.unsqueeze(-1)).sum(2);
        v = (v - read) * inputs.last().unwrap_or(k);
    }
    let state = state + k.unsqueeze(-1) * v.unsqueeze(2);
    let query = match shared {
        1 => state.clone(),
        n => state.repeat_interleave(n, 1),
    };
    let read = (query * q.unsqueeze(-1)).sum(2);
    Ok((state, read))
}
