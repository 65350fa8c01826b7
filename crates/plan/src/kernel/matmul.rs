//! Matrix products.

use super::{is_half, sums};
use crate::contract::{Contract, Contradiction, Described, Draft};
use crate::tile::TileProgram;
use crate::{Decision, Epilogue, Matrix, Prologue, Reach};
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};

/// `out[b, i, j] = Σ_k lhs[b, i, k] · rhs[b, k, j]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// Of the operands: f32, f64, or f16 or bf16, whose sums are f32.
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
    pub algorithm: Decision,
}

impl MatMul {
    /// The dtype of its sums.
    pub fn sums(&self) -> DType {
        sums(self.dtype)
    }

    /// Whether its operands are f16 or bf16.
    pub fn is_of_halves(&self) -> bool {
        is_half(self.dtype)
    }
}

impl Described for MatMul {
    fn name(&self) -> &str {
        let made = self.prologues.iter().flatten().map(|p| &p.program);
        (self.program().or(made.into_iter().next())).map_or("matmul", |p| &p.name)
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        draft.result(self.out, self.sums(), &self.epilogue)?;
        for (x, prologue) in [&self.lhs, &self.rhs].into_iter().zip(&self.prologues) {
            draft.operand(x.arg, self.dtype, prologue)?;
        }
        draft.finish_reading_back(self.program().map_or(0, |p| p.sites))
    }

    fn own_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool {
        let MatMul {
            dtype: _,
            batch,
            m,
            k,
            n,
            lhs,
            rhs,
            out: _,
            prologues: _,
            epilogue: _,
            algorithm,
        } = self;
        batch.iter().chain([m, k, n]).all(&mut *holds)
            && [lhs, rhs].iter().all(|x| x.all_dims(holds))
            && algorithm.all_dims(holds)
    }

    fn results(&self) -> Option<Vec<&Dim>> {
        Some(self.batch.iter().chain([&self.m, &self.n]).collect())
    }

    fn reaches(&self) -> Vec<Reach> {
        let MatMul { batch, m, k, n, .. } = self;
        let lhs = || self.lhs.reach(batch, m, k);
        let rhs = || self.rhs.reach(batch, k, n);
        let [left, right] = self.prologues.each_ref().map(Option::is_none);
        let own = self.epilogue.is_none();
        let out = || Reach::whole(self.out, batch.iter().chain([m, n]));
        let all = [left.then(lhs), right.then(rhs), own.then(out)];
        all.into_iter().flatten().collect()
    }

    fn in_parts(&self) -> bool {
        true
    }

    fn prologues(&self) -> &[Option<Box<Prologue>>] {
        &self.prologues
    }

    fn program(&self) -> Option<&TileProgram> {
        self.epilogue.as_ref().map(|e| &e.program)
    }
}
