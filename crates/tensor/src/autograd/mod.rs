//! Gradients of recorded tensors.
//!
//! A tensor's handle knows where its gradient goes: nowhere, to the operation that computed it, or to a leaf that
//! keeps it ([`Tensor::requires_grad_`], or a [`Var`] that requires gradients). So `detach` is free, and derivatives
//! are ordinary recorded operations, compiled together with the others.

mod checkpoint;
mod function;
mod functional;
mod grad_fn;
mod transform;
mod watch;

pub use checkpoint::checkpoint;
pub use function::{CustomFunction, custom_function};
pub(crate) use function::{Derivative, check_may_not_flow, with_derivative};
pub use functional::{
    Grad, GradCheck, grad, grad_with, gradcheck, gradcheck_with, gradgradcheck, gradgradcheck_with,
};
pub use grad_fn::GradFn;
pub use transform::{Pullback, hessian, jacobian, jvp, vjp};
pub use watch::watch_gradients;

use crate::options::options;
use crate::record::{SOURCE, compose};
use crate::{
    Error, ErrorKind, HookHandle, MaybeTensor, Result, Tensor, Var, is_grad_enabled, is_recording,
    no_grad, on_behalf_of, realize_first, set_device, user_line,
};
use kiln_base::Loc;
use kiln_ir::{Builder, ensure};
use kiln_lazy::grad::edge::{Edge, Leaf};
use kiln_lazy::grad::engine::{self, Keep};
use kiln_lazy::{Handle, body};
use kiln_runtime::lock::lock;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::{Arc, Mutex};

options! {
    /// The options of [`Tensor::backward_with`].
    Backward () {
        /// Keeps the values that the derivatives need, for another pass.
        retain_graph: bool = false,
        /// Records the gradients so that they can be differentiated; keeps the graph too.
        create_graph: bool = false,
        ;
        /// The gradient of the tensor, of its dtype and shape; if omitted, 1 for a tensor of one element.
        gradient,
    }
}

impl Tensor {
    /// True if gradients flow to this tensor: it is a leaf that requires them, or was computed from one.
    pub fn requires_grad(&self) -> bool {
        self.handle.edge.is_some()
    }

    /// True if this tensor was not computed from tensors that require gradients.
    pub fn is_leaf(&self) -> bool {
        !matches!(self.handle.edge, Edge::Node(..))
    }

