//! Making tensors from data, and reading their values.

use crate::ops::args::check_addressable;
use crate::record::{Recorded, Recorder, compose};
use crate::{
    AsTensor, DType, Device, Error, ErrorKind, IntList, Result, Scalar, Tensor, default_device,
    is_recording,
};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::eval::Array;
use kiln_ir::{Builder, OpError, Pw, Role, ensure};
use kiln_lazy::Handle;
use kiln_lazy::run::reference::array;
use kiln_lazy::run::{boundary, read};
use kiln_runtime::Buffer;
use kiln_runtime::memory::Storage;
use std::panic::Location;

pub use kiln_runtime::Element;

/// A shape: an array, a slice, a vector or a tuple of sizes, a single size, or `()` for none. Inside
/// [`compile`](crate::compile) some of the sizes may be symbols.
///
/// ```
/// use kiln_tensor::{DType, Spec, Tensor, compile};
///
/// let f = compile(Spec::new(DType::F32, ("n", 3)), |x| {
///     let n = x.dims()[0].clone();
///     let row = Tensor::arange(0, n.clone(), 1).unsqueeze(1);
///     &x + row + Tensor::ones(vec![n, 3.into()], DType::F32)
/// })?;
/// let y = f.run(Tensor::zeros([2, 3], DType::F32))?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub trait IntoShape {
    /// The sizes.
    fn into_shape(self) -> Vec<Dim>;
}

impl<T: Into<IntList>> IntoShape for T {
    fn into_shape(self) -> Vec<Dim> {
        self.into().0.into_iter().map(Dim::Const).collect()
    }
}

macro_rules! into_shape {
    ($($type:ty $(, $n:ident)?;)*) => {
        $(impl $(<const $n: usize>)? IntoShape for $type {
            fn into_shape(self) -> Vec<Dim> {
                self.to_vec()
            }
        })*
    };
}

into_shape! {
    &[Dim];
    Vec<Dim>;
    &Vec<Dim>;
    [Dim; N], N;
    &[Dim; N], N;
}

/// Returns the sizes of a shape, or an error if its tensors can't be addressed.
pub(crate) fn dims(shape: impl IntoShape, dtype: DType) -> Result<Vec<Dim>, OpError> {
    let dims = shape.into_shape();
    dims.iter().try_for_each(check_in_scope)?;
    for d in dims.iter().filter_map(Dim::as_const) {
        ensure!(d >= 0, "a size can't be negative in {dims:?}");
        ensure!(d < i64::MAX, "a dim of {dims:?} is 2^63 or more");
    }
    check_addressable(&dims, dtype)?;
    Ok(dims)
}

/// Returns an error if a symbolic size is used outside the function given to `compile` that defines it.
fn check_in_scope(size: &Dim) -> Result<(), OpError> {
    ensure!(
        size.as_const().is_some() || is_recording(),
        "the size {size} is that of an argument of a function given to compile, and has no value outside it"
    );
    Ok(())
}

/// The end of a range.
pub enum Limit {
    /// A number.
    Number(Scalar),
    /// A size, which may be symbolic.
    Size(Dim),
}

macro_rules! number_limits {
    ($($type:ty),*) => {
        $(impl From<$type> for Limit {
            fn from(n: $type) -> Limit {
                Limit::Number(n.into())
            }
        })*
    };
}

number_limits!(
    bool, i8, i16, i32, i64, u8, u16, u32, usize, f32, f64, Scalar
);

impl From<Dim> for Limit {
    fn from(size: Dim) -> Limit {
        match size.as_const() {
            Some(n) => Limit::Number(n.into()),
            None => Limit::Size(size),
        }
    }
}

/// Records `start`, `start + step`, …: `len` numbers.
pub(crate) fn range(
    b: &mut Recorder,
    start: Scalar,
    step: Scalar,
    len: Dim,
    dtype: DType,
) -> Recorded {
    check_addressable(std::slice::from_ref(&len), DType::I64)?;
    let index = b.iota(&len)?;
    // Computed wide and rounded once, so that errors don't add up over long ranges.
    let float = dtype.is_float();
    let index = b.cast(&index, if float { DType::F64 } else { DType::I64 })?;
    let scaled = b.with(Pw::Mul, &index, step)?;
    let values = b.with(Pw::Add, &scaled, start)?;
    b.cast(&values, dtype)
}

