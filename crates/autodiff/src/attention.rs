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
        return tape::through_parts(b, call, g);
    }
    let (shared, others) = call.inputs.split_at(3);
    let operands = [shared, std::slice::from_ref(g), others].concat();
    let all = b.op(AttentionGrad { of: *op }, &operands)?;
    let parts = AttentionGrad::parts(b, &all, call.inputs)?;
    let parts = parts.into_iter().zip(call.needs_grad);
    let parts = parts.map(|(part, needs_grad)| needs_grad.then_some(part));
    Ok(parts.chain(others.iter().map(|_| None)).collect())
}
