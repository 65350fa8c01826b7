//! Scaled dot-product attention.

use super::prelude::*;
use crate::Pw;
use kiln_base::prim::Reduction;

/// `softmax(query · keyᵀ · scale + mask) · value` over the keys. Operands are the query
/// `[batch.., l, e]`, the key `[batch.., s, e]`, the value `[batch.., s, v]` and perhaps a mask
/// `[batch.., l, s]`: bool (which keys take part) or of the query's dtype (added). Where keys are hidden, a
/// query all of whose scores are -inf has weights of zero; otherwise they are NaN, as a softmax's. Computed in f32, or f64 for f64. A composite that patterns need whole.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attention {
    /// What the products are multiplied by; a [`Scalar::Float`].
    pub scale: Scalar,
    /// Whether query i sees keys 0 to i only.
    pub causal: bool,
}

impl OpDef for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=4
    }

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let (q, k, v) = (inputs[0], inputs[1], inputs[2]);
        ensure!(q.dtype.is_float(), "needs float tensors, not {}", q.dtype);
        for (f, what) in [(k, "key"), (v, "value")] {
            ensure!(
                f.dtype == q.dtype,
                "the {what} is {} but the query is {}; cast one of them",
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
        if let Some(mask) = inputs.get(3) {
            ensure!(
                mask.dtype == DType::Bool || mask.dtype == q.dtype,
                "the mask must be bool or {}, not {}",
                q.dtype,
                mask.dtype
            );
            let mut wanted = Shape::from(batch);
            wanted.extend([l.clone(), s.clone()]);
            ensure!(
                mask.shape == wanted,
                "the mask {mask} must have the shape {wanted:?}"
            );
        }
        let mut shape = q.shape.clone();
        shape[r - 1] = v.shape[r - 1].clone();
        one(q.dtype, shape)
    }

    fn decompose<B: Builder>(
        &self,
        b: &mut B,
        inputs: &[B::Value],
    ) -> Option<Result<B::Value, OpError>> {
        Some(self.expand(b, inputs))
    }
}

impl Attention {
    fn expand<B: Builder>(&self, b: &mut B, inputs: &[B::Value]) -> Result<B::Value, OpError> {
        let weights = self.weights(b, &inputs[0], &inputs[1], inputs.get(3))?;
        let dtype = b.fact(&inputs[0]).dtype;
        let wide = b.fact(&weights).dtype;
        let value = b.cast(&inputs[2], wide)?;
        let y = b.op(super::MatMul {}, &[weights, value])?;
        b.cast(&y, dtype)
    }

    /// The weights of the keys, `[batch.., l, s]`, in f32 or f64: the first half of the composite.
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
        let wide = match b.fact(query).dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let r = b.fact(query).rank();
        let query = b.cast(query, wide)?;
        let key = b.cast(key, wide)?;
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
        let never = b.scalar_like(f64::NEG_INFINITY, &scores)?;
        match mask {
            Some(mask) if b.fact(mask).dtype == DType::Bool => {
                scores = b.pointwise(Pw::Select, &[mask.clone(), scores, never.clone()])?;
            }
            Some(mask) => {
                let mask = b.cast(mask, wide)?;
                scores = b.pointwise(Pw::Add, &[scores, mask])?;
            }
            None => {}
        }
        // Last, so that nothing that is added brings a key back.
        if self.causal {
            let rows = b.op(super::Iota { len: l.clone() }, &[])?;
            let rows = b.reshape(&rows, &[l.clone(), Dim::ONE])?;
            let columns = b.op(super::Iota { len: s.clone() }, &[])?;
            let seen = b.pointwise(Pw::Le, &[columns, rows])?;
            scores = b.pointwise(Pw::Select, &[seen, scores, never.clone()])?;
        }
        let softmax = super::Softmax {
            axis: r - 1,
            log: false,
        };
        let weights = b.op(softmax, std::slice::from_ref(&scores))?;
        if !self.causal && mask.is_none() {
            return Ok(weights);
        }
        let best = b.reduce_keepdim(Reduction::Max, &scores, &[r - 1])?;
        let blind = b.pointwise(Pw::Eq, &[best, never])?;
        let zero = b.scalar_like(0.0, &weights)?;
        b.pointwise(Pw::Select, &[blind, zero, weights])
    }
}
