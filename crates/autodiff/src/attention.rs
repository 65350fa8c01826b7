//! Attention: one op computes the gradients of query, key and value, and recomputes the weights.

use crate::erased::{Erased, Id};
use crate::{Call, Gradients, tape};
use kiln_ir::ops::{Attention, AttentionGrad};
use kiln_ir::{Builder, OpError};

pub(crate) fn pullback(
    b: &mut Erased<'_>,
    op: &Attention,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    // The gradient of a mask is as large as the weights. A random key has none.
    if op.mask(&call.needs_grad[3..]) == Some(&true) {
        return tape::pullback_decomposed(b, call, g);
    }
    let (qkv, other_inputs) = call.inputs.split_at(3);
    let operands = [qkv, std::slice::from_ref(g), other_inputs].concat();
    let packed = b.op(AttentionGrad { of: *op }, &operands)?;
    let gradients = AttentionGrad::parts(b, &packed, call.inputs)?;
    let gradients = gradients.into_iter().zip(call.needs_grad);
    let gradients = gradients.map(|(part, needs_grad)| needs_grad.then_some(part));
    Ok(gradients.chain(other_inputs.iter().map(|_| None)).collect())
}
