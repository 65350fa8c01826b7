//! Gradients as functions.

use super::seed;
use crate::tensor::handles;
use crate::{DType, Error, ErrorKind, Result, Tensor, enable_grad};
use kiln_lazy::grad::engine::{self, Keep};
use std::panic::Location;

/// What [`grad_with`] takes beside the tensors.
#[derive(Clone, Debug, Default)]
pub struct GradOptions {
    /// The gradients of the outputs, one each; 1 for one-element outputs where empty.
    pub grad_outputs: Vec<Tensor>,
    /// Keeps what the derivatives need, for another pass.
    pub retain_graph: bool,
    /// Records the gradients so that they can be differentiated; keeps the graph too.
    pub create_graph: bool,
}

/// The gradients of the sum of `outputs` with respect to `inputs`, without touching any `.grad`.
/// `None` for inputs that no output depends on.
///
/// ```
/// use kiln_tensor::{Tensor, grad};
/// let x = Tensor::from_slice(&[3.0f64], [1]).requires_grad_(true);
/// let dx = grad(&[&x.square()], &[&x], true)?[0].clone().unwrap();
/// let ddx = grad(&[&(&dx * &x)], &[&x], false)?[0].clone().unwrap();
/// assert_eq!(ddx.item::<f64>()?, 12.0); // (2x · x)' = 4x
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`Tensor::backward`]; if an input does not require gradients.
#[track_caller]
pub fn grad(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    create_graph: bool,
) -> Result<Vec<Option<Tensor>>> {
    let options = GradOptions {
        create_graph,
        ..GradOptions::default()
    };
    grad_with(outputs, inputs, &options)
}

/// [`grad`] with all options.
///
/// # Errors
/// As [`grad`]; if there is not one gradient for each output.
#[track_caller]
pub fn grad_with(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    options: &GradOptions,
) -> Result<Vec<Option<Tensor>>> {
    let loc = Location::caller();
    let wrong = |m: String| Error::new(ErrorKind::Value, "grad", m, loc);
    let given = &options.grad_outputs;
    if !given.is_empty() && given.len() != outputs.len() {
        return Err(wrong(format!(
            "{} outputs need as many gradients, not {}",
            outputs.len(),
            given.len()
        )));
    }
    for (i, x) in inputs.iter().enumerate() {
        x.check()?;
        if !x.requires_grad() {
            return Err(wrong(format!(
                "input {i}, {}, does not require gradients",
                x.fact()
            )));
        }
    }
    if outputs.is_empty() {
        return Ok(vec![None; inputs.len()]);
    }
    let mut seeded = Vec::with_capacity(outputs.len());
    for (i, y) in outputs.iter().enumerate() {
        seeded.push((&y.handle, seed(y, given.get(i), "grad", loc)?.handle));
    }
    let keep = Keep {
        graph: options.retain_graph || options.create_graph,
        create: options.create_graph,
    };
    let found = engine::run(&seeded, Some(&handles(inputs)), keep, loc)?;
    Ok(found
        .into_iter()
        .map(|(_, g)| g.map(Tensor::from))
        .collect())
}

/// `f(inputs)` and the gradients of `inputs` for the cotangent `v` of the result: a vector-Jacobian
/// product.
///
/// # Errors
/// As [`grad`].
#[track_caller]
pub fn vjp(
    f: impl FnOnce(&[Tensor]) -> Tensor,
    inputs: &[&Tensor],
    v: &Tensor,
) -> Result<(Tensor, Vec<Option<Tensor>>)> {
    let leaves: Vec<Tensor> = inputs
        .iter()
        .map(|x| x.detach().requires_grad_(true))
        .collect();
    let y = enable_grad(|| f(&leaves));
    let options = GradOptions {
        grad_outputs: vec![v.clone()],
        ..GradOptions::default()
    };
    let gradients = grad_with(&[&y], &leaves.iter().collect::<Vec<_>>(), &options)?;
    Ok((y.detach(), gradients))
}