/// A range up to a symbolic size.
#[track_caller]
fn symbolic_range(start: Scalar, end: &Dim, step: Scalar) -> Tensor {
    compose("arange", &[], |b| {
        check_in_scope(end)?;
        let (Scalar::Int(start_index), Scalar::Int(step_size)) = (start, step) else {
            let text =
                format!("from {start} to the size {end} there must be whole steps, not {step}");
            return Err(OpError(text));
        };
        let len = (end - &Dim::Const(start_index)).div_exact(&Dim::Const(step_size));
        let len = len.map_err(|e| OpError(format!("no whole steps lead to the end: {e}")))?;
        range(b, start, step, len, DType::I64)
    })
}

#[on_cells]
impl Tensor {
    /// A tensor of the elements of a slice in row-major order. If the length of the slice doesn't match the shape,
    /// the tensor carries that error.
    pub fn from_slice<T: Element>(data: &[T], shape: impl Into<IntList>) -> Tensor {
        let shape = shape.into().0;
        Tensor::data(data, &shape, Location::caller(), "from_slice")
    }

    /// [`Tensor::from_slice`] under another name, `called`, in errors.
    pub(crate) fn data<T: Element>(
        data: &[T],
        shape: &[i64],
        loc: &'static Location<'static>,
        called: &'static str,
    ) -> Tensor {
        Tensor::data_on(default_device(), data, shape, loc, called)
    }

