//! Attention and its gradients.

use crate::contract::{Contract, Contradiction, Described, Draft, Reads};
use crate::dims::dims;
use crate::tile::TileProgram;
use crate::{Epilogue, Footprint, Matrix};
use kiln_base::{DType, Dim, numel};
use serde::{Deserialize, Serialize};

/// Scores of queries and keys: `scale · Σ_x query[b, i, x] · key[b, j, x]` under a mask. They form a matrix of `length`
/// rows and a column per key that is never completely in memory. f16 and bf16 compute in f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// The dtype of the operands and results of attention: a float.
    pub dtype: DType,
    /// The factor of the scores.
    pub scale: f64,
    /// True if row i sees only keys 0 to i. A row that sees none, here or by the mask, has weights of zero.
    pub causal: bool,
    /// The batch extents.
    pub batch: Vec<Dim>,
    /// The number of rows of the query and of the result.
    pub length: Dim,
    /// The number of rows of the key and of the value.
    pub keys: Dim,
    /// The number of columns of the query and of the key.
    pub width: Dim,
    /// The matrix of queries.
    pub query: Matrix,
    /// The matrix of keys.
    pub key: Matrix,
    /// A matrix of `length` rows and a column per key, and its dtype: bool (true for keys that take part) or `dtype`
    /// (added to the scores).
    pub mask: Option<(Matrix, DType)>,
    /// The dropout of weights.
    pub dropout: Option<Dropout>,
}

dims!(Scores: batch, length, keys, width, query, key, mask, dropout; dtype, scale, causal);

/// Dropout of weights. Element i of a matrix of scores, counted through all batches, is multiplied by zero if the i-th
/// uniform number of f32 from an offset is less than `p`, and otherwise by 1 / (1 − p).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// The probability.
    pub p: f64,
    /// The seed and offset, i64: a matrix of one row and two columns.
    pub key: Matrix,
}

dims!(Dropout: key; p);

impl Dropout {
    /// Returns the factor of the kept weights.
    pub fn scale(&self) -> f64 {
        match self.p < 1.0 {
            true => 1.0 / (1.0 - self.p),
            false => 0.0,
        }
    }
}

/// `out[b, i, c] = Σ_j weight[b, i, j] · value[b, j, c]`, where the weights of row i are the softmax over j of its
/// scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// The scores from which weights are computed.
    pub scores: Scores,
    /// The number of columns of the value and of the result.
    pub columns: Dim,
    /// The values that are weighted.
    pub value: Matrix,
    /// The contiguous result's argument; unused with an epilogue, which writes its own.
    pub out: u16,
    /// The epilogue.
    pub epilogue: Option<Epilogue>,
}

dims!(Attention: scores, columns, value, epilogue; out);

/// The gradients of query, key and value of [`Attention`] for one of its result, one after another, each row-major.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionGrad {
    /// The scores from which weights are computed.
    pub scores: Scores,
    /// The number of columns of the value and of the result.
    pub columns: Dim,
    /// The values that are weighted.
    pub value: Matrix,
    /// The gradient of the result.
    pub gradient: Matrix,
    /// The argument of the three results.
    pub out: u16,
}

dims!(AttentionGrad: scores, columns, value, gradient; out);

impl Scores {
    fn reads(&self, draft: &mut Draft, other_matrices: &[&Matrix]) -> Result<(), Contradiction> {
        let matrices = [&self.query, &self.key]
            .into_iter()
            .chain(other_matrices.iter().copied());
        let matrices = matrices.map(|m| (m.arg, self.dtype));
        let mask = self.mask.as_ref().map(|(m, dtype)| (m.arg, *dtype));
        let random = self.dropout.as_ref().map(|d| (d.key.arg, DType::I64));
        matrices
            .chain(mask)
            .chain(random)
            .try_for_each(|(arg, dtype)| draft.reads(arg, dtype, Reads::Throughout))
    }

    /// Returns its footprints, and that of a matrix with `columns` columns and a row per key.
    fn footprints(&self, value: &Matrix, columns: &Dim) -> Vec<Footprint> {
        let Scores {
            batch,
            length,
            keys,
            width,
            ..
        } = self;
        let mut footprints = vec![
            self.query.footprint(batch, length, width),
            self.key.footprint(batch, keys, width),
            value.footprint(batch, keys, columns),
        ];
        let (mask, dropout) = (self.mask.as_ref(), self.dropout.as_ref());
        footprints.extend(mask.map(|(mask, _)| mask.footprint(batch, length, keys)));
        footprints.extend(dropout.map(|d| d.key.footprint(&[], &Dim::ONE, &Dim::Const(2))));
        footprints
    }
}

impl Described for Attention {
    fn name(&self) -> &str {
        self.program().map_or("attention", |p| &p.name)
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        draft.result(self.out, self.scores.dtype, &self.epilogue)?;
        self.scores.reads(&mut draft, &[&self.value])?;
        draft.finish_reading_back(self.program().map_or(0, |p| p.sites))
    }

    fn results(&self) -> Option<Vec<&Dim>> {
        let Scores { batch, length, .. } = &self.scores;
        Some(batch.iter().chain([length, &self.columns]).collect())
    }

    fn footprints(&self) -> Vec<Footprint> {
        let Scores { batch, length, .. } = &self.scores;
        let mut footprints = self.scores.footprints(&self.value, &self.columns);
        if self.epilogue.is_none() {
            let result = batch.iter().chain([length, &self.columns]);
            footprints.push(Footprint::whole(self.out, result));
        }
        footprints
    }

    fn in_parts(&self) -> bool {
        true
    }

    fn program(&self) -> Option<&TileProgram> {
        self.epilogue.as_ref().map(|e| &e.program)
    }
}

impl AttentionGrad {
    /// Returns the numbers of elements of the three results.
    pub fn lengths(&self) -> [Dim; 3] {
        let Scores {
            batch,
            length,
            keys,
            width,
            ..
        } = &self.scores;
        let batch = numel(batch);
        let elements = |rows: &Dim, columns: &Dim| &(&batch * rows) * columns;
        [
            elements(length, width),
            elements(keys, width),
            elements(keys, &self.columns),
        ]
    }
}

impl Described for AttentionGrad {
    fn name(&self) -> &str {
        "attention_grad"
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        draft.writes(self.out, self.scores.dtype)?;
        self.scores
            .reads(&mut draft, &[&self.value, &self.gradient])?;
        draft.finish(0)
    }

    fn footprints(&self) -> Vec<Footprint> {
        let Scores { batch, length, .. } = &self.scores;
        let mut footprints = self.scores.footprints(&self.value, &self.columns);
        footprints.push(self.gradient.footprint(batch, length, &self.columns));
        let total = self.lengths().iter().fold(Dim::ZERO, |n, d| &n + d);
        footprints.push(Footprint::whole(self.out, [&total]));
        footprints
    }

    fn operations(&self) -> Dim {
        let Scores {
            batch,
            length,
            keys,
            width,
            ..
        } = &self.scores;
        let scores = &(&numel(batch) * length) * keys;
        let terms = &(width * &Dim::Const(6)) + &(&self.columns * &Dim::Const(4));
        &scores * &terms
    }
}
