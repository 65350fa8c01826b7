//! Scaled dot-product attention.

use super::prelude::*;
use crate::Pw;
use kiln_base::prim::{RandomKind, Reduction};

/// `softmax(query · keyᵀ · scale + mask) · value` over the keys. Operands are the query `[batch.., l, e]`, the key
/// `[batch.., s, e]`, the value `[batch.., s, v]` and perhaps a mask `[batch.., l, s]`. The mask is bool (true for
/// keys that take part) or of the query's dtype (added). With dropout the last operand is a key of random numbers,
/// i64 (seed, offset), as [`Random`](super::Random)'s. Weight i of the row-major `[batch.., l, s]` is multiplied by
/// zero where uniform number i of f32 is less than the probability p, and else by 1 / (1 − p). With a mask or
/// `causal`, a query all of whose scores are -inf has weights of zero; otherwise they are NaN, as a softmax's.
/// Computed in f32, or f64 for f64. A composite, kept whole for pattern matching.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attention {
    /// The factor of the scores; a [`Scalar::Float`].
    pub scale: Scalar,
    /// True if query i sees keys 0 to i only.
    pub causal: bool,
    /// The probability that a weight is dropped; a [`Scalar::Float`] above 0. If given, there is a random key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<Scalar>,
}

impl OpDef for Attention {
    const NAME: &'static str = "attention";
    const ARITY: RangeInclusive<usize> = 3..=5;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let (q, k, v) = (inputs[0], inputs[1], inputs[2]);
        ensure!(q.dtype.is_float(), "needs float tensors, not {}", q.dtype);
        check_computes(q.dtype)?;
        for (f, name) in [(k, "key"), (v, "value")] {
            ensure!(
                f.dtype == q.dtype,
                "the {name} is {} but the query is {}; cast one of them",
                f.dtype,
                q.dtype
            );
        }
        let r = q.rank();
        ensure!(
            r >= 2 && k.rank() == r && v.rank() == r,
            "query {q}, key {k} and value {v} must have one rank of at least 2"
        );
        let batch = &q.shape[..r - 2];
        ensure!(
            k.shape[..r - 2] == *batch && v.shape[..r - 2] == *batch,
            "query {q}, key {k} and value {v} differ in their batch dims"
        );
        let (l, e, s) = (&q.shape[r - 2], &q.shape[r - 1], &k.shape[r - 2]);
        ensure!(
            k.shape[r - 1] == *e,
            "the key {k} must have the width of the query {q}"
        );
        ensure!(
            v.shape[r - 2] == *s,
            "the value {v} must have the length of the key {k}"
        );
        let other_inputs = &inputs[3..];
        ensure!(
            other_inputs.len() >= usize::from(self.dropout.is_some()),
            "dropout needs a key of random numbers"
        );
        ensure!(
            other_inputs.len() <= 1 + usize::from(self.dropout.is_some()),
            "there is an operand behind the mask, but no dropout"
        );
        if let (Some(p), Some(key)) = (self.dropout, self.random_key(other_inputs)) {
            let p = p.as_f64();
            ensure!(
                p > 0.0 && p <= 1.0,
                "the probability of dropout must lie in 0..=1, not {p}"
            );
            ensure!(
                key.dtype == DType::I64 && key.rank() == 1 && key.shape[0].is(2),
                "the key of random numbers must be i64[2] (seed, offset), not {key}"
            );
        }
        if let Some(mask) = self.mask(other_inputs) {
            ensure!(
                mask.dtype == DType::Bool || mask.dtype == q.dtype,
                "the mask must be bool or {}, not {}",
                q.dtype,
                mask.dtype
            );
            let mut mask_shape = Shape::from(batch);
            mask_shape.extend([l.clone(), s.clone()]);
            ensure!(
                mask.shape == mask_shape,
                "the mask {mask} must have the shape {mask_shape:?}"
            );
        }
        let mut shape = q.shape.clone();
        shape[r - 1] = v.shape[r - 1].clone();
        one_output(q.dtype, shape)
    }
}

