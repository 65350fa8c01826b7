//! Rows of tensors.

use crate::dataset::{Dataset, out_of_range};
use crate::fault::{SOURCE, invalid};
use kiln_tensor::{DType, Result, Tensor, on_behalf_of_caller};
use std::marker::PhantomData;
use std::panic::Location;

/// The rows of tensors: sample `i` is the `i`-th entry of each tensor along dim 0.
///
/// The values are copied to the host once; samples carry no autograd history.
///
/// ```
/// use kiln_data::{Dataset, TensorDataset};
/// use kiln_tensor::Tensor;
///
/// let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
/// let y = Tensor::from([0i64, 1, 0]);
/// let data = TensorDataset::new((x, y))?;
/// let (row, label) = data.get(1)?;
/// assert_eq!((row.to_vec::<f32>()?, label.item::<i64>()?), (vec![3.0, 4.0], 1));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub struct TensorDataset<T> {
    columns: Vec<Column>,
    len: usize,
    sample: PhantomData<fn() -> T>,
}

/// The values of one tensor.
struct Column {
    dtype: DType,
    /// The shape of a row.
    shape: Vec<usize>,
    row_bytes: usize,
    bytes: Vec<u8>,
}

/// The tensors of a [`TensorDataset`], in the form of its samples: a `Tensor`, a tuple of up to six, a `Vec` or an
/// array.
pub trait Tensors: Sized + Send + 'static {
    /// The tensors in order.
    fn into_tensors(self) -> Vec<Tensor>;
    /// Rebuilds the form from the same number of tensors as `into_tensors` returned.
    fn from_tensors(tensors: Vec<Tensor>) -> Option<Self>;
}

impl Tensors for Tensor {
    fn into_tensors(self) -> Vec<Tensor> {
        vec![self]
    }
    fn from_tensors(mut tensors: Vec<Tensor>) -> Option<Tensor> {
        tensors.pop()
    }
}

impl Tensors for Vec<Tensor> {
    fn into_tensors(self) -> Vec<Tensor> {
        self
    }
    fn from_tensors(tensors: Vec<Tensor>) -> Option<Vec<Tensor>> {
        Some(tensors)
    }
}

impl<const N: usize> Tensors for [Tensor; N] {
    fn into_tensors(self) -> Vec<Tensor> {
        self.into()
    }
    fn from_tensors(tensors: Vec<Tensor>) -> Option<[Tensor; N]> {
        tensors.try_into().ok()
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {$(
        impl Tensors for ($(tuples!(@tensor $name),)*) {
            fn into_tensors(self) -> Vec<Tensor> {
                #[allow(non_snake_case)]
                let ($($name,)*) = self;
                vec![$($name),*]
            }
            fn from_tensors(tensors: Vec<Tensor>) -> Option<Self> {
                let mut tensors = tensors.into_iter();
                Some(($(tuples!(@next $name tensors),)*))
            }
        }
    )*};
    (@tensor $name:ident) => { Tensor };
    (@next $name:ident $tensors:ident) => { $tensors.next()? };
}
tuples!((A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F));

impl<T: Tensors> TensorDataset<T> {
    /// The rows of these tensors, which must have the same number of rows.
    ///
    /// # Errors
    /// If a tensor has no dim, the tensors differ in their dim 0, or a value can't be computed.
    #[track_caller]
    pub fn new(tensors: T) -> Result<TensorDataset<T>> {
        let loc = Location::caller();
        let wrong = |message| Err(invalid("TensorDataset::new", message, loc));
        let tensors = tensors.into_tensors();
        let (mut columns, mut len) = (Vec::with_capacity(tensors.len()), None);
        for (n, t) in tensors.iter().enumerate() {
            let shape = t.shape()?;
            let Some((rows, shape)) = shape.split_first() else {
                return wrong(format!("tensor {n} is a scalar, which has no rows"));
            };
            if *len.get_or_insert(*rows) != *rows {
                let shapes: Result<Vec<_>> = tensors.iter().map(|t| t.shape()).collect();
                let message = format!(
                    "the tensors differ in dim 0: their shapes are {:?}",
                    shapes?
                );
                return wrong(message);
            }
            columns.push(Column {
                dtype: t.dtype(),
                shape: shape.to_vec(),
                row_bytes: shape.iter().product::<usize>() * t.element_size(),
                bytes: t.to_bytes()?,
            });
        }
        Ok(TensorDataset {
            columns,
            len: len.unwrap_or(0),
            sample: PhantomData,
        })
    }
}

impl<T: Tensors> Dataset for TensorDataset<T> {
    type Item = T;
    fn len(&self) -> usize {
        self.len
    }
    #[track_caller]
    fn get(&self, index: usize) -> Result<T> {
        let loc = Location::caller();
        if index >= self.len {
            return Err(out_of_range("TensorDataset::get", index, self.len, loc));
        }
        let row = |c: &Column| {
            let bytes = &c.bytes[index * c.row_bytes..][..c.row_bytes];
            Tensor::from_bytes(bytes, c.dtype, &c.shape)
        };
        let rows = on_behalf_of_caller(SOURCE, || self.columns.iter().map(row).collect());
        // There is one row for each tensor of `into_tensors`.
        T::from_tensors(rows).ok_or_else(|| invalid("TensorDataset::get", "rows are missing", loc))
    }
}
