//! Tensors of the reference: wide numbers with the dtype that they stand for.

use super::{Mode, stochastic};
use kiln_base::{DType, float_to_int, round_float, wrap_int};

/// The maximum number of elements that the reference gives one tensor; larger ones are an error rather than an
/// exhausted machine.
pub const MAX_ELEMENTS: usize = 1 << 30;

/// Row-major elements.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Floats of any dtype.
    Float(Vec<f64>),
    /// Integers and bool (0 and 1); `u64` is kept as the `i64` of the same bits.
    Int(Vec<i64>),
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    dtype: DType,
    shape: Vec<usize>,
    data: Data,
}

/// Data that does not fit the requested tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    /// The number of elements or bytes differs from that of the shape.
    #[error("{given} {unit} do not make a tensor {dtype}{shape:?}")]
    Length {
        /// The actual number.
        given: usize,
        /// `elements` or `bytes`.
        unit: &'static str,
        /// The requested dtype.
        dtype: DType,
        /// The requested shape.
        shape: Vec<usize>,
    },
    /// More elements than [`MAX_ELEMENTS`].
    #[error(
        "{0}{1:?} is too large for the reference: the product of sizes above 0 is at most {MAX_ELEMENTS}"
    )]
    TooLarge(DType, Vec<usize>),
    /// Floats for an integer dtype, or the reverse.
    #[error("the data of a {0} tensor has the wrong kind")]
    Kind(DType),
}

impl Data {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Data::Float(v) => v.len(),
            Data::Int(v) => v.len(),
        }
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements at these positions.
    pub(super) fn pick(&self, positions: &[usize]) -> Data {
        match self {
            Data::Float(v) => Data::Float(positions.iter().map(|&i| v[i]).collect()),
            Data::Int(v) => Data::Int(positions.iter().map(|&i| v[i]).collect()),
        }
    }
}

/// The number of elements of a shape, unless some of its dims alone have more than [`MAX_ELEMENTS`]
/// (which holds for dims next to a 0, too).
pub(super) fn element_count(shape: &[usize]) -> Option<usize> {
    let nonzero_count = shape
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul((*d).max(1)))?;
    if nonzero_count > MAX_ELEMENTS {
        None
    } else if shape.contains(&0) {
        Some(0)
    } else {
        Some(nonzero_count)
    }
}

impl Array {
    /// Returns a tensor of these elements. Floats are not rounded to `dtype`; integers wrap.
    ///
    /// # Errors
    /// If the number or the kind of the elements does not fit.
    pub fn new(dtype: DType, shape: &[usize], data: Data) -> Result<Array, ArrayError> {
        if matches!(data, Data::Float(_)) != dtype.is_float() {
            return Err(ArrayError::Kind(dtype));
        }
        let Some(expected) = element_count(shape) else {
            return Err(ArrayError::TooLarge(dtype, shape.to_vec()));
        };
        if expected != data.len() {
            return Err(ArrayError::Length {
                given: data.len(),
                unit: "elements",
                dtype,
                shape: shape.to_vec(),
            });
        }
        Ok(Array::with_mode(dtype, shape.to_vec(), data, Mode::Exact))
    }

    /// A tensor of these numbers, converted to `dtype` by the rules of casts.
    ///
    /// # Errors
    /// If the number of elements does not fit.
    pub fn from_f64(dtype: DType, shape: &[usize], values: &[f64]) -> Result<Array, ArrayError> {
        let data = if dtype.is_float() {
            Data::Float(values.iter().map(|x| round_float(*x, dtype)).collect())
        } else {
            Data::Int(values.iter().map(|x| float_to_int(*x, dtype)).collect())
        };
        Array::new(dtype, shape, data)
    }

    /// A tensor of these integers, converted to `dtype` by the rules of casts.
    ///
    /// # Errors
    /// If the number of elements does not fit.
    pub fn from_i64(dtype: DType, shape: &[usize], values: &[i64]) -> Result<Array, ArrayError> {
        let data = if dtype.is_float() {
            let float = |x: &i64| round_float(int_to_float(*x, DType::I64, dtype), dtype);
            Data::Float(values.iter().map(float).collect())
        } else {
            Data::Int(values.to_vec())
        };
        Array::new(dtype, shape, data)
    }

    /// A tensor from little-endian row-major elements; any bool byte but 0 is true.
    ///
    /// # Errors
    /// If the number of bytes does not fit.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Array, ArrayError> {
        let Some(expected) = element_count(shape) else {
            return Err(ArrayError::TooLarge(dtype, shape.to_vec()));
        };
        if expected * dtype.size() != bytes.len() {
            return Err(ArrayError::Length {
                given: bytes.len(),
                unit: "bytes",
                dtype,
                shape: shape.to_vec(),
            });
        }
        let data = match dtype.is_float() {
            true => Data::Float(dtype.floats(bytes)),
            false => Data::Int(dtype.ints(bytes)),
        };
        Array::new(dtype, shape, data)
    }

    /// Little-endian row-major elements of the dtype, rounded where they are wider.
    pub fn to_bytes(&self) -> Vec<u8> {
        match &self.data {
            Data::Float(v) => self.dtype.float_bytes(v),
            Data::Int(v) => self.dtype.int_bytes(v),
        }
    }

    /// The dtype that the numbers stand for.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements, row-major.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The elements of a float tensor.
    pub fn floats(&self) -> Option<&[f64]> {
        match &self.data {
            Data::Float(v) => Some(v),
            Data::Int(_) => None,
        }
    }

    /// The elements of an integer or bool tensor.
    pub fn ints(&self) -> Option<&[i64]> {
        match &self.data {
            Data::Float(_) => None,
            Data::Int(v) => Some(v),
        }
    }

    /// The elements as `f64`, for any dtype.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::Float(v) => v.clone(),
            Data::Int(v) => v
                .iter()
                .map(|x| int_to_float(*x, self.dtype, DType::F64))
                .collect(),
        }
    }

    /// Returns a tensor of data that has the right kind and length. Integers wrap into the dtype, and floats round to
    /// it according to the mode.
    pub(super) fn with_mode(dtype: DType, shape: Vec<usize>, mut data: Data, mode: Mode) -> Array {
        match (&mut data, mode) {
            (Data::Float(v), Mode::Rounded) if dtype != DType::F64 => {
                v.iter_mut().for_each(|x| *x = round_float(*x, dtype));
            }
            (Data::Float(v), Mode::Stochastic { seed }) if dtype != DType::F64 => {
                let elements = v.iter_mut().enumerate();
                elements.for_each(|(i, x)| *x = stochastic::round(*x, dtype, i, seed));
            }
            (Data::Int(v), _) if dtype.size() < 8 => {
                v.iter_mut().for_each(|x| *x = wrap_int(*x, dtype));
            }
            _ => {}
        }
        Array { dtype, shape, data }
    }
}

/// Converts an integer of dtype `from` to a float that is then cast to dtype `to`. f16 and bf16 are rounded from f64,
/// as in every kernel.
pub(super) fn int_to_float(x: i64, from: DType, to: DType) -> f64 {
    match (from == DType::U64, to == DType::F32) {
        (true, false) => x as u64 as f64,
        (true, true) => x as u64 as f32 as f64,
        (false, false) => x as f64,
        (false, true) => x as f32 as f64,
    }
}
