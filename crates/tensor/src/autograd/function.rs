//! Functions with user-defined derivatives.

use crate::nest::{Counts, Flat, build};
use crate::record::{compose_many, user_error};
use crate::{
    Autocast, DType, ErrorKind, Nest, Returned, Tensor, current_autocast, is_grad_enabled, no_grad,
    set_autocast,
};
use kiln_ir::{Builder, OpError, ensure, ops};
use kiln_lazy::caller::user_line;
use kiln_lazy::grad::edge::{CustomRule, Edge, GradNode, Leaf};
use kiln_lazy::label::called;
use kiln_lazy::{Handle, body};
use std::panic::Location;
use std::sync::Arc;

/// A function with a user-defined derivative: `torch.autograd.Function`, in the form of JAX's `custom_vjp`.
///
/// `forward` returns the result and the values that `backward` needs besides the gradient: inputs, results, anything.
/// `backward` takes these values and the gradient of the result, and returns the gradients of the inputs, with `()`
/// or `None` for a zero gradient. All of them are structures of tensors ([`Nest`]). The operations of `forward` are
/// not recorded for gradients; those of `backward` are, if gradients are differentiated again.
///
/// ```
/// use kiln_tensor::{Tensor, custom_function};
/// let square = custom_function(|x: Tensor| (&x * &x, x), |x, g| 2.0 * x * g);
/// let x = Tensor::from([0.5f32, 1.5]).requires_grad_(true);
/// square.apply(&x).sum(()).backward()?;
/// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [1.0, 3.0]);
///
/// // Rounds, but passes gradients straight through.
/// let round = custom_function(|x: Tensor| (x.round(), ()), |(), g| g);
/// # round.apply(&x).sum(()).backward()?;
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub fn custom_function<I, O, S, R, G>(
    forward: impl Fn(I) -> R + Send + Sync + 'static,
    backward: impl Fn(S, O) -> G + Send + Sync + 'static,
) -> CustomFunction<I, O, R>
where
    I: Nest<Owned = I>,
    O: Nest<Owned = O>,
    S: Nest<Owned = S>,
    R: Returned<Nest = (O, S)>,
    G: Nest,
{
    CustomFunction {
        cast_inputs: None,
        forward: Box::new(move |inputs| {
            let result = forward(inputs).into_result();
            result.map(|(output, saved)| (Flat::of(&output), Flat::of(&saved)))
        }),
        backward: Arc::new(move |counts, saved, cotangents| {
            let saved = build::<S, Tensor>(&counts.saved, saved);
            let cotangents = build::<O, Tensor>(&counts.outputs, cotangents);
            let (flat, paths) = Flat::with_paths(&backward(saved, cotangents));
            paths.into_iter().zip(flat.leaves).collect()
        }),
        returned: std::marker::PhantomData,
    }
}

/// A function with a derivative; see [`custom_function`].
pub struct CustomFunction<I, O, R> {
    /// The dtype that inputs are cast to inside `autocast`.
    cast_inputs: Option<DType>,
    forward: Box<Forward<I>>,
    backward: Arc<Backwards>,
    returned: std::marker::PhantomData<fn() -> (O, R)>,
}

/// A function from the inputs to the results and the saved values.
type Forward<I> = dyn Fn(I) -> crate::Result<(Flat, Flat)> + Send + Sync;

/// A function from the saved values and the gradients of the results to the gradients of the inputs, by their paths.
type Backwards =
    dyn Fn(&SavedCounts, Vec<Tensor>, Vec<Tensor>) -> Vec<(String, Tensor)> + Send + Sync;

/// The counts of the structures that a derivative takes.
struct SavedCounts {
    saved: Counts,
    outputs: Counts,
}

impl<I, O, R> CustomFunction<I, O, R>
where
    I: Nest<Owned = I>,
    O: Nest<Owned = O>,
    R: Returned,
{
    /// Sets the behaviour inside [`autocast`](crate::autocast): inputs of float dtypes other than f64 are cast to
    /// this dtype, and nothing else is cast (PyTorch's `custom_fwd(cast_inputs=..)`). Without this, the operations of
    /// the function are cast as everywhere. The derivative is cast like the function.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor, autocast, custom_function};
    /// let exact = custom_function(|x: Tensor| (x.matmul(x.t()), x), |x, g| {
    ///     g.matmul(&x) + g.t().matmul(&x)
    /// })
    /// .cast_inputs(DType::F32);
    /// let x = Tensor::ones([2, 3], DType::BF16);
    /// assert_eq!(autocast(DType::BF16, || exact.apply(&x)).dtype(), DType::F32);
    /// assert_eq!(exact.apply(&x).dtype(), DType::BF16);
    /// ```
    pub fn cast_inputs(mut self, dtype: DType) -> CustomFunction<I, O, R> {
        self.cast_inputs = Some(dtype);
        self
    }

    /// Applies the function; returns a `Result` if `forward` does.
    #[track_caller]
    pub fn apply(&self, inputs: impl Nest<Owned = I>) -> R::Like<O> {
        let loc = user_line(Location::caller());
        let (mut given, paths) = Flat::with_paths(&inputs);
        let mut casts = current_autocast();
        if let (Some(dtype), Some(_)) = (self.cast_inputs, casts) {
            casts = None;
            let narrow = |t: &&mut Tensor| t.dtype().is_float() && t.dtype() != DType::F64;
            for t in given.leaves.iter_mut().filter(narrow) {
                *t = t.to_dtype(dtype);
            }
        }
        let marked: Vec<Tensor> = given.leaves.iter().map(mark).collect();
        let result = {
            let _casts = set_autocast(casts);
            no_grad(|| (self.forward)(build::<I, Tensor>(&given.counts, marked.iter().cloned())))
        };
        let (outputs, saved) = match result {
            Ok(result) => result,
            Err(e) => return R::like(Err(e), &[]),
        };
        let counts = outputs.counts.clone();
        let call = Call {
            inputs: given.leaves,
            paths,
            marked,
            backward: self.backward.clone(),
            casts,
            loc,
        };
        let outputs = call.outputs(outputs, saved);
        R::like(outputs.map(|o| build::<O, Tensor>(&counts, o)), &counts)
    }
}