impl Attention {
    /// The mask among the operands that follow query, key and value (and, for the derivative, the gradient).
    pub fn mask<'a, T>(&self, others: &'a [T]) -> Option<&'a T> {
        let masks = others.len() > usize::from(self.dropout.is_some());
        others.first().filter(|_| masks)
    }

    /// The key of random numbers among the same operands.
    pub fn random_key<'a, T>(&self, others: &'a [T]) -> Option<&'a T> {
        others.last().filter(|_| self.dropout.is_some())
    }

    /// The factor of the weights that are kept.
    pub fn dropout_scale(p: f64) -> f64 {
        if p >= 1.0 { 0.0 } else { 1.0 / (1.0 - p) }
    }

    /// Drops weights, or gradients of weights, `[batch.., l, s]`, given the operands of [`Attention::mask`].
    ///
    /// # Errors
    /// If the key is not one of random numbers.
    pub fn drop<B: Builder>(
        &self,
        b: &mut B,
        weights: &B::Value,
        others: &[B::Value],
    ) -> Result<B::Value, OpError> {
        let (Some(p), Some(key)) = (self.dropout, self.random_key(others)) else {
            return Ok(weights.clone());
        };
        let (p, shape) = (p.as_f64(), b.fact(weights).shape);
        let noise = super::Random {
            kind: RandomKind::Uniform,
            dtype: DType::F32,
            shape,
        };
        let noise = b.op(noise, std::slice::from_ref(key))?;
        let threshold = b.scalar_like(p, &noise)?;
        let is_kept = b.pointwise(Pw::Ge, &[noise, threshold])?;
        let scale = b.scalar_like(Attention::dropout_scale(p), weights)?;
        let zero = b.scalar_like(0.0, weights)?;
        let factor = b.pointwise(Pw::Select, &[is_kept, scale, zero])?;
        b.pointwise(Pw::Mul, &[weights.clone(), factor])
    }

    pub(crate) fn decompose<B: Builder>(
        &self,
        b: &mut B,
        inputs: &[B::Value],
    ) -> Result<B::Value, OpError> {
        let mask = self.mask(&inputs[3..]);
        let weights = self.weights(b, &inputs[0], &inputs[1], mask)?;
        let weights = self.drop(b, &weights, &inputs[3..])?;
        let dtype = b.fact(&inputs[0]).dtype;
        let wide = b.fact(&weights).dtype;
        let value = b.cast(&inputs[2], wide)?;
        let y = b.op(super::MatMul {}, &[weights, value])?;
        b.cast(&y, dtype)
    }

    /// The weights of the keys, `[batch.., l, s]`, in f32 or f64, before dropout: the first half of the composite.
    ///
    /// # Errors
    /// If the op does not apply to the operands.
    pub fn weights<B: Builder>(
        &self,
        b: &mut B,
        query: &B::Value,
        key: &B::Value,
        mask: Option<&B::Value>,
    ) -> Result<B::Value, OpError> {
        let fact = b.fact(query);
        let (compute, r) = (fact.dtype.compute().dtype(), fact.rank());
        let query = b.cast(query, compute)?;
        let key = b.cast(key, compute)?;
        let mut perm: Axes = (0..r).collect();
        perm.swap(r - 2, r - 1);
        let key = b.op(super::Permute { perm }, &[key])?;
        let scores = b.op(super::MatMul {}, &[query, key])?;
        let scale = b.scalar_like(self.scale.as_f64(), &scores)?;
        let mut scores = b.pointwise(Pw::Mul, &[scores, scale])?;
        let shape = b.fact(&scores).shape;
        let (l, s) = (&shape[r - 2], &shape[r - 1]);
        if s.is(0) {
            return Ok(scores);
        }
        let minus_inf = b.scalar_like(f64::NEG_INFINITY, &scores)?;
        match mask {
            Some(mask) if b.fact(mask).dtype == DType::Bool => {
                scores = b.pointwise(Pw::Select, &[mask.clone(), scores, minus_inf.clone()])?;
            }
            Some(mask) => {
                let mask = b.cast(mask, compute)?;
                scores = b.pointwise(Pw::Add, &[scores, mask])?;
            }
            None => {}
        }
        // Last, so that an added mask can't bring a hidden key back.
        if self.causal {
            let rows = b.op(super::Iota { len: l.clone() }, &[])?;
            let rows = b.reshape(&rows, &[l.clone(), Dim::ONE])?;
            let columns = b.op(super::Iota { len: s.clone() }, &[])?;
            let is_visible = b.pointwise(Pw::Le, &[columns, rows])?;
            scores = b.pointwise(Pw::Select, &[is_visible, scores, minus_inf.clone()])?;
        }
        let softmax = super::Softmax {
            axis: r - 1,
            log: false,
        };
        if !self.causal && mask.is_none() {
            return b.op(softmax, &[scores]);
        }
        let max_score = b.reduce_keepdim(Reduction::Max, &scores, &[r - 1])?;
        let sees_nothing = b.pointwise(Pw::Eq, &[max_score, minus_inf])?;
        let zero = b.scalar_like(0.0, &scores)?;
        if mask.is_some_and(|mask| b.fact(mask).dtype != DType::Bool) {
            // Zeros in place of -inf: a softmax of -inf alone is NaN, and a sum would pass its NaN derivatives on.
            scores = b.pointwise(Pw::Select, &[sees_nothing.clone(), zero.clone(), scores])?;
        }
        let weights = b.op(softmax, &[scores])?;
        b.pointwise(Pw::Select, &[sees_nothing, zero, weights])
    }
}
