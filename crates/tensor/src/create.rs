//! Making tensors from data and reading them back.

use crate::ops::args::addressable;
use crate::record::compose;
use crate::{DType, Device, Error, ErrorKind, Result, Scalar, Tensor, realize};
use kiln_base::Dim;
use kiln_ir::{Builder, OpError, Pw, Role, ops};
use kiln_runtime::Buffer;
use std::panic::Location;

pub use kiln_runtime::Element;

/// A shape whose tensors can be addressed.
pub(crate) fn dims(shape: &[usize], dtype: DType) -> Result<Vec<Dim>, OpError> {
    let dims: Result<Vec<Dim>, _> = shape
        .iter()
        .map(|d| i64::try_from(*d).map(Dim::Const))
        .collect();
    let dims = dims.map_err(|_| OpError(format!("a dim of {shape:?} is 2^63 or more")))?;
    addressable(&dims, dtype)?;
    Ok(dims)
}

impl Tensor {
    /// A tensor of the elements of a slice in row-major order. A slice of another length than the
    /// shape needs gives a tensor that carries that error.
    #[track_caller]
    pub fn from_slice<T: Element>(data: &[T], shape: impl AsRef<[usize]>) -> Tensor {
        let shape: Vec<i64> = shape.as_ref().iter().map(|d| *d as i64).collect();
        Tensor::data(data, &shape, Location::caller(), "from_slice")
    }

    /// [`Tensor::from_slice`] called by another name.
    pub(crate) fn data<T: Element>(
        data: &[T],
        shape: &[i64],
        loc: &'static Location<'static>,
        called: &'static str,
    ) -> Tensor {
        match Buffer::from_slice(data, shape) {
            Ok(buffer) => Tensor::leaf(buffer, Role::Data, Some(Device::Cpu), loc, called),
            Err(e) => {
                let wanted = shape.iter().try_fold(1i64, |n, d| n.checked_mul(*d));
                let message = match wanted.filter(|n| *n != data.len() as i64) {
                    Some(n) => format!(
                        "the shape {shape:?} takes {n} elements, but the slice has {}",
                        data.len()
                    ),
                    None => e.to_string(),
                };
                Tensor::poisoned(Error::new(ErrorKind::Value, called, message, loc), loc)
            }
        }
    }

    /// A tensor from the little-endian bytes of its elements in row-major order.
    #[track_caller]
    pub fn from_bytes(bytes: &[u8], dtype: DType, shape: impl AsRef<[usize]>) -> Tensor {
        let loc = Location::caller();
        let shape: Vec<i64> = shape.as_ref().iter().map(|d| *d as i64).collect();
        match Buffer::from_bytes(dtype, &shape, bytes) {
            Ok(buffer) => Tensor::leaf(buffer, Role::Data, Some(Device::Cpu), loc, "from_bytes"),
            Err(e) => {
                let error = Error::new(ErrorKind::Value, "from_bytes", e.to_string(), loc);
                Tensor::poisoned(error, loc)
            }
        }
    }

