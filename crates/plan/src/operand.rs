//! How kernels that are not programs find what they read.

use crate::contract::Visit;
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};

/// A matrix operand: element (batch.., i, j) at `offset + Σ batch_strides · b + row·i + col·j`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Which argument.
    pub arg: u16,
    /// In elements.
    pub offset: Dim,
    /// One stride a batch dim.
    pub batch_strides: Vec<Dim>,
    /// Stride of the first matrix index.
    pub row: Dim,
    /// Stride of the second matrix index.
    pub col: Dim,
}

/// A contiguous row-major tensor in an argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Array {
    /// Which argument.
    pub arg: u16,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<Dim>,
}

/// An operand whose element i is at `offset + Σ strides · i`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strided {
    /// Which argument.
    pub arg: u16,
    /// In elements.
    pub offset: Dim,
    /// One an axis.
    pub strides: Vec<Dim>,
}

/// The last two axes are the matrix's, those in front of them its batch.
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

impl Matrix {
    /// Whether something holds for every size in it.
    pub(crate) fn all_dims(&self, holds: &mut Visit<'_>) -> bool {
        let Matrix {
            arg: _,
            offset,
            batch_strides,
            row,
            col,
        } = self;
        batch_strides.iter().chain([offset, row, col]).all(holds)
    }
}

impl Strided {
    /// Whether something holds for every size in it.
    pub(crate) fn all_dims(&self, holds: &mut Visit<'_>) -> bool {
        let Strided {
            arg: _,
            offset,
            strides,
        } = self;
        holds(offset) && strides.iter().all(holds)
    }
}
