//! Functions with a derivative of the user's own.

use super::edge::{Edge, GradNode, SavedRule};
use super::no_grad;
use crate::record::compose;
use crate::{Result, Tensor, trace};
use kiln_ir::{OpError, ensure};
use std::sync::Arc;

/// `forward(inputs)`, whose gradients `backward` computes: from the inputs, the result and the gradient
/// of the result to one gradient for each input (`None` for zero). Nothing that `forward` does is
/// recorded for gradients.
///
/// ```
/// use kiln_tensor::{Tensor, custom_function};
/// // Rounds, but passes gradients straight through.
/// let x = Tensor::from_slice(&[0.2f32, 1.7], [2]).requires_grad_(true);
/// let y = custom_function(&[&x], |x| x[0].round(), |_, _, g| vec![Some(g.clone())]);
/// y.sum((), false).backward()?;
/// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn custom_function(
    inputs: &[&Tensor],
    forward: impl FnOnce(&[Tensor]) -> Tensor,
    backward: impl Fn(&[Tensor], &Tensor, &Tensor) -> Vec<Option<Tensor>> + Send + Sync + 'static,
) -> Tensor {
    compose("custom_function", inputs, |_| {
        ensure!(
            !trace::may_flow(),
            "the derivative of a custom function is lost inside scan and cond; call it outside, or \
             under no_grad"
        );
        let plain: Vec<Tensor> = inputs.iter().map(|t| t.detach()).collect();
        let y = no_grad(|| forward(&plain));
        let flows = super::is_grad_enabled() && inputs.iter().any(|t| t.requires_grad());
        if y.error().is_some() || !flows {
            return Ok(y.detach());
        }
        let result = y.detach();
        let rule = move |cotangents: &[Option<Tensor>], wanted: &[bool]| {
            let Some(Some(g)) = cotangents.first() else {
                return Ok(vec![None; plain.len()]);
            };
            checked(&plain, backward(&plain, &result, g), wanted)
        };
        let operands: Vec<Tensor> = inputs.iter().map(|t| (*t).clone()).collect();
        let node = GradNode::new(&y.node, SavedRule::Custom(Arc::new(rule)), &operands);
        let mut y = y.detach();
        y.edge = Edge::Node(node, y.output);
        Ok(y)
    })
}

/// The gradients, if there is a fitting one for each input.
fn checked(
    inputs: &[Tensor],
    gradients: Vec<Option<Tensor>>,
    wanted: &[bool],
) -> Result<Vec<Option<Tensor>>, OpError> {
    if gradients.len() != inputs.len() {
        return Err(OpError(format!(
            "the derivative of a custom function of {} inputs gave {} gradients",
            inputs.len(),
            gradients.len()
        )));
    }
    for (i, (x, g)) in inputs.iter().zip(&gradients).enumerate() {
        let Some(g) = g else { continue };
        if let Some(e) = g.error() {
            return Err(OpError(format!("gradient {i} is invalid: {}", e.message())));
        }
        if wanted[i] && g.fact() != x.fact() {
            return Err(OpError(format!(
                "gradient {i} is {}, but the input is {}",
                g.fact(),
                x.fact()
            )));
        }
    }
    Ok(gradients)
}
