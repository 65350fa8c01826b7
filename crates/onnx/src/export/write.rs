//! The ops, each as nodes of ONNX.

use super::refusals::no_counterpart;
use super::writer::{Value, Values, Writer};
use super::{contraction, control, index, pointwise, reduce, shape};
use kiln_ir::{DType, Facts, Op, OpError, ops};
use smallvec::smallvec;

/// Writes an op. Its facts are inferred.
pub(super) fn op(
    w: &mut Writer,
    op: &Op,
    inputs: &[Value],
    facts: &Facts,
) -> Result<Values, OpError> {
    let fact = || facts[0].clone();
    let value = match op {
        Op::Full(f) => w.scalar(f.value, f.dtype).stretched(f.shape.clone()),
        Op::Constant(c) => w.constant(c.dtype, &c.shape, &c.bytes),
        Op::Iota(i) => {
            let (zero, unit) = (w.scalar(0i64, DType::I64), w.scalar(1i64, DType::I64));
            let len = w.size_scalar(&i.len);
            w.single("Range", &[zero.name, len.name, unit.name], vec![], fact())
        }
        Op::Numel(n) => w.size_scalar(&kiln_base::numel(&n.shape)),
        Op::Pointwise(ops::Pointwise(row)) => pointwise::row(w, *row, inputs)?,
        Op::Cast(_) => pointwise::cast(w, &inputs[0], facts[0].dtype),
        Op::Broadcast(b) => inputs[0].stretched(b.shape.clone()),
        Op::Reshape(_) => shape::reshape(w, &inputs[0], fact()),
        Op::Permute(p) => shape::permute(w, &inputs[0], &p.perm, fact()),
        Op::Slice(s) => shape::slice(w, &inputs[0], s, fact()),
        Op::Pad(p) => shape::pad(w, &inputs[0], p, fact()),
        Op::Concat(c) => shape::concat(w, inputs, c.axis, fact()),
        Op::Reduce(r) => reduce::reduce(w, &inputs[0], r, fact())?,
        Op::ArgReduce(a) => reduce::arg_reduce(w, &inputs[0], a, fact()),
        Op::Scan(s) => reduce::scan(w, &inputs[0], s, fact())?,
        Op::WindowReduce(r) => reduce::window(w, &inputs[0], r, fact())?,
        Op::ArgSort(a) => index::arg_sort(w, &inputs[0], a, fact()),
        Op::Gather(g) => index::gather(w, inputs, g.axis, fact()),
        Op::Scatter(s) => index::scatter(w, inputs, s, fact())?,
        Op::MatMul(_) => contraction::matmul(w, inputs, fact()),
        Op::Conv(c) => contraction::conv(w, inputs, c, fact())?,
        Op::ConvTranspose(c) => contraction::conv_transpose(w, inputs, c, fact())?,
        Op::Softmax(s) => reduce::softmax(w, &inputs[0], s, fact()),
        Op::BatchNorm(b) => reduce::batch_norm(w, inputs, b, fact())?,
        Op::If(op) => return Ok(control::branch(w, op, inputs, facts)),
        Op::Loop(op) if op.conditional => {
            return Ok(control::repeat_while(w, op, inputs, facts));
        }
        Op::Loop(op) => return Ok(control::repeat(w, op, inputs, facts)),
        Op::Barrier(_) => return Ok(inputs.iter().cloned().collect()),
        Op::Random(_) => return no_counterpart("random numbers"),
        Op::Custom(c) => return no_counterpart(&format!("the custom operator `{}`", c.name)),
        Op::Collective(_) => return no_counterpart("communication between processes"),
        Op::Input(_) => {
            return no_counterpart("an input without a value, such as a key of random numbers");
        }
        Op::Attention(a) => contraction::attention(w, inputs, a, fact())?,
        Op::ConvWeight(_) | Op::AttentionGrad(_) => match op.decompose(w, inputs) {
            Some(value) => value?,
            None => return no_counterpart(op.name()),
        },
    };
    Ok(smallvec![value])
}
