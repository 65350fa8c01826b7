//! The tensor: a handle to a recorded value, and the properties that PyTorch gives it.

use crate::{Device, Error, Result};
use kiln_base::{DType, Dim};
use kiln_ir::{Fact, Role};
use kiln_lazy::Handle;
use kiln_runtime::Buffer;
use std::panic::Location;
use std::sync::Arc;

/// The name of each dim.
pub(crate) type Names = Arc<[Option<Arc<str>>]>;

/// The distance in elements between neighbours along each dim, of a tensor that isn't contiguous.
pub(crate) type Strides = Arc<[Dim]>;

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
