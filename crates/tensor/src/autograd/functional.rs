//! Gradients as functions.

use super::seed;
use crate::nest::{Flat, build_partly};
use crate::options::options;
use crate::{DType, Error, ErrorKind, Nest, Result, Returned, Tensor, set_device, user_line};
use kiln_lazy::Handle;
use kiln_lazy::grad::engine::{self, Keep};
use kiln_lazy::label::called;
use std::panic::Location;

options! {
    /// The options of [`grad_with`].
    Grad () {
        /// The gradients of the outputs, in their structure; if omitted, 1 for outputs of one element.
        grad_outputs: Flat = Flat::default(),
        /// Keeps the values that the derivatives need, for another pass.
        retain_graph: bool = false,
        /// Records the gradients so that they can be differentiated; keeps the graph too.
        create_graph: bool = false,
        /// True to return zeros, not an error, as the gradient of an input that no output depends on.
        materialize_grads: bool = false,
    }
}

/// The gradients of the sum of `outputs` with respect to `inputs`, without touching any `.grad`, in the
/// structure of the inputs.
///
/// An input that no output depends on is an error that names it. For an input passed as `Some(&x)`, the gradient is
/// an `Option`, and is `None` in this case.
///
/// ```
/// use kiln_tensor::{Grad, Tensor, grad, grad_with};
/// let x = Tensor::from([3.0f64]).requires_grad_(true);
/// let dx = grad_with(x.square(), &x, Grad::new().create_graph(true))?;
/// let unused = x.detach().requires_grad_(true);
/// let (ddx, none) = grad(&dx * &x, (&x, Some(&unused)))?;
/// assert_eq!(ddx.item::<f64>()?, 12.0); // (2x · x)' = 4x
/// assert!(none.is_none());
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`Tensor::backward`], or if an input does not require gradients, or no output depends on it.
#[track_caller]
pub fn grad<I: Nest>(outputs: impl Nest, inputs: I) -> Result<I::Owned> {
    grad_with(outputs, inputs, Grad::new())
}

/// [`grad`] with all options.
///
/// # Errors
/// As [`grad`], or if there is not one gradient for each output.
#[track_caller]
pub fn grad_with<I: Nest>(outputs: impl Nest, inputs: I, options: Grad) -> Result<I::Owned> {
    let loc = user_line(Location::caller());
    let outputs = Flat::of(&outputs).leaves;
    let (inputs, paths) = Flat::with_paths(&inputs);
    let mut results = gradients(&outputs, (&inputs.leaves, &paths), &options, loc)?;
    if options.materialize_grads {
        for (g, x) in results.iter_mut().zip(&inputs.leaves) {
            if g.is_none() {
                *g = Some(x.zeros_like());
            }
        }
    }
    build_partly::<I, Tensor>(&inputs.counts, results).map_err(|index| {
        let message = format!(
            "no output depends on {}; give it as Some(..) for a gradient of None, or set \
             materialize_grads for zeros",
            called("input", &paths[index])
        );
        Error::new(ErrorKind::Value, "grad", message, loc)
    })
}

/// The gradients, `None` where no output depends on an input.
fn gradients(
    outputs: &[Tensor],
    (inputs, paths): (&[Tensor], &[String]),
    options: &Grad,
    loc: &'static Location<'static>,
) -> Result<Vec<Option<Tensor>>> {
    let wrong = |m: String| Error::new(ErrorKind::Value, "grad", m, loc);
    let seeds = &options.grad_outputs.leaves;
    if !seeds.is_empty() && seeds.len() != outputs.len() {
        let (outputs, seeds) = (outputs.len(), seeds.len());
        return Err(wrong(format!(
            "{outputs} outputs need as many gradients, not {seeds}"
        )));
    }
    for (x, path) in inputs.iter().zip(paths) {
        x.check()?;
        if !x.requires_grad() {
            let (name, fact) = (called("input", path), x.fact());
            return Err(wrong(format!("{name}, {fact}, does not require gradients")));
        }
    }
    if outputs.is_empty() {
        return Ok(vec![None; inputs.len()]);
    }
    let mut seeded = Vec::with_capacity(outputs.len());
    for (i, y) in outputs.iter().enumerate() {
        seeded.push((&y.handle, seed(y, seeds.get(i), "grad", loc)?.handle));
    }
    let keep = Keep {
        graph: options.retain_graph || options.create_graph,
        create: options.create_graph,
    };
    let inputs: Vec<&Handle> = inputs.iter().map(|t| &t.handle).collect();
    let leaf_gradients = engine::run(&seeded, Some(&inputs), keep, loc)?;
    Ok(leaf_gradients
        .into_iter()
        .map(|(_, g)| g.map(Tensor::from))
        .collect())
}

options! {
    /// The bounds of [`gradcheck_with`].
    GradCheck () {
        /// The step of the central differences.
        eps: f64 = 1e-6,
        /// The absolute tolerance of a gradient.
        atol: f64 = 1e-5,
        /// The tolerance relative to the central difference.
        rtol: f64 = 1e-3,
    }
}

/// Compares the gradients of `f` (the sum of all its results) with central differences, all in f64.
///
/// # Errors
/// If an element differs by more than `atol + rtol · |difference|`, naming it; if an input is not f64; or as
/// [`grad`].
#[track_caller]
pub fn gradcheck<I: Nest, R: Returned>(f: impl Fn(I::Owned) -> R, inputs: I) -> Result<()> {
    gradcheck_with(f, inputs, GradCheck::new())
}