/// Marks an input for `forward` by a fresh leaf edge, so that it is recognised when `forward` returns it unchanged.
fn mark(t: &Tensor) -> Tensor {
    let mut t = t.clone();
    t.handle.edge = match t.error() {
        None => Edge::Leaf(Leaf::new(t.fact().clone(), t.device())),
        Some(_) => Edge::None,
    };
    t
}

/// A call of a function with a derivative.
struct Call {
    inputs: Vec<Tensor>,
    paths: Vec<String>,
    /// The inputs as passed to `forward`.
    marked: Vec<Tensor>,
    backward: Arc<Backwards>,
    /// The autocast settings of the function, which its derivative shares.
    casts: Option<Autocast>,
    loc: &'static Location<'static>,
}

/// The source of a saved value in the derivative.
#[derive(Copy, Clone)]
enum SavedFrom {
    /// Among the operands: the inputs, followed by other saved values.
    Operand(usize),
    /// Among the results.
    Output(usize),
}

impl Call {
    /// Returns the results, with a derivative.
    #[track_caller]
    fn outputs(self, outputs: Flat, saved: Flat) -> crate::Result<Vec<Tensor>> {
        let (inputs, loc) = (&self.inputs, self.loc);
        if let Err(e) = check_may_not_flow() {
            return Err(user_error(ErrorKind::Op, "custom_function", e.0, loc));
        }
        let mut results: Vec<Tensor> = outputs.leaves.iter().map(|t| t.detach()).collect();
        let flows = is_grad_enabled() && inputs.iter().any(|t| t.requires_grad());
        let tensors = inputs.iter().chain(&outputs.leaves).chain(&saved.leaves);
        let failed = tensors.into_iter().any(|t| t.error().is_some());
        if failed || !flows || results.iter().all(|t| !t.dtype().is_float()) {
            return Ok(results);
        }
        let mut operands = inputs.clone();
        let sources: Vec<SavedFrom> = (saved.leaves.iter())
            .map(|t| self.find_source(t, &outputs.leaves, &mut operands))
            .collect();
        if results.len() > 1 {
            results = join_outputs(&results);
        }
        let indices: Vec<usize> = results.iter().map(|t| t.handle.output as usize).collect();
        let counts = SavedCounts {
            saved: saved.counts,
            outputs: outputs.counts,
        };
        let (backward, paths) = (self.backward.clone(), self.paths.clone());
        let casts = self.casts;
        let rule: Arc<CustomRule> = Arc::new(move |operands, outputs, cotangents, needs_grad| {
            if indices.iter().all(|o| cotangents[*o].is_none()) {
                return Ok(vec![None; operands.len()]);
            }
            let value = |p: &SavedFrom| match p {
                SavedFrom::Operand(i) => Tensor::from(operands[*i].clone()),
                SavedFrom::Output(i) => Tensor::from(outputs[indices[*i]].clone()),
            };
            let saved = sources.iter().map(value).collect();
            let cotangent = |o: &usize| match cotangents[*o].clone() {
                Some(g) => Tensor::from(g),
                None => no_grad(|| Tensor::from(outputs[*o].clone()).zeros_like()),
            };
            let _casts = set_autocast(casts);
            let returned = backward(&counts, saved, indices.iter().map(cotangent).collect());
            let mut matched = match_gradients(returned, &paths, operands, needs_grad)?;
            matched.resize(operands.len(), None);
            Ok(matched)
        });
        let call_site = ("custom_function", loc);
        let node = GradNode::with_caller(&results[0].handle.node, Some(rule), &operands, call_site);
        for t in results.iter_mut().filter(|t| t.dtype().is_float()) {
            t.handle.edge = Edge::Node(node.clone(), t.handle.output);
        }
        Ok(results)
    }

