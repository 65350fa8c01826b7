//! Functions with a derivative of the user's own.

use crate::record::compose;
use crate::tensor::handles;
use crate::{Result, Tensor, is_grad_enabled, no_grad};
use kiln_ir::{OpError, ensure};
use kiln_lazy::grad::edge::{CustomRule, Edge, GradNode};
use kiln_lazy::{Handle, body};
use std::panic::Location;
use std::sync::Arc;

/// `forward(inputs)`, whose gradients `backward` computes: from the inputs, the result and the gradient
/// of the result to one gradient for each input (`None` for zero). Nothing that `forward` does is
/// recorded for gradients; what `backward` does is, where gradients are differentiated again.
///
/// ```
/// use kiln_tensor::{Tensor, custom_function};
/// // Rounds, but passes gradients straight through.
/// let x = Tensor::from_slice(&[0.2f32, 1.7], [2]).requires_grad_(true);
/// let y = custom_function(&[&x], |x| x[0].round(), |_, _, g| vec![Some(g.clone())]);
/// y.sum(()).backward()?;
/// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn custom_function(
    inputs: &[&Tensor],
    forward: impl FnOnce(&[Tensor]) -> Tensor,
    backward: impl Fn(&[Tensor], &Tensor, &Tensor) -> Vec<Option<Tensor>> + Send + Sync + 'static,
) -> Tensor {
    compose("custom_function", inputs, |b| {
        keeps_derivative()?;
        let plain: Vec<Tensor> = inputs.iter().map(|t| t.detach()).collect();
        let y = no_grad(|| forward(&plain));
        Ok(differentiated(&y, inputs, b.place(), || Arc::new(backward)))
    })
}

/// Errs in a body whose derivative is made from what is recorded in it.
pub(crate) fn keeps_derivative() -> Result<(), OpError> {
    ensure!(
        !body::may_flow(),
        "the derivative of a custom function is lost inside scan and cond; call it outside, or \
         under no_grad"
    );
    Ok(())
}

/// From the inputs, the result and its gradient to those of the inputs.
pub(crate) type Backward = dyn Fn(&[Tensor], &Tensor, &Tensor) -> Vec<Option<Tensor>> + Send + Sync;

/// `y`, computed from `inputs` by what the user called at a line, with a derivative.
pub(crate) fn differentiated(
    y: &Tensor,
    inputs: &[&Tensor],
    place: (&'static str, &'static Location<'static>),
    backward: impl FnOnce() -> Arc<Backward>,
) -> Tensor {
    let mut y = y.detach();
    let flows = is_grad_enabled() && inputs.iter().any(|t| t.requires_grad());
    if y.error().is_some() || !flows || !y.dtype().is_float() {
        return y;
    }
    let (output, backward) = (y.handle.output as usize, backward());
    let rule: Arc<CustomRule> = Arc::new(move |inputs, outputs, cotangents, wanted| {
        let Some(g) = cotangents[output].clone() else {
            return Ok(vec![None; inputs.len()]);
        };
        let inputs: Vec<Tensor> = inputs.iter().cloned().map(Tensor::from).collect();
        let gradients = backward(&inputs, &outputs[output].clone().into(), &g.into());
        checked(&inputs, gradients, wanted)
    });
    let node = GradNode::called_at(&y.handle.node, Some(rule), &handles(inputs), place);
    y.handle.edge = Edge::Node(node, y.handle.output);
    y
}

/// The gradients, if there is a fitting one for each input.
fn checked(
    inputs: &[Tensor],
    gradients: Vec<Option<Tensor>>,
    wanted: &[bool],
) -> Result<Vec<Option<Handle>>, OpError> {
    ensure!(
        gradients.len() == inputs.len(),
        "the derivative of a custom function of {} inputs gave {} gradients",
        inputs.len(),
        gradients.len()
    );
    for (i, (x, g)) in inputs.iter().zip(&gradients).enumerate() {
        let Some(g) = g else { continue };
        if let Some(e) = g.error() {
            let (op, text, loc) = (e.op(), e.message(), e.loc());
            return Err(OpError(format!(
                "gradient {i} is invalid: {op}: {text}, at {loc}"
            )));
        }
        ensure!(
            !wanted[i] || g.fact() == x.fact(),
            "gradient {i} is {}, but the input is {}",
            g.fact(),
            x.fact()
        );
    }
    let handle = |g: Option<Tensor>| g.map(|g| g.handle);
    Ok(gradients.into_iter().map(handle).collect())
}