    /// A rank-0 tensor.
    #[track_caller]
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_slice(&[value], [])
    }

    /// A tensor that holds `value` everywhere.
    #[track_caller]
    pub fn full(shape: impl AsRef<[usize]>, value: impl Into<Scalar>, dtype: DType) -> Tensor {
        compose("full", &[], |b| {
            b.full(value, dtype, &dims(shape.as_ref(), dtype)?)
        })
    }

    /// Zeros.
    #[track_caller]
    pub fn zeros(shape: impl AsRef<[usize]>, dtype: DType) -> Tensor {
        compose("zeros", &[], |b| {
            b.full(0i64, dtype, &dims(shape.as_ref(), dtype)?)
        })
    }

    /// Ones.
    #[track_caller]
    pub fn ones(shape: impl AsRef<[usize]>, dtype: DType) -> Tensor {
        compose("ones", &[], |b| {
            b.full(1i64, dtype, &dims(shape.as_ref(), dtype)?)
        })
    }

    /// A tensor of this one's shape and dtype that holds `value` everywhere.
    #[track_caller]
    pub fn full_like(&self, value: impl Into<Scalar>) -> Tensor {
        compose("full_like", &[self], |b| {
            b.full(value, self.dtype(), self.dims())
        })
    }

    /// Zeros of this tensor's shape and dtype.
    #[track_caller]
    pub fn zeros_like(&self) -> Tensor {
        compose("zeros_like", &[self], |b| {
            b.full(0i64, self.dtype(), self.dims())
        })
    }

    /// Ones of this tensor's shape and dtype.
    #[track_caller]
    pub fn ones_like(&self) -> Tensor {
        compose("ones_like", &[self], |b| {
            b.full(1i64, self.dtype(), self.dims())
        })
    }

    /// `start, start + step, …` up to but not including `end`: i64 for integers, f32 for floats.
    #[track_caller]
    pub fn arange(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
    ) -> Tensor {
        let (start, end, step) = (start.into(), end.into(), step.into());
        let float = [start, end, step]
            .iter()
            .any(|s| matches!(s, Scalar::Float(_)));
        compose("arange", &[], |b| {
            let distance = (end.as_f64() - start.as_f64()) / step.as_f64();
            if !distance.is_finite() || distance < 0.0 {
                return Err(OpError(format!(
                    "no steps of {step} lead from {start} to {end}"
                )));
            }
            let len = Dim::Const(distance.ceil() as i64);
            addressable(std::slice::from_ref(&len), DType::I64)?;
            let index = b.op(ops::Iota { len }, &[])?;
            // Computed in f64 and rounded once, so that long ranges don't drift.
            let dtype = if float { DType::F64 } else { DType::I64 };
            let index = b.cast(&index, dtype)?;
            let step = b.scalar_like(step, &index)?;
            let start = b.scalar_like(start, &index)?;
            let scaled = b.pointwise(Pw::Mul, &[index, step])?;
            let values = b.pointwise(Pw::Add, &[scaled, start])?;
            b.cast(&values, if float { DType::F32 } else { DType::I64 })
        })
    }

    /// How many elements there are.
    ///
    /// # Errors
    /// As [`Tensor::shape`].
    #[track_caller]
    pub fn numel(&self) -> Result<usize> {
        Ok(self.shape()?.iter().product())
    }

    /// Bytes an element.
    pub fn element_size(&self) -> usize {
        self.dtype().size()
    }

    /// Bytes that the elements take.
    ///
    /// # Errors
    /// As [`Tensor::shape`].
    #[track_caller]
    pub fn nbytes(&self) -> Result<usize> {
        Ok(self.numel()? * self.element_size())
    }

    /// Bytes that this tensor's values take in memory now: none before they are computed.
    pub fn memory_bytes(&self) -> usize {
        let values = self.node.ready(self.output);
        values.map_or(0, |values| values.len() * self.element_size())
    }

    /// Computes the values, if they aren't yet.
    ///
    /// # Errors
    /// The first invalid operation this tensor came from, or what went wrong in the run.
    #[track_caller]
    pub fn realize(&self) -> Result<&Tensor> {
        let loc = Location::caller();
        self.check()?;
        realize::realize_at(&[self], loc)?;
        Ok(self)
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::realize`], or if `T` is not this tensor's dtype.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let loc = Location::caller();
        let buffer = realize::read(self, loc)?;
        buffer.to_vec::<T>().map_err(|e| unread(e, "to_vec", loc))
    }

    /// The little-endian bytes of the elements in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::realize`].
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let loc = Location::caller();
        let buffer = realize::read(self, loc)?;
        buffer.to_bytes().map_err(|e| unread(e, "to_bytes", loc))
    }

    /// The only element.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`], or if there is not exactly one element.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        let loc = Location::caller();
        let buffer = realize::read(self, loc)?;
        match buffer.as_slice::<T>().map_err(|e| unread(e, "item", loc))? {
            [x] => Ok(*x),
            values => Err(Error::new(
                ErrorKind::Value,
                "item",
                format!(
                    "{} has {} elements; item() reads tensors of exactly one",
                    self.fact(),
                    values.len()
                ),
                loc,
            )),
        }
    }
}

/// The error of reading what was computed.
fn unread(e: kiln_runtime::Error, op: &str, loc: &'static Location<'static>) -> Error {
    let kind = match e {
        kiln_runtime::Error::OutOfMemory { .. } => ErrorKind::Memory,
        _ => ErrorKind::Value,
    };
    Error::new(kind, op, e.to_string(), loc)
}
