//! Hooks on the gradients of several tensors at once.

use super::function::check_may_not_flow;
use crate::record::compose_many;
use crate::{Tensor, is_grad_enabled};
use kiln_ir::{Builder, OpError, ensure, ops};
use kiln_lazy::Handle;
use kiln_lazy::grad::edge::{CustomRule, Edge, GradNode};
use std::sync::Arc;

/// Returns the same tensors. A backward pass calls `f` once with all their gradients, `None` for a tensor without
/// gradient. The gradients that `f` returns, one for each tensor, replace them. For libraries with hooks on functions
/// of several tensors; for one tensor there is [`Tensor::register_hook`].
#[track_caller]
pub fn watch_gradients(
    tensors: &[Tensor],
    f: impl Fn(&[Option<Tensor>]) -> Option<Vec<Option<Tensor>>> + Send + Sync + 'static,
) -> Vec<Tensor> {
    let flows = is_grad_enabled() && tensors.iter().any(Tensor::requires_grad);
    if !flows || tensors.iter().any(|t| t.error().is_some()) {
        return tensors.to_vec();
    }
    let operands: Vec<&Tensor> = tensors.iter().collect();
    let rule: Arc<CustomRule> = Arc::new(move |inputs, _, gradients, _| {
        let shown: Vec<Option<Tensor>> = gradients
            .iter()
            .map(|g| g.clone().map(Tensor::from))
            .collect();
        let Some(new) = f(&shown) else {
            return Ok(gradients.to_vec());
        };
        check_gradients(inputs, &new)?;
        Ok(new.into_iter().map(|g| g.map(|g| g.handle)).collect())
    });
    compose_many(
        "register_full_backward_hook",
        &operands,
        tensors.len(),
        |b| {
            check_may_not_flow()?;
            let plain: Vec<Tensor> = tensors.iter().map(Tensor::detach).collect();
            let same = b.emit(ops::Barrier { detach: false }.into(), &plain)?;
            let node = &same[0].handle.node;
            let node = GradNode::with_caller(node, Some(rule), &operands, b.call_site());
            let mut watched = tensors.to_vec();
            for (t, same) in watched.iter_mut().zip(same) {
                let edge = match t.requires_grad() {
                    true => Edge::Node(node.clone(), same.handle.output),
                    false => Edge::None,
                };
                t.handle = same.handle;
                t.handle.edge = edge;
            }
            Ok(watched)
        },
    )
}

fn check_gradients(inputs: &[Handle], new: &[Option<Tensor>]) -> Result<(), OpError> {
    ensure!(
        new.len() == inputs.len(),
        "the hook gave {} gradients for {} tensors",
        new.len(),
        inputs.len()
    );
    for (i, (x, g)) in inputs.iter().zip(new).enumerate() {
        let Some(g) = g else { continue };
        if let Some(e) = g.error() {
            return Err(OpError(format!(
                "gradient {i} of the hook is invalid: {}",
                e.message()
            )));
        }
        ensure!(
            g.fact() == x.fact(),
            "gradient {i} of the hook is {}, but the tensor is {}",
            g.fact(),
            x.fact()
        );
    }
    Ok(())
}
