//! Operands of kernels that are not programs.

use crate::dims::dims;
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};

/// A matrix operand: element (batch.., i, j) at `offset + Σ batch_strides · b + row·i + col·j`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// The argument's index.
    pub arg: u16,
    /// The offset in elements.
    pub offset: Dim,
    /// The strides, one per batch dim.
    pub batch_strides: Vec<Dim>,
    /// The stride of the first matrix index.
    pub row: Dim,
    /// The stride of the second matrix index.
    pub col: Dim,
}

dims!(Matrix: offset, batch_strides, row, col; arg);

/// A contiguous row-major tensor in an argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Array {
    /// The argument's index.
    pub arg: u16,
    /// The element type.
    pub dtype: DType,
    /// The shape.
    pub shape: Vec<Dim>,
}

dims!(Array: shape; arg, dtype);

/// An operand whose element i is at `offset + Σ strides · i`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strided {
    /// The argument's index.
    pub arg: u16,
    /// The offset in elements.
    pub offset: Dim,
    /// The strides, one per axis.
    pub strides: Vec<Dim>,
}

dims!(Strided: offset, strides; arg);

/// The last two axes are the matrix's, those before them its batch.
impl From<Strided> for Matrix {
    fn from(mut x: Strided) -> Matrix {
        let col = x.strides.pop().unwrap_or(Dim::ZERO);
        let row = x.strides.pop().unwrap_or(Dim::ZERO);
        Matrix {
            arg: x.arg,
            offset: x.offset,
            batch_strides: x.strides,
            row,
            col,
        }
    }
}