/// [`gradcheck`] with other bounds.
///
/// # Errors
/// As [`gradcheck`].
#[track_caller]
pub fn gradcheck_with<I: Nest, R: Returned>(
    f: impl Fn(I::Owned) -> R,
    inputs: I,
    options: GradCheck,
) -> Result<()> {
    let (inputs, paths) = Flat::with_paths(&inputs);
    let total = |x: &[Tensor]| {
        let mut totals = evaluate::<I, R>(&f, &inputs, x)?
            .into_iter()
            .map(|y| y.sum(()));
        let first_total = totals.next();
        let none = || Tensor::zeros((), DType::F64);
        Ok(totals.fold(first_total.unwrap_or_else(none), |a, b| a + b))
    };
    let checked = (&inputs.leaves[..], &paths[..]);
    compare_with_differences("gradcheck", &total, checked, &options, Location::caller())
}

/// Compares the second derivatives of `f` with central differences of its gradients, all in f64. Each element of a
/// result and of a gradient has its own weight.
///
/// ```
/// use kiln_tensor::{Tensor, gradgradcheck};
/// let x = Tensor::from([0.5, -1.0]);
/// gradgradcheck(|x: Tensor| x.tanh(), &x)?;
/// let half = |x: Tensor| x.square() * x.detach(); // whose gradient is 2x², and 4x that of it, but not here
/// assert!(gradgradcheck(half, &x).is_err());
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`gradcheck`].
#[track_caller]
pub fn gradgradcheck<I: Nest, R: Returned>(f: impl Fn(I::Owned) -> R, inputs: I) -> Result<()> {
    gradgradcheck_with(f, inputs, GradCheck::new())
}

/// [`gradgradcheck`] with other bounds.
///
/// # Errors
/// As [`gradcheck`].
#[track_caller]
pub fn gradgradcheck_with<I: Nest, R: Returned>(
    f: impl Fn(I::Owned) -> R,
    inputs: I,
    options: GradCheck,
) -> Result<()> {
    let loc = user_line(Location::caller());
    let (inputs, paths) = Flat::with_paths(&inputs);
    let total = |x: &[Tensor]| {
        let leaf = |x: &Tensor| match x.requires_grad() {
            true => x.clone(),
            false => x.detach().requires_grad_(true),
        };
        let x: Vec<Tensor> = x.iter().map(leaf).collect();
        let y = weighted_sum(&evaluate::<I, R>(&f, &inputs, &x)?, &x)?;
        let gradients = gradients(&[y], (&x, &paths), &Grad::new().create_graph(true), loc)?;
        weighted_sum(&gradients.into_iter().flatten().collect::<Vec<_>>(), &x)
    };
    let checked = (&inputs.leaves[..], &paths[..]);
    compare_with_differences("gradgradcheck", &total, checked, &options, loc)
}

/// The results of a function for inputs, as a list.
fn evaluate<I: Nest, R: Returned>(
    f: &impl Fn(I::Owned) -> R,
    inputs: &Flat,
    x: &[Tensor],
) -> Result<Vec<Tensor>> {
    let arguments = crate::nest::build::<I, Tensor>(&inputs.counts, x.iter().cloned());
    Ok(Flat::of(&f(arguments).into_result()?).leaves)
}

/// A sum of all elements, each with its own weight. It also depends on `x`, by terms that are zero.
fn weighted_sum(values: &[Tensor], x: &[Tensor]) -> Result<Tensor> {
    let _here = x.first().map(|x| set_device(x.device()));
    let nothing = x.iter().map(|x| x.sum(()) * 0.0);
    let mut sum = nothing.fold(Tensor::zeros((), DType::F64), |a, b| a + b);
    for v in values {
        let weights: Vec<f64> = (0..v.numel()?).map(|i| (i as f64 + 1.0).cos()).collect();
        sum += (v * Tensor::from_slice(&weights, v.shape()?)).sum(());
    }
    Ok(sum)
}

fn compare_with_differences(
    check: &str,
    total: &dyn Fn(&[Tensor]) -> Result<Tensor>,
    (inputs, paths): (&[Tensor], &[String]),
    options: &GradCheck,
    loc: &'static Location<'static>,
) -> Result<()> {
    let wrong = |m: String| Error::new(ErrorKind::Value, check, m, loc);
    for (x, path) in inputs.iter().zip(paths) {
        if x.check()?.dtype() != DType::F64 {
            let message = format!("{} must be f64, not {}", called("input", path), x.dtype());
            return Err(wrong(message));
        }
    }
    let leaf = |x: &Tensor| x.detach().requires_grad_(true);
    let leaves: Vec<Tensor> = inputs.iter().map(leaf).collect();
    let y = total(&leaves)?;
    let gradients = gradients(&[y], (&leaves, paths), &Grad::new(), loc)?;
    for (i, g) in gradients.iter().enumerate() {
        let x = inputs[i].to_vec::<f64>()?;
        let shape = inputs[i].shape()?;
        let g = match g {
            Some(g) => g.to_vec::<f64>()?,
            None => vec![0.0; x.len()],
        };
        for element in 0..x.len() {
            let perturbed = |step: f64| -> Result<f64> {
                let mut x = x.clone();
                x[element] += step;
                let mut perturbed_inputs: Vec<Tensor> = inputs.iter().map(|x| x.detach()).collect();
                perturbed_inputs[i] = Tensor::from_slice(&x, &shape).to(inputs[i].device());
                total(&perturbed_inputs)?.item::<f64>()
            };
            let numeric =
                (perturbed(options.eps)? - perturbed(-options.eps)?) / (2.0 * options.eps);
            let difference = (g[element] - numeric).abs();
            if difference.is_nan() || difference > options.atol + options.rtol * numeric.abs() {
                return Err(wrong(format!(
                    "the gradient of {} at element {element} is {}, but central differences give {numeric}",
                    called("input", &paths[i]),
                    g[element]
                )));
            }
        }
    }
    Ok(())
}
