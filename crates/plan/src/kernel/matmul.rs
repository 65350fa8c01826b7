//! Matrix products.

use super::{match_up, sums};
use crate::contract::{Contract, Contradiction, Described, Draft, contradiction};
use crate::tile::TileProgram;
use crate::{Decision, Epilogue, Matrix, Prologue, Reach};
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};

/// `out[b, i, j] = Σ_k lhs[b, i, k] · rhs[b, k, j]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// Of the operands: f32, f64, i32 or i64, or what is summed in f32 (f16 and bf16) or in i32 (u8, i8 and i16).
    /// The two are one, but bytes with a sign meet bytes without.
    pub dtypes: [DType; 2],
    /// Whether no byte of the left matrix is above 127, so that the sum of two products has 16 bits.
    pub seven_bits: bool,
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
    /// The dtype of its first operand, and of the second but for bytes.
    pub fn dtype(&self) -> DType {
        self.dtypes[0]
    }

    /// The dtype of its sums.
    pub fn sums(&self) -> DType {
        sums(self.dtype())
    }

    /// Whether its operands are f16 or bf16.
    pub fn is_of_halves(&self) -> bool {
        self.dtype().is_half()
    }

    /// Whether its operands have fewer bits than its sums.
    pub fn is_narrow(&self) -> bool {
        self.sums() != self.dtype()
    }
}

impl Described for MatMul {
    fn name(&self) -> &str {
        let made = self.prologues.iter().flatten().map(|p| &p.program);
        (self.program().or(made.into_iter().next())).map_or("matmul", |p| &p.name)
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        if !match_up(self.dtypes) {
            let [a, b] = self.dtypes;
            return Err(contradiction!("{} multiplies {a} and {b}", self.name()));
        }
        draft.result(self.out, self.sums(), &self.epilogue)?;
        let operands = [&self.lhs, &self.rhs].into_iter().zip(self.dtypes);
        for ((x, dtype), prologue) in operands.zip(&self.prologues) {
            draft.operand(x.arg, dtype, prologue)?;
        }
        draft.finish_reading_back(self.program().map_or(0, |p| p.sites))
    }

    fn own_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool {
        let MatMul {
            dtypes: _,
            seven_bits: _,
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
