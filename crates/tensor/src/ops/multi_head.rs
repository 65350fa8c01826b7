//! Multi-head attention and its projections.

use super::attention::Attention;
use super::join::cat;
use crate::operand::AsTensor;
use crate::record::compose;
use crate::{DType, Tensor};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, ensure, ops};

/// The weights of the projections of query, key and value.
#[derive(Clone, Debug)]
pub enum InProjection<'a> {
    /// All three as one matrix `[3e, e]`.
    Packed(&'a Tensor),
    /// `[e, e]`, `[e, kdim]` and `[e, vdim]`.
    Separate([&'a Tensor; 3]),
}

/// The parameters and options of [`Tensor::multi_head_attention_forward`] besides query, key and value, as in
/// PyTorch's function of that name, with e numbers in an embedding.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention<'a> {
    /// Number of heads, which divides e.
    pub num_heads: i64,
    /// The weights of the projections of query, key and value.
    pub in_proj_weight: InProjection<'a>,
    /// Their biases, `[3e]`.
    pub in_proj_bias: Option<&'a Tensor>,
    /// A key and a value of e numbers each, appended to the given ones.
    pub bias_kv: Option<(&'a Tensor, &'a Tensor)>,
    /// True to append a key and a value of zeros.
    pub add_zero_attn: bool,
    /// The probability that a weight is dropped in training.
    pub dropout_p: f64,
    /// The weight of the last projection, `[e, e]`.
    pub out_proj_weight: &'a Tensor,
    /// Its bias, `[e]`.
    pub out_proj_bias: Option<&'a Tensor>,
    /// True in training, when weights are dropped.
    pub training: bool,
    /// `[n, s]` (or `[s]`): the ignored keys if bool, else numbers that are added to their scores.
    pub key_padding_mask: Option<&'a Tensor>,
    /// True if the attention weights are requested.
    pub need_weights: bool,
    /// `[l, s]` or `[n · heads, l, s]`: the keys that a query ignores if bool, else numbers that are added.
    pub attn_mask: Option<&'a Tensor>,
    /// True if query i attends only to keys 0 to i and to the appended ones. Ignored if `attn_mask` is given, which
    /// must then be causal itself.
    pub is_causal: bool,
    /// True if the attention weights are averaged over the heads.
    pub average_attn_weights: bool,
    /// Keys and values `[n · heads, s, e / heads]` in place of the projected ones.
    pub static_kv: [Option<&'a Tensor>; 2],
}

#[on_cells]
impl Tensor {
    /// Attention of this query `[l, n, e]` to a key `[s, n, _]` and a value `[s, n, _]` (or all without n). Returns
    /// the output `[l, n, e]` and, if requested, the weights `[n, l, s]`, or `[n, heads, l, s]` if they are not
    /// averaged.
    pub fn multi_head_attention_forward(
        &self,
        key: impl AsTensor,
        value: impl AsTensor,
        call: &MultiHeadAttention,
    ) -> (Tensor, Option<Tensor>) {
        let checked = compose("multi_head_attention_forward", &[self, key, value], |_| {
            check(self, key, value, call)?;
            Ok(self.clone())
        });
        if checked.error().is_some() {
            return (checked.clone(), call.need_weights.then_some(checked));
        }
        if self.ndim() == 2 {
            let batch = [self, key, value].map(|t| t.unsqueeze(1));
            let (y, weights) = forward(&batch, call);
            return (y.squeeze(1), weights.map(|w| w.squeeze(0)));
        }
        forward(&[self.clone(), key.clone(), value.clone()], call)
    }
}

fn check(q: &Tensor, k: &Tensor, v: &Tensor, call: &MultiHeadAttention) -> Result<(), OpError> {
    let r = q.ndim();
    ensure!(
        (2..=3).contains(&r) && k.ndim() == r && v.ndim() == r,
        "query, key and value must be [l, n, e], [s, n, _] and [s, n, _], or without n, not {}, {} and {}",
        q.fact(),
        k.fact(),
        v.fact()
    );
    let e = super::args::known(q, r - 1)?;
    ensure!(
        call.num_heads > 0 && e % call.num_heads == 0,
        "{} heads do not divide the embedding of {e}",
        call.num_heads
    );
    ensure!(
        k.dims()[..r - 1] == v.dims()[..r - 1],
        "the key {} and the value {} may differ only in their last dim",
        k.fact(),
        v.fact()
    );
    Ok(())
}

#[track_caller]
fn forward(x: &[Tensor; 3], call: &MultiHeadAttention) -> (Tensor, Option<Tensor>) {
    let e = x[0].dims()[2].as_const().unwrap_or(-1);
    let (heads, width) = (call.num_heads, e / call.num_heads);
    let mut projected = project(x, e, call);
    let mut further = i64::from(call.add_zero_attn);
    if let Some((k, v)) = call.bias_kv {
        let batch = projected[1].dims()[1].as_const().unwrap_or(-1);
        for (x, extra) in projected[1..].iter_mut().zip([k, v]) {
            let extra = extra.reshape([1, 1, e]).expand([1, batch, e]);
            *x = cat(&[x, &extra], 0);
        }
        further += 1;
    }
    // [n, heads, _, e / heads]
    let split = |t: Tensor| t.unflatten(2, [heads, width]).permute([1, 2, 0, 3]);
    let [q, mut k, mut v] = projected.map(split);
    for (x, fixed) in [&mut k, &mut v].into_iter().zip(call.static_kv) {
        if let Some(fixed) = fixed {
            *x = fixed.unflatten(0, [-1, heads]);
        }
    }
    if call.add_zero_attn {
        for x in [&mut k, &mut v] {
            *x = x.pad([0, 0, 0, 1], super::PadMode::ZEROS);
        }
    }
    let is_alone = call.attn_mask.is_none() && call.key_padding_mask.is_none() && further == 0;
    let causal = call.is_causal && is_alone && !call.need_weights;
    let mask = match causal {
        true => None,
        false => score_mask(call, [&q, &k], further),
    };
    let dropout = if call.training { call.dropout_p } else { 0.0 };
    let (y, weights) = match call.need_weights {
        false => {
            let options = Attention::new().attn_mask(mask).dropout_p(dropout);
            let y = q.scaled_dot_product_attention_with(&k, &v, options.is_causal(causal));
            (y, None)
        }
        true => {
            let scaled = q.mul((width as f64).sqrt().recip());
            let scores = scaled.matmul(k.transpose(-2, -1));
            let scores = mask.map_or(scores.clone(), |mask| scores.add(&mask));
            let weights = scores.softmax(-1).dropout(dropout);
            let y = weights.matmul(&v);
            let weights = match call.average_attn_weights {
                true => weights.mean(1),
                false => weights,
            };
            (y, Some(weights))
        }
    };
    let y = y.permute([2, 0, 1, 3]).flatten((2, 3));
    let y = y.linear_with(call.out_proj_weight, call.out_proj_bias);
    (y, weights)
}

/// Returns the numbers added to the scores `[n, heads, l, s]`; the last `further` keys are appended ones.
#[track_caller]
fn score_mask(call: &MultiHeadAttention, [q, k]: [&Tensor; 2], further: i64) -> Option<Tensor> {
    let own = match call.attn_mask {
        None if call.is_causal => Some(causal_mask(q, k, further)),
        mask => mask.cloned(),
    };
    let own = float_mask(own.as_ref(), q).map(|m| match m.ndim() {
        3 => m.unflatten(0, [-1, call.num_heads]),
        _ => m,
    });
    let padding = float_mask(call.key_padding_mask, q).map(|m| match m.ndim() {
        1 => m,
        _ => m.unsqueeze(1).unsqueeze(1),
    });
    let longer = |m: Tensor| match further {
        0 => m,
        more => m.pad([0, more], super::PadMode::ZEROS),
    };
    match (own.map(longer), padding.map(longer)) {
        (Some(m), Some(p)) => Some(m.add(&p)),
        (m, p) => m.or(p),
    }
}

/// A mask of the given keys that come after the rows of a query.
#[track_caller]
fn causal_mask(q: &Tensor, k: &Tensor, further: i64) -> Tensor {
    compose("multi_head_attention_forward", &[q, k], |b| {
        let (l, s) = (q.dims()[2].clone(), &k.dims()[2] - &Dim::Const(further));
        let rows = b.op(ops::Iota { len: l.clone() }, &[])?;
        let rows = b.reshape(&rows, &[l, Dim::ONE])?;
        let columns = b.op(ops::Iota { len: s }, &[])?;
        b.pointwise(Pw::Gt, &[columns, rows])
    })
}

/// Query, key and value, `[_, n, e]` each.
#[track_caller]
fn project(x: &[Tensor; 3], e: i64, call: &MultiHeadAttention) -> [Tensor; 3] {
    [0, 1, 2].map(|i: usize| {
        let from = i as i64 * e;
        let bias = call.in_proj_bias.map(|b| b.narrow(0, from, e));
        match call.in_proj_weight {
            InProjection::Packed(w) => x[i].linear_with(w.narrow(0, from, e), &bias),
            InProjection::Separate(w) => x[i].linear_with(w[i], &bias),
        }
    })
}

/// Returns the numbers that a mask adds to scores, in the dtype of x: −∞ where a bool mask is true.
#[track_caller]
fn float_mask(mask: Option<&Tensor>, x: &Tensor) -> Option<Tensor> {
    let mask = mask?;
    Some(compose("multi_head_attention_forward", &[mask], |b| {
        if mask.dtype() != DType::Bool {
            return b.cast(mask, x.dtype());
        }
        let zero = b.full(0.0, x.dtype(), mask.dims())?;
        let never = b.full(f64::NEG_INFINITY, x.dtype(), &[])?;
        b.pointwise(Pw::Select, &[mask.clone(), never, zero])
    }))
}