/// `f(inputs)` and its directional derivative along `tangents`: a Jacobian-vector product, as the
/// derivative of the vector-Jacobian product, which is linear in its cotangent.
///
/// # Errors
/// As [`grad`]; if there is not one tangent of the same dtype and shape for each input.
#[track_caller]
pub fn jvp(
    f: impl FnOnce(&[Tensor]) -> Tensor,
    inputs: &[&Tensor],
    tangents: &[&Tensor],
) -> Result<(Tensor, Tensor)> {
    let loc = Location::caller();
    let leaves: Vec<Tensor> = inputs
        .iter()
        .map(|x| x.detach().requires_grad_(true))
        .collect();
    let y = enable_grad(|| f(&leaves));
    let shape: Vec<usize> = y.shape()?;
    let u = Tensor::zeros(&shape, y.dtype()).requires_grad_(true);
    let options = GradOptions {
        grad_outputs: vec![u.clone()],
        retain_graph: true,
        create_graph: true,
    };
    let gradients = grad_with(&[&y], &leaves.iter().collect::<Vec<_>>(), &options)?;
    if tangents.len() != inputs.len() {
        let m = format!(
            "{} inputs need as many tangents, not {}",
            inputs.len(),
            tangents.len()
        );
        return Err(Error::new(ErrorKind::Value, "jvp", m, loc));
    }
    let (mut outputs, mut along) = (Vec::new(), Vec::new());
    for (g, t) in gradients.iter().zip(tangents) {
        if let Some(g) = g.as_ref().filter(|g| g.requires_grad()) {
            outputs.push(g);
            along.push((*t).clone());
        }
    }
    let options = GradOptions {
        grad_outputs: along,
        ..GradOptions::default()
    };
    let found = grad_with(&outputs, &[&u], &options)?;
    let zero = || Tensor::zeros(&shape, y.dtype());
    Ok((y.detach(), found[0].clone().unwrap_or_else(zero)))
}

/// Compares the gradients of `f` (summed up) with central differences of step `eps`, all in f64.
///
/// # Errors
/// If an element differs by more than `atol + rtol · |difference|`, naming it; if an input is not f64;
/// as [`grad`].
#[track_caller]
pub fn gradcheck(
    f: impl Fn(&[Tensor]) -> Tensor,
    inputs: &[&Tensor],
    eps: f64,
    atol: f64,
    rtol: f64,
) -> Result<()> {
    let loc = Location::caller();
    let wrong = |m: String| Error::new(ErrorKind::Value, "gradcheck", m, loc);
    for (i, x) in inputs.iter().enumerate() {
        if x.check()?.dtype() != DType::F64 {
            return Err(wrong(format!("input {i} must be f64, not {}", x.dtype())));
        }
    }
    let leaves: Vec<Tensor> = inputs
        .iter()
        .map(|x| x.detach().requires_grad_(true))
        .collect();
    let total = |x: &[Tensor]| f(x).sum(());
    let y = total(&leaves);
    let gradients = grad(&[&y], &leaves.iter().collect::<Vec<_>>(), false)?;
    for (i, g) in gradients.iter().enumerate() {
        let x = inputs[i].to_vec::<f64>()?;
        let shape = inputs[i].shape()?;
        let g = match g {
            Some(g) => g.to_vec::<f64>()?,
            None => vec![0.0; x.len()],
        };
        for at in 0..x.len() {
            let moved = |by: f64| -> Result<f64> {
                let mut x = x.clone();
                x[at] += by;
                let mut all: Vec<Tensor> = inputs.iter().map(|x| x.detach()).collect();
                all[i] = Tensor::from_slice(&x, &shape).to(inputs[i].device());
                total(&all).item::<f64>()
            };
            let numeric = (moved(eps)? - moved(-eps)?) / (2.0 * eps);
            let difference = (g[at] - numeric).abs();
            if difference.is_nan() || difference > atol + rtol * numeric.abs() {
                return Err(wrong(format!(
                    "the gradient of input {i} at element {at} is {}, but central differences give \
                     {numeric}",
                    g[at]
                )));
            }
        }
    }
    Ok(())
}