    /// Returns the source of a saved tensor in the derivative. A tensor without another source becomes an
    /// operand.
    fn find_source(&self, t: &Tensor, outputs: &[Tensor], operands: &mut Vec<Tensor>) -> SavedFrom {
        let node = |t: &Tensor| (Arc::as_ptr(&t.handle.node), t.handle.output);
        let leaf = |t: &Tensor| match &t.handle.edge {
            Edge::Leaf(leaf) => Some(Arc::as_ptr(leaf)),
            _ => None,
        };
        if let Some(leaf_ptr) = leaf(t)
            && let Some(i) = self.marked.iter().position(|m| leaf(m) == Some(leaf_ptr))
        {
            return SavedFrom::Operand(i);
        }
        if let Some(i) = outputs.iter().position(|o| node(o) == node(t)) {
            return SavedFrom::Output(i);
        }
        operands.push(t.handle.plain().into());
        SavedFrom::Operand(operands.len() - 1)
    }
}

/// The same values as the results of one operation.
#[track_caller]
fn join_outputs(results: &[Tensor]) -> Vec<Tensor> {
    let refs: Vec<&Tensor> = results.iter().collect();
    let barrier = ops::Barrier { detach: false };
    compose_many("custom_function", &refs, results.len(), |b| {
        Ok(b.emit(barrier.into(), results)?.into_vec())
    })
}

/// Matches the gradients that a user's function returned with the inputs, by their paths.
fn match_gradients(
    returned: Vec<(String, Tensor)>,
    paths: &[String],
    inputs: &[Handle],
    needs_grad: &[bool],
) -> Result<Vec<Option<Handle>>, OpError> {
    let mut ordered = vec![None; paths.len()];
    for (path, g) in returned {
        let Some(i) = paths.iter().position(|p| *p == path) else {
            let gradient = called("gradient", &path);
            return Err(OpError(format!("{gradient} is that of no input")));
        };
        check_gradient(&g, &path, &inputs[i], needs_grad[i])?;
        ordered[i] = Some(g.handle);
    }
    Ok(ordered)
}

/// Returns an error if `g` can't be the gradient of an input.
fn check_gradient(g: &Tensor, path: &str, x: &Handle, needs_grad: bool) -> Result<(), OpError> {
    if let Some(e) = g.error() {
        let (op, text, loc) = (e.op(), e.message(), e.loc());
        let gradient = called("gradient", path);
        return Err(OpError(format!(
            "{gradient} is invalid: {op}: {text}, at {loc}"
        )));
    }
    ensure!(
        !needs_grad || g.fact() == x.fact(),
        "{} is {}, but the input is {}",
        called("gradient", path),
        g.fact(),
        x.fact()
    );
    Ok(())
}

/// Returns an error in a body that is differentiated by its recorded operations.
pub(crate) fn check_may_not_flow() -> Result<(), OpError> {
    ensure!(
        !body::may_flow(),
        "the derivative of a custom function is lost inside scan and cond; call it outside, or \
         under no_grad"
    );
    Ok(())
}

/// A function from the inputs, the result and its gradient to the gradients of the inputs.
pub(crate) type Derivative =
    dyn Fn(&[Tensor], &Tensor, &Tensor) -> Vec<Option<Tensor>> + Send + Sync;

/// Gives `y` a derivative; `call_site` is the function that the user called, and its line.
pub(crate) fn with_derivative(
    y: &Tensor,
    inputs: &[&Tensor],
    call_site: (&'static str, &'static Location<'static>),
    backward: impl FnOnce() -> Arc<Derivative>,
) -> Tensor {
    let mut y = y.detach();
    let flows = is_grad_enabled() && inputs.iter().any(|t| t.requires_grad());
    if y.error().is_some() || !flows || !y.dtype().is_float() {
        return y;
    }
    let (output, backward) = (y.handle.output as usize, backward());
    let rule: Arc<CustomRule> = Arc::new(move |inputs, outputs, cotangents, needs_grad| {
        let Some(g) = cotangents[output].clone() else {
            return Ok(vec![None; inputs.len()]);
        };
        let tensors: Vec<Tensor> = inputs.iter().cloned().map(Tensor::from).collect();
        let gradients = backward(&tensors, &outputs[output].clone().into(), &g.into());
        check_gradients(inputs, gradients, needs_grad)
    });
    let node = GradNode::with_caller(&y.handle.node, Some(rule), inputs, call_site);
    y.handle.edge = Edge::Node(node, y.handle.output);
    y
}

/// Returns the gradients, or an error unless there is a fitting one for each input.
fn check_gradients(
    inputs: &[Handle],
    gradients: Vec<Option<Tensor>>,
    needs_grad: &[bool],
) -> Result<Vec<Option<Handle>>, OpError> {
    ensure!(
        gradients.len() == inputs.len(),
        "the derivative of a custom operator of {} inputs gave {} gradients",
        inputs.len(),
        gradients.len()
    );
    for (i, (x, g)) in inputs.iter().zip(&gradients).enumerate() {
        if let Some(g) = g {
            check_gradient(g, &i.to_string(), x, needs_grad[i])?;
        }
    }
    let handle = |g: Option<Tensor>| g.map(|g| g.handle);
    Ok(gradients.into_iter().map(handle).collect())
}
