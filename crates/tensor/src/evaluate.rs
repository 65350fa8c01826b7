//! Reports on, and reference values of, tensors that one program computes.

use crate::nest::{Flat, Nest};
use crate::{Result, Tensor};
use kiln_compiler::Explain;
use kiln_lazy::run::{cached, reference};
use std::panic::Location;

/// A report of what the compiler did, or would do, for a tensor or a structure of them ([`Nest`]) that is computed in
/// one program: passes, groups, kernels, memory, and why its plans were compiled. It displays as text;
/// [`Explain::to_html`] is a page.
///
/// # Errors
/// The first invalid operation, or one that the engine can't run.
///
/// ```
/// use kiln_tensor::{Tensor, explain};
/// let x = Tensor::from([1.0f32, 2.0, 3.0]);
/// let (y, z) = (x.exp(), x.sum(()));
/// println!("{}", explain(&y)?);
/// println!("{}", explain((&y, &z))?);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn explain(tensors: impl Nest) -> Result<Explain> {
    cached::explain(&Flat::of(&tensors).leaves, Location::caller())
}

/// The values of a tensor or a structure of them ([`Nest`]), computed by the reference evaluation: slow, simple, in
/// f64 and rounded to each dtype. Nothing is realised or committed.
///
/// # Errors
/// The first invalid operation, or the error of the evaluation.
///
/// ```
/// use kiln_tensor::{Tensor, evaluate_reference};
/// let x = Tensor::from([1.0f32, 4.0]);
/// let (root, sum) = evaluate_reference((x.sqrt(), x.sum(())))?;
/// assert_eq!(root.to_vec::<f32>()?, [1.0, 2.0]);
/// assert_eq!(sum.item::<f32>()?, 5.0);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn evaluate_reference<N: Nest>(tensors: N) -> Result<N::Owned> {
    let flat = Flat::of(&tensors);
    let values = reference::evaluate_reference(&flat.leaves, Location::caller())?;
    Ok(flat.build::<N>(values.into_iter().map(Tensor::from)))
}
