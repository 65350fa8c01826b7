//! Products and convolutions.

use super::attributes::{float, int, ints};
use super::pointwise::cast;
use super::reduce::pads;
use super::refusals::no_counterpart;
use super::shape;
use super::writer::{Name, Value, Writer};
use crate::proto::AttributeProto;
use crate::tensor::number;
use kiln_base::prim::Reduction;
use kiln_base::{Dim, numel};
use kiln_ir::{Builder, DType, Fact, Op, OpError, broadcast_shapes, ops};
use smallvec::smallvec;

/// Writes a product. ONNX's broadcasts batch dims as operands are stretched.
pub(super) fn matmul(w: &mut Writer, inputs: &[Value], fact: Fact) -> Value {
    let batch = fact.rank() - 2;
    let is_matrix = |v: &Value| v.held.len() >= 2 && v.held.ends_with(&v.fact.shape[batch..]);
    let joined = inputs
        .iter()
        .all(is_matrix)
        .then(|| broadcast_shapes(inputs.iter().map(|v| &v.held[..v.held.len() - 2])));
    let names: [Name; 2] = match joined.flatten() {
        Some(shape) if shape[..] == fact.shape[..batch] => [0, 1].map(|i| inputs[i].name.clone()),
        _ => [0, 1].map(|i| w.name(&inputs[i])),
    };
    let product = w.single("MatMul", &names, vec![], fact);
    if batch == 0 {
        let operands = [0, 1].map(|i| inputs[i].clone());
        w.products.insert(product.name.clone(), operands);
    }
    product
}

pub(super) fn conv(
    w: &mut Writer,
    inputs: &[Value],
    op: &ops::Conv,
    fact: Fact,
) -> Result<Value, OpError> {
    if !fact.dtype.is_float() {
        return no_counterpart(&format!("a convolution of {}", fact.dtype));
    }
    // Without spatial dims, a convolution over one of a single element.
    if op.stride.is_empty() {
        let longer = |v: &Value| [&v.fact.shape[..], &[Dim::ONE]].concat();
        let [x, weight] = [&inputs[0], &inputs[1]];
        let operands = [
            w.reshape(x, &longer(x))?,
            w.reshape(weight, &longer(weight))?,
        ];
        let op = ops::Conv {
            stride: smallvec![1],
            padding: vec![(0, 0)],
            dilation: smallvec![1],
            groups: op.groups,
        };
        let y = w.op(op, &operands)?;
        return Ok(shape::reshape(w, &y, fact));
    }
    let names = [w.name(&inputs[0]), w.name(&inputs[1])];
    let attributes = attributes(op, &inputs[1].fact);
    Ok(w.single("Conv", &names, attributes, fact))
}

fn attributes(op: &ops::Conv, weight: &Fact) -> Vec<AttributeProto> {
    let kernel = weight.shape[2..].iter().filter_map(Dim::as_const);
    vec![
        ints("kernel_shape", kernel.map(|k| k as usize)),
        ints("strides", op.stride.iter().copied()),
        ints("pads", pads(&op.padding)),
        ints("dilations", op.dilation.iter().copied()),
        int("group", op.groups as i64),
    ]
}

/// Writes a transposed convolution, with the output padding that gives its extents.
pub(super) fn conv_transpose(
    w: &mut Writer,
    inputs: &[Value],
    op: &ops::ConvTranspose,
    fact: Fact,
) -> Result<Value, OpError> {
    if !fact.dtype.is_float() {
        return no_counterpart(&format!("a convolution of {}", fact.dtype));
    }
    if op.input.is_empty() {
        return no_counterpart("a transposed convolution without spatial dims");
    }
    let (y, weight) = (&inputs[0], &inputs[1]);
    let conv = &op.conv;
    let mut output_padding = Vec::new();
    for (a, input) in op.input.iter().enumerate() {
        let kernel = weight.fact.shape[a + 2].as_const().unwrap_or(1);
        let reach = conv.dilation[a] as i64 * (kernel - 1) + 1;
        let padding = (conv.padding[a].0 + conv.padding[a].1) as i64;
        let between = &(&y.fact.shape[a + 2] - &Dim::ONE) * &Dim::from(conv.stride[a]);
        let extra = input - &(&between + &Dim::Const(reach - padding));
        let fits = |n: &i64| (0..conv.stride[a].max(conv.dilation[a]) as i64).contains(n);
        output_padding.extend(extra.as_const().filter(fits).map(|n| n as usize));
    }
    if output_padding.len() < op.input.len() {
        return match Op::from(op.clone()).decompose(w, inputs) {
            Some(value) => value,
            None => no_counterpart("this transposed convolution"),
        };
    }
    let names = [w.name(y), w.name(weight)];
    let mut attributes = attributes(conv, &weight.fact);
    attributes.push(ints("output_padding", output_padding));
    Ok(w.single("ConvTranspose", &names, attributes, fact))
}

/// Writes attention, as the operator where the version has it. A query that a mask leaves no keys has zeros.
pub(super) fn attention(
    w: &mut Writer,
    inputs: &[Value],
    op: &ops::Attention,
    fact: Fact,
) -> Result<Value, OpError> {
    let (scale, mask) = (op.scale.as_f64(), op.mask(&inputs[3..]));
    let is_empty = inputs.iter().any(|v| v.fact.shape.iter().any(|d| d.is(0)));
    let fits = op.dropout.is_none() && scale > 0.0 && !is_empty && !(op.causal && mask.is_some());
    if w.opset < 23 || !fits || fact.dtype == DType::F64 {
        return match Op::from(*op).decompose(w, inputs) {
            Some(value) => value,
            None => no_counterpart("attention"),
        };
    }
    // The operator has batches of heads.
    let heads = |fact: &Fact| match fact.shape.split_at(fact.rank() - 2) {
        ([_, _], _) => fact.shape.to_vec(),
        (batch, matrix) => [&[Dim::ONE, numel(batch)], matrix].concat(),
    };
    let mut names = Vec::new();
    for v in inputs {
        let v = w.reshape(v, &heads(&v.fact))?;
        names.push(w.name(&v));
    }
    let mut attributes = vec![float("scale", scale)];
    if op.causal {
        attributes.push(int("is_causal", 1));
    }
    if fact.dtype.is_half() {
        attributes.push(int("softmax_precision", i32::from(number(DType::F32))));
    }
    let result = Fact::new(fact.dtype, heads(&fact));
    let mut y = w.single("Attention", &names, attributes, result);
    if y.fact != fact {
        y = shape::reshape(w, &y, fact);
    }
    let Some(mask) = mask else { return Ok(y) };
    let (mask, lowest) = match mask.dtype() {
        DType::Bool => (cast(w, mask, DType::I32), 0.0),
        _ => (mask.clone(), f64::NEG_INFINITY),
    };
    let row_max = w.reduce_keepdim(Reduction::Max, &mask, &[mask.rank() - 1])?;
    let [lowest, zero] = [(lowest, mask.dtype()), (0.0, y.dtype())].map(|(n, t)| w.scalar(n, t));
    let has_keys = w.broadcasting("Greater", &[&row_max, &lowest], vec![], DType::Bool);
    Ok(w.broadcasting("Where", &[&has_keys, &y, &zero], vec![], y.dtype()))
}