    /// This tensor as a leaf that keeps its gradient (or, with `false`, as data). The value is shared. Tensors that
    /// were computed from others that require gradients can't become leaves, and integers have no gradients: both
    /// give a tensor that carries an error.
    ///
    /// ```
    /// use kiln_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]).requires_grad_(true);
    /// x.square().sum(()).backward()?;
    /// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [2.0, 4.0, 6.0]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn requires_grad_(&self, requires_grad: bool) -> Tensor {
        if matches!(self.handle.edge, Edge::Leaf(_)) && requires_grad {
            return self.clone();
        }
        compose("requires_grad_", &[self], |_| {
            ensure!(
                self.is_leaf(),
                "only leaves can change whether they require gradients; detach() this tensor first"
            );
            ensure!(
                !requires_grad || self.dtype().is_float(),
                "only float tensors have gradients, not {}",
                self.fact()
            );
            let mut t = self.clone();
            t.handle.edge = match requires_grad {
                true => Edge::Leaf(Leaf::new(self.fact().clone(), self.device())),
                false => Edge::None,
            };
            Ok(t)
        })
    }

    /// The same value, without gradients. Free: the value is shared.
    #[track_caller]
    pub fn detach(&self) -> Tensor {
        if body::is_tracing() && self.error().is_none() {
            return compose("detach", &[self], |b| b.detach(self));
        }
        let mut t = self.clone();
        t.handle.edge = Edge::None;
        t
    }

    /// The gradient that [`Tensor::backward`] has accumulated here: of a leaf, or of a tensor that
    /// [`Tensor::retain_grad`] was called on.
    pub fn grad(&self) -> Option<Tensor> {
        self.keeper().and_then(|leaf| leaf.grad()).map(Tensor::from)
    }

    /// Replaces the gradient; none clears it.
    ///
    /// # Errors
    /// If dtype, shape or device differ from this tensor's.
    #[track_caller]
    pub fn set_grad(&self, grad: impl MaybeTensor) -> Result<()> {
        match self.keeper() {
            Some(leaf) => replace_grad(&leaf, grad.into_option(), Location::caller()),
            None => Ok(()),
        }
    }

    /// Clears the gradient.
    pub fn zero_grad(&self) {
        if let Some(leaf) = self.keeper() {
            leaf.set_grad(None);
        }
    }

    /// Makes the next [`Tensor::backward`] keep the gradient of this tensor, although it is not a leaf.
    pub fn retain_grad(&self) {
        if let Edge::Node(node, output) = &self.handle.edge {
            node.retained(*output, true);
        }
    }

    fn keeper(&self) -> Option<Arc<Leaf>> {
        match &self.handle.edge {
            Edge::None => None,
            Edge::Leaf(leaf) => Some(leaf.clone()),
            Edge::Node(node, output) => node.retained(*output, false),
        }
    }

    /// Calls `f` with the gradient of this tensor whenever a backward pass has computed it. A returned gradient
    /// replaces it, and must have the same dtype and shape.
    ///
    /// # Errors
    /// If this tensor does not require gradients.
    #[track_caller]
    pub fn register_hook(
        &self,
        f: impl Fn(&Tensor) -> Option<Tensor> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        self.check()?;
        match &self.handle.edge {
            Edge::Leaf(leaf) => Ok(leaf.hooks.add(wrap_hook(f))),
            Edge::Node(node, output) => Ok(node.hooks(*output).add(wrap_hook(f))),
            Edge::None => Err(Error::new(
                ErrorKind::Value,
                "register_hook",
                "this tensor does not require gradients, so its hook would never be called",
                Location::caller(),
            )),
        }
    }

    /// Computes the gradients of this one-element tensor with respect to every leaf that it was computed from, adds
    /// them to the gradients of the leaves, and releases the values that the derivatives needed. Several threads may
    /// do so at once: no gradient is lost, and the order of the additions is theirs.
    ///
    /// # Errors
    /// If this tensor has more than one element, does not require gradients, carries an error, was
    /// already differentiated, or was computed by an operation without derivative.
    #[track_caller]
    pub fn backward(&self) -> Result<()> {
        self.backward_with(Backward::new())
    }

    /// [`Tensor::backward`] with all options.
    ///
    /// ```
    /// use kiln_tensor::{Backward, Tensor};
    /// let x = Tensor::from([1.0f32, 2.0]).requires_grad_(true);
    /// let y = x.square();
    /// y.backward_with(Backward::new().gradient(&Tensor::from([1.0f32, 10.0])))?;
    /// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [2.0, 40.0]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::backward`], or if the gradient does not fit.
    #[track_caller]
    pub fn backward_with(&self, options: Backward) -> Result<()> {
        let loc = user_line(Location::caller());
        on_behalf_of(SOURCE, loc, || self.backward_at(options, loc))
    }

    fn backward_at(&self, options: Backward, loc: &'static Location<'static>) -> Result<()> {
        let seed = seed(self, options.gradient.as_ref(), "backward", loc)?;
        let keep = Keep {
            graph: options.retain_graph || options.create_graph,
            create: options.create_graph,
        };
        AFTER.with_borrow_mut(Vec::clear);
        let leaf_gradients = engine::run(&[(&self.handle, seed.handle)], None, keep, loc)?;
        let adding = lock(&ADDING);
        let pending = leaf_gradients.iter().any(|(leaf, _)| {
            let old = leaf.as_ref().and_then(|l| l.grad());
            old.is_some_and(|g| !g.is_realized())
        });
        let mut gradients: Vec<Tensor> = Vec::new();
        for (leaf, g) in leaf_gradients {
            let (Some(leaf), Some(g)) = (leaf, g) else {
                continue;
            };
            // If the cell was cast in the meantime, the gradient is cast to its dtype.
            let g = Tensor::from(g).to_dtype(leaf.dtype());
            if g.dims() != &leaf.shape()[..] {
                let (name, fact) = (leaf.label.get(), leaf.fact());
                let name = name.map_or("a Var".to_string(), |name| format!("`{name}`"));
                let message = format!(
                    "{name} is {fact} now, but was {} when it was used",
                    g.fact()
                );
                return Err(Error::new(ErrorKind::Value, "backward", message, loc));
            }
            let sum = match leaf.grad() {
                None => g,
                Some(so_far) if options.create_graph => Tensor::from(so_far).add(g),
                Some(so_far) => no_grad(|| Tensor::from(so_far).add(g)),
            };
            leaf.set_grad(Some(sum.check()?.handle.clone()));
            gradients.push(sum);
        }
        drop(adding);
        // Accumulating over many batches must not keep the graphs of all of them.
        if pending && !is_recording() {
            realize_first(gradients)?;
        }
        AFTER.take().into_iter().try_for_each(|f| f())
    }
}

/// Held while a pass adds its gradients to those of the leaves. So passes of several threads lose none.
static ADDING: Mutex<()> = Mutex::new(());

type Callback = Box<dyn FnOnce() -> Result<()>>;

thread_local! {
    /// The functions that wait for the end of this thread's backward pass.
    static AFTER: RefCell<Vec<Callback>> = const { RefCell::new(Vec::new()) };
}

