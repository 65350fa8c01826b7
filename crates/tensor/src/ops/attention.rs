//! Attention.

use super::args::same_dtype;
use super::diagonal::causal_mask;
use super::matmul::matmul;
use crate::record::compose;
use crate::{DType, Tensor};
use kiln_base::prim::Reduction;
use kiln_ir::{Builder, Pw, Shape, ensure};

impl Tensor {
    /// `softmax(query · keyᵀ · scale + mask) · value` with the query `[.., l, e]`, key `[.., s, e]` and
    /// value `[.., s, v]`: `[.., l, v]`. A bool mask says which keys take part, a float mask is added;
    /// `is_causal` lets query i see keys 0 to i only. The scale is 1 / √e unless given. A query whose
    /// mask leaves no key gives zeros. Dropout of the weights with probability `dropout_p`.
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
    ) -> Tensor {
        let mut operands = vec![self, key, value];
        operands.extend(attn_mask);
        let weights = compose("scaled_dot_product_attention", &operands, |b| {
            super::args::needs_float(self, "query")?;
            same_dtype(self, "query", key, "key")?;
            same_dtype(self, "query", value, "value")?;
            ensure!(
                self.ndim() >= 2 && key.ndim() >= 2 && value.ndim() >= 2,
                "query, key and value need at least 2 dims"
            );
            ensure!(
                !(is_causal && attn_mask.is_some()),
                "is_causal and a mask exclude each other"
            );
            let e = &self.dims()[self.ndim() - 1];
            let scale = match scale {
                Some(s) => s,
                None => 1.0 / (super::args::known_dim(e, self)? as f64).sqrt(),
            };
            // Half of the scale on each side keeps the products in range.
            let part = scale.abs().sqrt();
            let (query, key) = (b.widened(self)?, b.widened(key)?);
            let query = b.with(Pw::Mul, &query, part * scale.signum())?;
            let key = b.with(Pw::Mul, &key, part)?;
            let transposed = b.transposed(&key)?;
            let mut scores = matmul(b, &query, &transposed)?;
            let mask = match attn_mask {
                Some(mask) => Some(mask.clone()),
                None if is_causal => {
                    let n = scores.ndim();
                    let shape = Shape::from(&scores.dims()[n - 2..]);
                    Some(causal_mask(b, &shape)?)
                }
                None => None,
            };
            let Some(mask) = mask else {
                return super::activation::softmax(b, &scores, -1, false);
            };
            if mask.dtype() == DType::Bool {
                let never = b.scalar_like(f64::NEG_INFINITY, &scores)?;
                scores = b.select(&mask, &scores, &never)?;
            } else {
                same_dtype(self, "query", &mask, "mask")?;
                let mask = b.widened(&mask)?;
                scores = b.binary(Pw::Add, &scores, &mask)?;
            }
            let weights = super::activation::softmax(b, &scores, -1, false)?;
            let last = scores.ndim() - 1;
            if scores.dims()[last].is(0) {
                return Ok(weights);
            }
            let best = b.reduce(Reduction::Max, &scores, &[last], true)?;
            let empty = b.with(Pw::Eq, &best, f64::NEG_INFINITY)?;
            b.fill_where(&empty, 0.0, &weights)
        });
        let dropped = weights.dropout(dropout_p, dropout_p > 0.0);
        compose("scaled_dot_product_attention", &[&dropped, value], |b| {
            let wide = b.widened(value)?;
            let y = matmul(b, &dropped, &wide)?;
            b.cast(&y, value.dtype())
        })
    }
}
