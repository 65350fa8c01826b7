//! The tensor: a handle to a recorded value, and the properties that PyTorch gives it.

use crate::names::Names;
use crate::nest::{Flat, Nest};
use crate::strides::Strides;
use crate::{Device, Error, Result};
use kiln_base::{DType, Dim};
use kiln_compiler::Explain;
use kiln_ir::{Fact, Role};
use kiln_lazy::Handle;
use kiln_lazy::run::{cached, reference};
use kiln_runtime::Buffer;
use std::panic::Location;

/// A tensor: a handle to one output of a recorded operation.
///
/// Cloning is cheap and shares the node. A tensor that depends on an invalid operation carries the first error; every
/// read returns it.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) handle: Handle,
    /// Set for views that PyTorch would not call contiguous.
    pub(crate) strides: Option<Strides>,
    /// Set if a dim is named.
    pub(crate) names: Option<Names>,
}

impl AsRef<Handle> for Tensor {
    fn as_ref(&self) -> &Handle {
        &self.handle
    }
}

impl From<Handle> for Tensor {
    fn from(handle: Handle) -> Tensor {
        Tensor {
            handle,
            strides: None,
            names: None,
        }
    }
}

impl Tensor {
    /// A tensor of given values.
    pub(crate) fn leaf(
        buffer: Buffer,
        role: Role,
        device: Option<Device>,
        loc: &'static Location<'static>,
        called: &'static str,
    ) -> Tensor {
        Handle::leaf(buffer, role, device, loc, called).into()
    }

    /// A tensor that carries an error.
    pub(crate) fn poisoned(error: Error, loc: &'static Location<'static>) -> Tensor {
        Handle::poisoned(error, loc).into()
    }

    /// A tensor that carries an error, which every read returns. For functions that have no value to return.
    #[track_caller]
    pub fn from_error(error: Error) -> Tensor {
        Tensor::poisoned(error, Location::caller())
    }

    /// Dtype and shape; meaningless for a poisoned tensor.
    pub(crate) fn fact(&self) -> &Fact {
        self.handle.fact()
    }

    /// The error that this tensor carries, if an operation that it depends on was invalid.
    pub fn error(&self) -> Option<&Error> {
        self.handle.error()
    }

    /// This tensor, or the error it carries.
    ///
    /// # Errors
    /// The first invalid operation that this tensor depends on.
    pub fn check(&self) -> Result<&Tensor> {
        self.handle.check()?;
        Ok(self)
    }

    /// The element type; f32 for a poisoned tensor.
    pub fn dtype(&self) -> DType {
        self.handle.dtype()
    }

    /// The shape, outermost dim first.
    ///
    /// # Errors
    /// If the tensor is poisoned, or a dim is symbolic (inside `compile`; see [`Tensor::dims`]).
    #[track_caller]
    pub fn shape(&self) -> Result<Vec<usize>> {
        self.handle.shape(Location::caller())
    }

    /// The shape with its symbolic dims.
    pub fn dims(&self) -> &[Dim] {
        self.handle.dims()
    }

    /// Number of dims; 1 for a poisoned tensor.
    pub fn ndim(&self) -> usize {
        self.handle.ndim()
    }

    /// The device of the values.
    pub fn device(&self) -> Device {
        self.handle.device()
    }

    /// True if the values are in memory, so that reading them runs nothing.
    pub fn is_realized(&self) -> bool {
        self.handle.is_realized()
    }
}

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
