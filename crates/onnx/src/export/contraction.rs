//! Products and convolutions.

use super::attributes::{int, ints};
use super::reduce::pads;
use super::refusals::lacking;
use super::writer::{Name, Value, Writer};
use crate::proto::AttributeProto;
use kiln_base::Dim;
use kiln_ir::{Fact, Op, OpError, broadcast_shapes, ops};

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
    let product = w.one("MatMul", &names, vec![], fact);
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
        return lacking(&format!("a convolution of {}", fact.dtype));
    }
    let names = [w.name(&inputs[0]), w.name(&inputs[1])];
    let attributes = attributes(op, &inputs[1].fact);
    Ok(w.one("Conv", &names, attributes, fact))
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
        return lacking(&format!("a convolution of {}", fact.dtype));
    }
    let (y, weight) = (&inputs[0], &inputs[1]);
    let conv = &op.conv;
    let mut output_padding = Vec::new();
    for (a, input) in op.input.iter().enumerate() {
        let kernel = weight.fact.shape[a + 2].as_const().unwrap_or(1);
        let reach = conv.dilation[a] as i64 * (kernel - 1) + 1;
        let padding = (conv.padding[a].0 + conv.padding[a].1) as i64;
        let between = &(&y.fact.shape[a + 2] - &Dim::ONE) * &Dim::from(conv.stride[a]);
        let rest = input - &(&between + &Dim::Const(reach - padding));
        let fits = |n: &i64| (0..conv.stride[a].max(conv.dilation[a]) as i64).contains(n);
        output_padding.extend(rest.as_const().filter(fits).map(|n| n as usize));
    }
    if output_padding.len() < op.input.len() {
        return match Op::from(op.clone()).decompose(w, inputs) {
            Some(value) => value,
            None => lacking("this transposed convolution"),
        };
    }
    let names = [w.name(y), w.name(weight)];
    let mut attributes = attributes(conv, &weight.fact);
    attributes.push(ints("output_padding", output_padding));
    Ok(w.one("ConvTranspose", &names, attributes, fact))
}
