//! The gradients of attention.

use super::attention::Attention;
use super::prelude::*;
use crate::Pw;
use kiln_base::numel;

/// The gradients of [`Attention`]'s query, key and value, concatenated in one vector: `[batch.., l, e]`,
/// `[batch.., s, e]` and `[batch.., s, v]` in row-major order. Operands are the query, the key, the value, the
/// gradient of the result `[batch.., l, v]` and, as for attention, perhaps the mask and the random key. A composite:
/// engines rematerialise the weights, a part at a time, in place of storing them.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AttentionGrad {
    /// The attention that it is the derivative of.
    pub of: Attention,
}

impl OpDef for AttentionGrad {
    const NAME: &'static str = "attention_grad";
    const ARITY: RangeInclusive<usize> = 4..=6;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let mut forward = inputs[..3].to_vec();
        forward.extend(&inputs[4..]);
        let result = self.of.infer(&forward)?.remove(0);
        let gradient = inputs[3];
        ensure!(
            *gradient == result,
            "the gradient {gradient} is not like the result {result}"
        );
        let elements = inputs[..3]
            .iter()
            .fold(Dim::ZERO, |n, f| &n + &numel(&f.shape));
        one_output(result.dtype, Shape::from_iter([elements]))
    }
}

impl AttentionGrad {
    /// Splits the vector into the gradients of query, key and value.
    ///
    /// # Errors
    /// If these are not the shapes of the operands.
    pub fn parts<B: Builder>(
        b: &mut B,
        all: &B::Value,
        operands: &[B::Value],
    ) -> Result<[B::Value; 3], OpError> {
        let mut start = Dim::ZERO;
        let mut slice = |b: &mut B, i: usize| {
            let shape = b.fact(&operands[i]).shape;
            let count = numel(&shape);
            let slice = b.narrow(all, 0, start.clone(), count.clone())?;
            start = &start + &count;
            b.reshape(&slice, &shape)
        };
        Ok([slice(b, 0)?, slice(b, 1)?, slice(b, 2)?])
    }

    /// `dv = D(w)ᵀ·g`, `dw = D(g·vᵀ)`, `ds = w ∘ (dw − Σ w ∘ dw) · scale`, `dq = ds·k`, `dk = dsᵀ·q` with the weights
    /// w and the dropout D.
    pub(crate) fn decompose<B: Builder>(
        &self,
        b: &mut B,
        inputs: &[B::Value],
    ) -> Result<B::Value, OpError> {
        let other_inputs = &inputs[4..];
        let mask = self.of.mask(other_inputs);
        let weights = self.of.weights(b, &inputs[0], &inputs[1], mask)?;
        let compute = b.fact(&weights).dtype;
        let dtype = b.fact(&inputs[0]).dtype;
        let r = b.fact(&weights).rank();
        let [q, k, v, g] = [0, 1, 2, 3].map(|i| b.cast(&inputs[i], compute));
        let (q, k, v, g) = (q?, k?, v?, g?);
        let mut perm: Axes = (0..r).collect();
        perm.swap(r - 2, r - 1);
        let transpose = |b: &mut B, x: &B::Value| b.permute(x, &perm);
        let product = |b: &mut B, x: B::Value, y: B::Value| b.op(super::MatMul {}, &[x, y]);
        let dropped = self.of.drop(b, &weights, other_inputs)?;
        let weights_t = transpose(b, &dropped)?;
        let dv = product(b, weights_t, g.clone())?;
        let v_t = transpose(b, &v)?;
        let dw = product(b, g, v_t)?;
        let dw = self.of.drop(b, &dw, other_inputs)?;
        let products = b.pointwise(Pw::Mul, &[weights.clone(), dw.clone()])?;
        let shape = b.fact(&products).shape;
        let mut row = shape.clone();
        row[r - 1] = Dim::ONE;
        let sum = b.sum(&products, &[r - 1])?;
        let sum = b.reshape(&sum, &row)?;
        let sum = b.broadcast_to(&sum, &shape)?;
        let ds = b.pointwise(Pw::Sub, &[dw, sum])?;
        let ds = b.pointwise(Pw::Mul, &[weights, ds])?;
        let scale = b.scalar_like(self.of.scale.as_f64(), &ds)?;
        let ds = b.pointwise(Pw::Mul, &[ds, scale])?;
        let ds_t = transpose(b, &ds)?;
        let dq = product(b, ds, k)?;
        let dk = product(b, ds_t, q)?;
        let flat = |b: &mut B, x: B::Value| {
            let x = b.cast(&x, dtype)?;
            let count = numel(&b.fact(&x).shape);
            b.reshape(&x, &[count])
        };
        let gradients = [flat(b, dq)?, flat(b, dk)?, flat(b, dv)?];
        b.op(super::Concat { axis: 0 }, &gradients)
    }
}
