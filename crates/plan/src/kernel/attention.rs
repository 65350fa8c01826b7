//! Attention.

use crate::contract::{Contract, Contradiction, Described, Draft, Reads};
use crate::tile::TileProgram;
use crate::{Epilogue, Matrix, Reach};
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

impl Described for Attention {
    fn name(&self) -> &str {
        self.program().map_or("attention", |p| &p.name)
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        draft.result(self.out, self.dtype, &self.epilogue)?;
        let own = [&self.query, &self.key, &self.value].map(|m| (m.arg, self.dtype));
        let mask = self.mask.as_ref().map(|(m, dtype)| (m.arg, *dtype));
        for (arg, dtype) in own.into_iter().chain(mask) {
            draft.reads(arg, dtype, Reads::Throughout)?;
        }
        draft.finish_reading_back(self.program().map_or(0, |p| p.sites))
    }

    fn own_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool {
        let Attention {
            dtype: _,
            scale: _,
            causal: _,
            batch,
            length,
            keys,
            width,
            columns,
            query,
            key,
            value,
            mask,
            out: _,
            epilogue: _,
        } = self;
        let mask = mask.as_ref().map(|(m, _)| m);
        let one = [length, keys, width, columns];
        batch.iter().chain(one).all(&mut *holds)
            && [query, key, value]
                .into_iter()
                .chain(mask)
                .all(|m| m.all_dims(holds))
    }

    fn results(&self) -> Option<Vec<&Dim>> {
        Some(
            self.batch
                .iter()
                .chain([&self.length, &self.columns])
                .collect(),
        )
    }

    fn reaches(&self) -> Vec<Reach> {
        let Attention {
            batch,
            length,
            keys,
            width,
            columns,
            ..
        } = self;
        let mut reaches = vec![
            self.query.reach(batch, length, width),
            self.key.reach(batch, keys, width),
            self.value.reach(batch, keys, columns),
        ];
        let mask = self.mask.as_ref();
        reaches.extend(mask.map(|(mask, _)| mask.reach(batch, length, keys)));
        if self.epilogue.is_none() {
            let result = batch.iter().chain([length, columns]);
            reaches.push(Reach::whole(self.out, result));
        }
        reaches
    }

    fn in_parts(&self) -> bool {
        true
    }

    fn program(&self) -> Option<&TileProgram> {
        self.epilogue.as_ref().map(|e| &e.program)
    }
}
