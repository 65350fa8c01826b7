//! Matrix products.

use crate::kernel::read;
use crate::{Algorithm, Epilogue, Matrix, Prologue};
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};

/// `out[b, i, j] = Σ_k lhs[b, i, k] · rhs[b, k, j]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// f32 or f64.
    pub dtype: DType,
    /// Batch extents.
    pub batch: Vec<Dim>,
    /// Rows of the result.
    pub m: Dim,
    /// Length of the sums.
    pub k: Dim,
    /// Columns of the result.
    pub n: Dim,
    /// The left matrix.
    pub lhs: Matrix,
    /// The right matrix.
    pub rhs: Matrix,
    /// The contiguous result's argument; unused with an epilogue, which writes its own.
    pub out: u16,
    /// Work that makes the left and the right matrix, whose `arg` is then unused; the elements of its rows, or of
    /// its columns, lie side by side.
    pub prologues: [Option<Box<Prologue>>; 2],
    /// Work on the result.
    pub epilogue: Option<Epilogue>,
    /// How the CPU computes it.
    pub algorithm: Algorithm,
}

impl MatMul {
    /// The arguments that its matrices are, or are made of.
    pub fn operands(&self) -> Vec<u16> {
        let [left, right] = &self.prologues;
        let of = |p: &Option<_>, x: &Matrix| read(p, x.arg);
        [of(left, &self.lhs), of(right, &self.rhs)].concat()
    }
}
