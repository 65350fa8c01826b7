//! Attention and its gradients.

use super::{Case, table};
use crate::{Failed, Report, Settings};
use kiln_tensor::{Attention, DType, Grad, Tensor, grad_with};

/// Batch, heads, tokens and width of a head.
const SHAPES: [[usize; 4]; 3] = [[4, 16, 2048, 64], [2, 16, 4096, 128], [8, 12, 1024, 64]];

fn attention(x: &[Tensor], causal: bool) -> Tensor {
    let options = Attention::new().is_causal(causal);
    x[0].scaled_dot_product_attention_with(&x[1], &x[2], options)
}

pub(crate) fn run(settings: &Settings, report: &mut Report) -> Result<(), Failed> {
    let small = settings.emulated();
    let case = |[batch, heads, tokens, width]: [usize; 4], causal: bool, backward: bool| {
        let kind = if causal { "causal " } else { "" };
        let pass = if backward {
            "forward and backward"
        } else {
            "forward"
        };
        let name = format!("{kind}attention {batch}x{heads}x{tokens}x{width} bf16, {pass}");
        let shape = if small {
            vec![1, 1, 17, 16]
        } else {
            vec![batch, heads, tokens, width]
        };
        let operands = if backward { 4 } else { 3 };
        let halves = if causal { 0.5 } else { 1.0 };
        // Two products forward and five backward, as papers count.
        let products = if backward { 7.0 } else { 2.0 };
        let flops = products * halves * 2.0 * (batch * heads * tokens * tokens * width) as f64;
        // Forward the queries, keys, values and the result; backward three operands, four gradients.
        let tensors = if backward { 7 } else { 4 };
        let elements = shape.iter().product::<usize>();
        let bytes = (tensors * elements * DType::BF16.size()) as f64;
        let case = Case::new(
            name,
            vec![(DType::BF16, shape); operands],
            bytes,
            move |x| {
                if !backward {
                    return Ok(vec![attention(x, causal)]);
                }
                let leaves: Vec<Tensor> = x[..3].iter().map(|t| t.requires_grad_(true)).collect();
                let y = attention(&leaves, causal);
                grad_with(
                    &y,
                    &leaves.iter().collect::<Vec<_>>(),
                    Grad::new().grad_outputs(&x[3]),
                )
            },
        );
        Case { flops, ..case }
    };
    let cases = SHAPES.into_iter().flat_map(|shape| {
        [(false, false), (true, false), (true, true)]
            .map(|(causal, is_backward)| case(shape, causal, is_backward))
    });
    table(settings, report, "attention", cases)
}