    /// [`Tensor::data`] on a device.
    pub(crate) fn data_on<T: Element>(
        device: Device,
        data: &[T],
        shape: &[i64],
        loc: &'static Location<'static>,
        called: &'static str,
    ) -> Tensor {
        match Buffer::from_slice(data, shape) {
            Ok(buffer) => match device.bring(buffer) {
                Ok(buffer) => Tensor::leaf(buffer, Role::Data, Some(device), loc, called),
                Err(e) => Tensor::poisoned(failed(e, called, loc), loc),
            },
            Err(e) => {
                let numel = shape.iter().try_fold(1i64, |n, d| n.checked_mul(*d));
                let message = match numel.filter(|n| *n != data.len() as i64) {
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

    /// A tensor on the CPU from the little-endian bytes of its elements in row-major order.
    pub fn from_bytes(bytes: &[u8], dtype: DType, shape: impl Into<IntList>) -> Tensor {
        let loc = Location::caller();
        let shape = shape.into().0;
        match Buffer::from_bytes(dtype, &shape, bytes) {
            Ok(buffer) => Tensor::leaf(buffer, Role::Data, Some(Device::Cpu), loc, "from_bytes"),
            Err(e) => {
                let error = Error::new(ErrorKind::Value, "from_bytes", e.to_string(), loc);
                Tensor::poisoned(error, loc)
            }
        }
    }

    /// A tensor on the CPU whose bytes `fill` writes in place: the little-endian bytes of its elements in row-major order. For
    /// readers of files. The bytes are undefined before `fill` writes them.
    ///
    /// # Errors
    /// If the shape can't be allocated, or the error of `fill`.
    pub fn filled<E: From<Error>>(
        dtype: DType,
        shape: impl Into<IntList>,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Tensor, E> {
        let (loc, shape) = (Location::caller(), shape.into().0);
        let error = |e| failed(e, "filled", loc);
        let len = shape.iter().try_fold(dtype.size(), |bytes, d| {
            bytes.checked_mul(usize::try_from(*d).ok()?)
        });
        let Some(len) = len else {
            let message = format!("no memory holds {dtype} of shape {shape:?}");
            return Err(Error::new(ErrorKind::Value, "filled", message, loc).into());
        };
        let mut storage = Storage::new(len).map_err(error)?;
        fill(storage.bytes_mut())?;
        let buffer = Buffer::from_storage(dtype, &shape, storage).map_err(error)?;
        Ok(Tensor::leaf(
            buffer,
            Role::Data,
            Some(Device::Cpu),
            loc,
            "filled",
        ))
    }

    /// A rank-0 tensor.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_slice(&[value], ())
    }

    /// A tensor that holds `value` everywhere.
    pub fn full(shape: impl IntoShape, value: impl Into<Scalar>, dtype: DType) -> Tensor {
        compose("full", &[], |b| b.full(value, dtype, &dims(shape, dtype)?))
    }

    /// Zeros.
    pub fn zeros(shape: impl IntoShape, dtype: DType) -> Tensor {
        compose("zeros", &[], |b| b.full(0i64, dtype, &dims(shape, dtype)?))
    }

    /// Zeros, under the name of a tensor whose values are to be replaced. PyTorch's hold whatever was in memory.
    pub fn empty(shape: impl IntoShape, dtype: DType) -> Tensor {
        compose("empty", &[], |b| b.full(0i64, dtype, &dims(shape, dtype)?))
    }

    /// Ones.
    pub fn ones(shape: impl IntoShape, dtype: DType) -> Tensor {
        compose("ones", &[], |b| b.full(1i64, dtype, &dims(shape, dtype)?))
    }

    /// A tensor of this one's shape and dtype that holds `value` everywhere.
    pub fn full_like(&self, value: impl Into<Scalar>) -> Tensor {
        compose("full_like", &[self], |b| {
            b.full(value, self.dtype(), self.dims())
        })
    }

    /// Zeros of this tensor's shape and dtype.
    pub fn zeros_like(&self) -> Tensor {
        compose("zeros_like", &[self], |b| {
            b.full(0i64, self.dtype(), self.dims())
        })
    }

    /// Zeros of this tensor's shape and dtype; see [`Tensor::empty`].
    pub fn empty_like(&self) -> Tensor {
        compose("empty_like", &[self], |b| {
            b.full(0i64, self.dtype(), self.dims())
        })
    }

    /// Ones of this tensor's shape and dtype.
    pub fn ones_like(&self) -> Tensor {
        compose("ones_like", &[self], |b| {
            b.full(1i64, self.dtype(), self.dims())
        })
    }

    /// `start, start + step, …` up to but not including `end`: i64 for integers, f32 for floats. `end` may be a
    /// symbolic size that an exact number of integer steps leads to.
    pub fn arange(
        start: impl Into<Scalar>,
        end: impl Into<Limit>,
        step: impl Into<Scalar>,
    ) -> Tensor {
        let (start, step) = (start.into(), step.into());
        let end = match end.into() {
            Limit::Number(end) => end,
            Limit::Size(end) => return symbolic_range(start, &end, step),
        };
        let float = [start, end, step]
            .iter()
            .any(|s| matches!(s, Scalar::Float(_)));
        let dtype = if float { DType::F32 } else { DType::I64 };
        Tensor::arange_dtype(start, end, step, dtype)
    }

    /// Returns the number of elements.
    ///
    /// # Errors
    /// As [`Tensor::shape`].
    pub fn numel(&self) -> Result<usize> {
        Ok(self.shape()?.iter().product())
    }

    /// Returns the size of an element in bytes.
    pub fn element_size(&self) -> usize {
        self.dtype().size()
    }

    /// Returns the size of all elements in bytes.
    ///
    /// # Errors
    /// As [`Tensor::shape`].
    pub fn nbytes(&self) -> Result<usize> {
        Ok(self.numel()? * self.element_size())
    }

    /// Returns the bytes of memory that this tensor's values take now: 0 before they are computed.
    pub fn memory_bytes(&self) -> usize {
        let values = self.handle.node.ready(self.handle.output);
        values.map_or(0, |values| values.len() * self.element_size())
    }
}

impl Tensor {
    /// Computes the values, unless they are known already.
    ///
    /// # Errors
    /// The first invalid operation that this tensor depends on, or the error of the run.
    #[track_caller]
    pub fn realize(&self) -> Result<&Tensor> {
        let loc = Location::caller();
        self.check()?;
        read::realize_at(&[&self.handle], loc)?;
        Ok(self)
    }
}

/// Computes tensors, and in the same program everything else that [`realize_all`](crate::realize_all) computes.
///
/// ```
/// use kiln_tensor::{Tensor, Var, realize_first};
/// let (w, x) = (Var::new(Tensor::from(1.0))?, Tensor::from([1.0, 2.0]));
/// let no_row = x.index_select(0, Tensor::from([7i64]));
/// w.assign(&w + 1.0)?;
/// realize_first([&w])?; // not the error of `no_row`, which reading that returns
/// assert!(w.get().is_realized() && no_row.realize().is_err());
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// Those of these tensors. Cells that were assigned these tensors then keep their values.
#[track_caller]
pub fn realize_first(tensors: impl IntoIterator<Item = impl AsTensor>) -> Result<()> {
    let loc = Location::caller();
    let tensors = tensors.into_iter().map(|t| t.as_tensor().into_owned());
    let tensors: Vec<Tensor> = tensors.collect();
    let handles: Vec<&Handle> = tensors.iter().map(|t| &t.handle).collect();
    boundary::realize_first(&handles, loc)
}

#[on_cells]
impl Tensor {
    /// The elements in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::realize`], or if `T` is not this tensor's dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let loc = Location::caller();
        let buffer = read::read(&self.handle, loc)?;
        buffer.to_vec::<T>().map_err(|e| failed(e, "to_vec", loc))
    }

    /// The little-endian bytes of the elements in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::realize`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let loc = Location::caller();
        let buffer = read::read(&self.handle, loc)?;
        buffer.to_bytes().map_err(|e| failed(e, "to_bytes", loc))
    }

    /// Passes the little-endian bytes of the elements in row-major order to `f`. Bytes on the host are not copied.
    ///
    /// # Errors
    /// As [`Tensor::realize`].
    pub fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let loc = Location::caller();
        let buffer = read::read(&self.handle, loc)?;
        let bytes = buffer.bytes().map_err(|e| failed(e, "with_bytes", loc))?;
        Ok(f(bytes))
    }

    /// The only element. It is converted to a `T` of another dtype if the kind of number allows it: a float to any
    /// float, rounded; an integer to any integer that holds it, or to a float; a bool to any number. A float as an
    /// integer, and a number as a bool, are errors: cast the tensor first.
    ///
    /// ```
    /// use kiln_tensor::Tensor;
    /// let loss = Tensor::from([0.5f32, 1.0]).mean(());
    /// assert_eq!(loss.item::<f64>()?, 0.75);
    /// assert_eq!(Tensor::scalar(3i64).item::<f32>()?, 3.0);
    /// assert!(loss.item::<i64>().is_err());
    /// assert!(Tensor::scalar(300).item::<u8>().is_err());
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::realize`], or if there is not exactly one element, or it can't be converted to `T`.
    pub fn item<T: Element>(&self) -> Result<T> {
        let loc = Location::caller();
        let buffer = read::read(&self.handle, loc)?;
        if buffer.len() != 1 {
            let message = format!(
                "{} has {} elements; item() reads tensors of exactly one",
                self.fact(),
                buffer.len()
            );
            return Err(Error::new(ErrorKind::Value, "item", message, loc));
        }
        let converted = convert_element(&buffer, T::DTYPE);
        let buffer = converted.map_err(|m| Error::new(ErrorKind::Value, "item", m, loc))?;
        match buffer.as_slice::<T>().map_err(|e| failed(e, "item", loc))? {
            [x, ..] => Ok(*x),
            [] => {
                let message = "an element was lost";
                Err(Error::new(ErrorKind::Internal, "item", message, loc))
            }
        }
    }
}

/// Converts one element to another dtype if the kind of number allows it.
fn convert_element(element: &Buffer, dtype: DType) -> Result<Buffer, String> {
    let from = element.dtype();
    if from == dtype {
        return Ok(element.clone());
    }
    if from.kind() > dtype.kind() || dtype == DType::Bool {
        return Err(format!(
            "asked for {dtype} of a {from} tensor, which would lose what it holds; cast it first"
        ));
    }
    let array = array(element).map_err(|e| e.to_string())?;
    let converted = match array.ints() {
        Some(&[n]) => {
            // u64 is kept as the i64 of the same bits.
            let wide = match from {
                DType::U64 => n as u64 as i128,
                _ => n as i128,
            };
            match dtype.int_range() {
                None => Array::from_f64(dtype, &[], &[wide as f64]),
                Some((low, high)) if (low..=high).contains(&wide) => {
                    Array::from_i64(dtype, &[], &[n])
                }
                Some(_) => {
                    return Err(format!(
                        "{wide} of a {from} tensor is out of range for {dtype}"
                    ));
                }
            }
        }
        _ => Array::from_f64(dtype, &[], &array.to_f64()),
    };
    let bytes = converted.map_err(|e| e.to_string())?.to_bytes();
    Buffer::from_bytes(dtype, &[], &bytes).map_err(|e| e.to_string())
}

/// The error of moving or reading values.
fn failed(e: kiln_runtime::Error, op: &str, loc: &'static Location<'static>) -> Error {
    let kind = match e {
        kiln_runtime::Error::OutOfMemory { .. } => ErrorKind::Memory,
        _ => ErrorKind::Value,
    };
    Error::new(kind, op, e.to_string(), loc)
}