/// Calls a function once the backward pass that this thread is in has given every leaf its gradient (PyTorch's
/// `queue_callback`). It is for hooks, which see one gradient at a time.
///
/// ```
/// use kiln_tensor::{Tensor, Var, after_backward};
/// let w = Var::parameter(Tensor::from([1.0f32, 2.0]))?;
/// let seen = w.clone();
/// w.register_hook(move |_| {
///     let w = seen.clone();
///     after_backward(move || w.set_grad(w.grad().map(|g| g * 10.0)));
///     None
/// })?;
/// w.square().sum(()).backward()?;
/// assert_eq!(w.grad().unwrap().to_vec::<f32>()?, [20.0, 40.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub fn after_backward(f: impl FnOnce() -> Result<()> + 'static) {
    AFTER.with_borrow_mut(|after| after.push(Box::new(f)));
}

/// Wraps a hook on tensors as a hook on handles.
fn wrap_hook(
    f: impl Fn(&Tensor) -> Option<Tensor> + Send + Sync + 'static,
) -> impl Fn(&Handle) -> Option<Handle> + Send + Sync + 'static {
    move |g| f(&g.clone().into()).map(|t| t.handle)
}

/// Replaces the gradient of a leaf.
fn replace_grad(leaf: &Leaf, grad: Option<Tensor>, loc: &'static Location<'static>) -> Result<()> {
    if let Some(g) = &grad {
        g.check()?;
        if *g.fact() != leaf.fact() || g.device() != leaf.device.get() {
            let name = leaf.label.get().map(|name| format!("`{name}`, "));
            let message = format!(
                "the gradient of {}{} on {} can't be {} on {}",
                name.unwrap_or_default(),
                leaf.fact(),
                leaf.device.get(),
                g.fact(),
                g.device()
            );
            return Err(Error::new(ErrorKind::Value, "set_grad", message, loc));
        }
    }
    leaf.set_grad(grad.map(|g| g.handle));
    Ok(())
}

/// The gradient that a backward pass starts from.
fn seed(
    y: &Tensor,
    gradient: Option<&Tensor>,
    called: &'static str,
    loc: &'static Location<'static>,
) -> Result<Tensor> {
    y.check()?;
    let wrong = |message: String| Err(Error::new(ErrorKind::Value, called, message, loc));
    if !y.requires_grad() {
        return wrong(format!(
            "{} does not depend on anything that requires gradients{}",
            y.fact(),
            if is_grad_enabled() {
                ""
            } else {
                " (inside no_grad nothing is recorded for them)"
            }
        ));
    }
    match gradient {
        Some(g) => {
            g.check()?;
            if g.fact() != y.fact() {
                return wrong(format!(
                    "the gradient of {} can't be {}",
                    y.fact(),
                    g.fact()
                ));
            }
            Ok(g.clone())
        }
        None if y.fact().numel().is(1) => {
            let _here = set_device(y.device());
            let ones = || compose(called, &[], |b| b.full(1.0, y.dtype(), y.dims()));
            Ok(on_behalf_of(SOURCE, user_line(loc), ones))
        }
        None => wrong(format!(
            "{} has more than one element: reduce it to one, such as with sum() or mean(), or give \
             its gradient",
            y.fact()
        )),
    }
}

impl Var {
    /// True if [`Tensor::backward`] computes a gradient for this cell.
    pub fn requires_grad(&self) -> bool {
        self.cell.requires_grad()
    }

    /// Switches gradients on or off; off freezes a parameter. Earlier snapshots don't change.
    ///
    /// # Errors
    /// If the cell does not hold floats.
    #[track_caller]
    pub fn requires_grad_(&self, requires_grad: bool) -> Result<&Var> {
        if requires_grad && !self.dtype().is_float() {
            let message = format!("only floats have gradients, not {}", self.dtype());
            let loc = Loc::from(Location::caller());
            return Err(Error::new(ErrorKind::Value, "requires_grad_", message, loc));
        }
        self.cell.set_requires_grad(requires_grad);
        Ok(self)
    }

    /// The gradient that [`Tensor::backward`] has accumulated. Inside `compile` this is the gradient of the recording
    /// alone: it starts empty and is dropped with the recording.
    pub fn grad(&self) -> Option<Tensor> {
        self.cell.leaf.grad().map(Tensor::from)
    }

    /// Replaces the gradient; none clears it.
    ///
    /// # Errors
    /// If dtype, shape or device differ from the cell's.
    #[track_caller]
    pub fn set_grad(&self, grad: impl MaybeTensor) -> Result<()> {
        replace_grad(&self.cell.leaf, grad.into_option(), Location::caller())
    }

    /// Clears the gradient.
    pub fn zero_grad(&self) {
        self.cell.leaf.set_grad(None);
    }

    /// Calls `f` with the gradient of this cell whenever a backward pass has computed it. A returned gradient
    /// replaces it. The gradient is recorded, not computed, so the operations of `f` become part of the step. Inside
    /// `compile`, `f` runs once, while recording; its operations run each time.
    ///
    /// # Errors
    /// None: the type is that of [`Tensor::register_hook`].
    pub fn register_hook(
        &self,
        f: impl Fn(&Tensor) -> Option<Tensor> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        Ok(self.cell.leaf.hooks.add(wrap_hook(f)))
    }
}
