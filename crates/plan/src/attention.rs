//! Attention.

use crate::{Epilogue, Matrix};
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};

/// `out[b, i, c] = Σ_j weight[b, i, j] · value[b, j, c]`, where the weights of row i are the softmax over j of
/// `scale · Σ_x query[b, i, x] · key[b, j, x]` under the mask. f16 and bf16 compute in f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Of the operands and the result: a float.
    pub dtype: DType,
    /// What scores are multiplied by.
    pub scale: f64,
    /// Whether row i sees keys 0 to i only. A row that sees none, here or by the mask, gives zeros.
    pub causal: bool,
    /// Batch extents.
    pub batch: Vec<Dim>,
    /// Rows of the query and of the result.
    pub length: Dim,
    /// Rows of the key and of the value.
    pub keys: Dim,
    /// Columns of the query and of the key.
    pub width: Dim,
    /// Columns of the value and of the result.
    pub columns: Dim,
    /// Rows that ask.
    pub query: Matrix,
    /// Rows that are asked.
    pub key: Matrix,
    /// What their weights are for.
    pub value: Matrix,
    /// A matrix of `length` rows and a column a key, and its dtype: bool (which keys take part) or
    /// `dtype` (added to the scores).
    pub mask: Option<(Matrix, DType)>,
    /// The contiguous result's argument; unused with an epilogue, which writes its own.
    pub out: u16,
    /// Work on the result.
    pub epilogue: Option<Epilogue>,
}

impl Attention {
    /// The arguments that it reads, and their dtypes.
    pub fn operands(&self) -> impl Iterator<Item = (u16, DType)> {
        let own = [&self.query, &self.key, &self.value].map(|m| (m.arg, self.dtype));
        let mask = self.mask.as_ref().map(|(m, dtype)| (m.arg, *dtype));
        own.into_iter().chain(mask)
    }
}
