//! Attention.

use super::args::{known, known_dim, needs_float, same_dtype};
use super::matmul::matmul;
use crate::record::{Recorder, compose};
use crate::{Scalar, Tensor};
use kiln_base::Dim;
use kiln_ir::ops::Attention;
use kiln_ir::{Builder, OpError, Shape, broadcast_shapes, ensure};

impl Tensor {
    /// `softmax(query · keyᵀ · scale + mask) · value` with the query `[.., l, e]`, key `[.., s, e]` and
    /// value `[.., s, v]`: `[.., l, v]`; their other dims broadcast. A bool mask says which keys take
    /// part, a float mask is added; `is_causal` lets query i see keys 0 to i only. The scale is 1 / √e
    /// unless given. A query whose mask leaves no key gives zeros. Dropout of the weights with
    /// probability `dropout_p`. With `enable_gqa` (grouped queries) the key and value `[.., h, s, _]`
    /// have fewer heads than the query, and each serves as many heads in a row.
    #[track_caller]
    #[allow(clippy::too_many_arguments)] // PyTorch's signature
    pub fn scaled_dot_product_attention(
        &self,
        key: &Tensor,
        value: &Tensor,
        attn_mask: Option<&Tensor>,
        dropout_p: f64,
        is_causal: bool,
        scale: Option<f64>,
        enable_gqa: bool,
    ) -> Tensor {
        let call = Call {
            operands: [self, key, value],
            mask: attn_mask,
            causal: is_causal,
            scale,
            grouped: enable_gqa,
        };
        let mut all = vec![self, key, value];
        all.extend(attn_mask);
        if dropout_p == 0.0 {
            return compose("scaled_dot_product_attention", &all, |b| {
                let (op, operands) = call.prepared(b)?;
                b.op(op, &operands)
            });
        }
        let weights = compose("scaled_dot_product_attention", &all, |b| {
            let (op, x) = call.prepared(b)?;
            op.weights(b, &x[0], &x[1], x.get(3))
        });
        let dropped = weights.dropout(dropout_p, true);
        all.push(&dropped);
        compose("scaled_dot_product_attention", &all, |b| {
            let (_, x) = call.prepared(b)?;
            let value = b.widened(&x[2])?;
            let y = matmul(b, &dropped, &value)?;
            b.cast(&y, self.dtype())
        })
    }
}

/// A call of attention.
struct Call<'a> {
    /// Query, key and value.
    operands: [&'a Tensor; 3],
    mask: Option<&'a Tensor>,
    causal: bool,
    scale: Option<f64>,
    grouped: bool,
}

impl Call<'_> {
    /// The op, and its operands with one batch shape.
    fn prepared(&self, b: &mut Recorder) -> Result<(Attention, Vec<Tensor>), OpError> {
        let [query, key, value] = self.operands;
        needs_float(query, "query")?;
        same_dtype(query, "query", key, "key")?;
        same_dtype(query, "query", value, "value")?;
        ensure!(
            self.operands.iter().all(|t| t.ndim() >= 2),
            "query, key and value need at least 2 dims"
        );
        ensure!(
            !(self.causal && self.mask.is_some()),
            "is_causal and a mask exclude each other"
        );
        let scale = match self.scale {
            Some(s) => s,
            None => 1.0 / (known_dim(&query.dims()[query.ndim() - 1], query)? as f64).sqrt(),
        };
        let mut operands = self.operands.map(Tensor::clone).to_vec();
        if self.grouped {
            for x in &mut operands[1..] {
                *x = for_each_head(b, x, query)?;
            }
        }
        operands.extend(self.mask.cloned());
        let batch = operands.iter().map(|t| &t.dims()[..t.ndim().max(2) - 2]);
        let batch = broadcast_shapes(batch)
            .ok_or_else(|| OpError::new("the batch dims of the operands do not broadcast"))?;
        let (l, s) = (
            query.dims()[query.ndim() - 2].clone(),
            key.dims()[key.ndim() - 2].clone(),
        );
        for (i, x) in operands.iter_mut().enumerate() {
            let mut shape = batch.clone();
            match i {
                3 => shape.extend([l.clone(), s.clone()]),
                _ => shape.extend(x.dims()[x.ndim() - 2..].iter().cloned()),
            }
            *x = b.broadcast_to(x, &shape)?;
        }
        let op = Attention {
            scale: Scalar::Float(scale),
            causal: self.causal,
        };
        Ok((op, operands))
    }
}

/// Keys or values `[.., h, s, _]` repeated for as many heads as the query has.
fn for_each_head(b: &mut Recorder, x: &Tensor, query: &Tensor) -> Result<Tensor, OpError> {
    ensure!(
        x.ndim() >= 3 && query.ndim() >= 3,
        "grouped heads need tensors with a dim of heads, not {} and {}",
        query.fact(),
        x.fact()
    );
    let at = x.ndim() - 3;
    let (heads, own) = (known(query, query.ndim() - 3)?, known(x, at)?);
    ensure!(
        own > 0 && heads % own == 0,
        "{heads} heads of the query are no multiple of {own} heads"
    );
    let mut shape = Shape::from(x.dims());
    let x = b.unsqueeze(x, at + 1)?;
    let mut grown = Shape::from(x.dims());
    grown[at + 1] = Dim::Const(heads / own);
    shape[at] = Dim::Const(heads);
    let x = b.broadcast_to(&x, &grown)?;
    b.reshape(&x, &shape)
}
