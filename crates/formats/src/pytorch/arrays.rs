//! Tensors and arrays among the objects of a pickle.

use crate::fault::Fault;
use kiln_tensor::{DType, Tensor};
use std::sync::Arc;

/// A tensor over a storage: the element at `i` is number `offset + Σ i · strides`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct View {
    pub storage: usize,
    pub dtype: DType,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

impl View {
    /// The number of elements.
    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if its elements are contiguous in row-major order.
    pub(super) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        let dims = self.shape.iter().zip(&self.strides).rev();
        self.len() == 0
            || dims.filter(|(size, _)| **size != 1).all(|(size, stride)| {
                let matches = *stride == expected;
                expected *= size;
                matches
            })
    }
}

/// A NumPy array, in row-major order.
#[derive(Debug)]
pub(super) struct Array {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Arc<[u8]>,
}

impl Array {
    pub(super) fn new(dtype: DType, shape: Vec<usize>, bytes: Arc<[u8]>) -> Result<Array, String> {
        let expected = shape
            .iter()
            .try_fold(dtype.size(), |n, size| n.checked_mul(*size));
        match expected == Some(bytes.len()) {
            true => Ok(Array {
                dtype,
                shape,
                bytes,
            }),
            false => Err(format!(
                "an array of {dtype} of shape {shape:?} has {} bytes",
                bytes.len()
            )),
        }
    }

    /// The number of bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn tensor(&self) -> Result<Tensor, Fault> {
        let tensor = Tensor::from_bytes(&self.bytes, self.dtype, &self.shape);
        Ok(tensor.check()?.clone())
    }
}
