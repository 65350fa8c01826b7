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
    if op
        .mask(&call.needs_grad[3..])
        .is_some_and(|needs_grad| *needs_grad)
    {
        return tape::through_parts(b, call, g);
    }
    let mut operands = call.inputs[..3].to_vec();
    operands.push(g.clone());
    operands.extend(call.inputs[3..].iter().cloned());
    let all = b.op(AttentionGrad { of: *op }, &operands)?;
    let parts = AttentionGrad::parts(b, &all, call.inputs)?;
    let parts = parts.into_iter().zip(call.needs_grad);
    let mut found: Gradients<Id> = parts
        .map(|(part, needs_grad)| needs_grad.then_some(part))
        .collect();
    found.extend(call.inputs[3..].iter().map(|_| None));
    Ok(found)
}
