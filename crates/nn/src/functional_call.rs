//! Calls of modules with other parameters.

use crate::layer::fact;
use crate::{Forward, Module, Output};
use kiln_tensor::{AsTensor, Error, Nest, Result, Tensor, Var, options, with_values};
use std::collections::{BTreeMap, BTreeSet};

options! {
    /// The options of [`functional_call_with`].
    FunctionalCall () {
        /// True if all parameters and buffers must be given (default no: the module's own stand for the others).
        strict: bool = false,
    }
}

/// Calls a module with tensors in place of its parameters and buffers of these names (`torch.func.functional_call`).
/// Gradients reach the tensors, and the module keeps its own values: what the call assigns, such as running statistics,
/// is gone when it ends. The result carries an error, as that of [`Forward::call`].
///
/// A parameter with several names is given under one of them.
///
/// ```
/// use kiln_nn::{Linear, Module, functional_call};
/// use kiln_tensor::{DType, Tensor, jacobian};
/// let (model, x) = (Linear::new(3, 2)?, Tensor::ones([1, 3], DType::F32));
/// // One step of gradient descent, through which gradients flow.
/// let w = model.weight.get().detach().requires_grad_(true);
/// let loss = functional_call(&model, [("weight", &w)], &x).square().sum(());
/// let g = kiln_tensor::grad_with(loss, &w, kiln_tensor::Grad::new().create_graph(true))?;
/// functional_call(&model, [("weight", &w - 0.1 * g)], &x).square().sum(()).backward()?;
/// assert!(w.grad().is_some() && model.weight.grad().is_none());
///
/// let j = jacobian(|w: Tensor| functional_call(&model, [("weight", w)], &x), &w)?;
/// assert_eq!(j.shape()?, [1, 2, 2, 3]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn functional_call<M, I, O, A, N, T>(
    module: &M,
    parameters: impl IntoIterator<Item = (N, T)>,
    input: A,
) -> O
where
    M: Forward<I, O>,
    I: Nest<Owned = I> + 'static,
    O: Output + 'static,
    A: Nest<Owned = I>,
    N: AsRef<str>,
    T: AsTensor,
{
    functional_call_with(module, parameters, input, FunctionalCall::new())
}

/// [`functional_call`] that can ask for all parameters and buffers.
#[track_caller]
pub fn functional_call_with<M, I, O, A, N, T>(
    module: &M,
    parameters: impl IntoIterator<Item = (N, T)>,
    input: A,
    options: FunctionalCall,
) -> O
where
    M: Forward<I, O>,
    I: Nest<Owned = I> + 'static,
    O: Output + 'static,
    A: Nest<Owned = I>,
    N: AsRef<str>,
    T: AsTensor,
{
    let mut named_values = Vec::new();
    for (name, value) in parameters {
        named_values.push((name.as_ref().to_string(), value.as_tensor().into_owned()));
    }
    match match_cells(module.as_module(), named_values, options) {
        Ok(values) => with_values(values, || module.call(input)),
        Err(e) => O::of_error(&e),
    }
}

/// Finds the ids of the cells of the names.
#[track_caller]
fn match_cells(
    module: &dyn Module,
    values_by_name: Vec<(String, Tensor)>,
    options: FunctionalCall,
) -> Result<Vec<(u64, Tensor)>> {
    let vars = module.vars();
    let known: BTreeMap<&str, &Var> = vars.iter().map(|v| (v.name.as_str(), &v.var)).collect();
    let (mut values, mut problems) = (Vec::new(), Vec::new());
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    for (name, value) in values_by_name {
        let Some(var) = known.get(name.as_str()) else {
            problems.push(format!("{name}: unexpected"));
            continue;
        };
        value.check()?;
        if let Some(other) = names.insert(var.id(), name.clone()) {
            problems.push(match other == name {
                true => format!("{name}: given twice"),
                false => format!("{name}: the same parameter as {other}, which is given too"),
            });
        }
        if var.dtype() != value.dtype() || var.dims() != value.dims() {
            let (own, other) = (fact(&var.detach()), fact(&value));
            problems.push(format!(
                "{name}: the module's is {own}, the given one {other}"
            ));
        }
        values.push((var.id(), value));
    }
    if options.strict {
        let named_ids: BTreeSet<u64> = names.into_keys().collect();
        let missing = vars.iter().filter(|v| !named_ids.contains(&v.var.id()));
        problems.extend(missing.map(|v| format!("{}: missing", v.name)));
    }
    if problems.is_empty() {
        return Ok(values);
    }
    let title = format!("the values do not fit {}", module.name());
    let error = Error::invalid("functional_call", title);
    Err(problems.into_iter().fold(error, Error::with_note))
}
