//! Matrix products.

use super::{match_up, sums};
use crate::contract::{Contract, Contradiction, Described, Draft, contradiction};
use crate::dims::dims;
use crate::tile::TileProgram;
use crate::{Decision, Epilogue, Footprint, Matrix, Prologue};
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};

/// `out[b, i, j] = Σ_k lhs[b, i, k] · rhs[b, k, j]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// The dtypes of the operands: f32, f64, i32 or i64, or dtypes that are summed in f32 (f16 and bf16) or in i32 (u8,
    /// i8 and i16). Both are the same, except that signed bytes may meet unsigned ones.
    pub dtypes: [DType; 2],
    /// True if no byte of A is above 127, so that the sum of two products fits 16 bits.
    pub reduce_range: bool,
    /// The batch extents.
    pub batch: Vec<Dim>,
    /// The number of rows of the result.
    pub m: Dim,
    /// The length of the sums.
    pub k: Dim,
    /// The number of columns of the result.
    pub n: Dim,
    /// The operand A.
    pub lhs: Matrix,
    /// The operand B.
    pub rhs: Matrix,
    /// The contiguous result's argument; unused with an epilogue, which writes its own.
    pub out: u16,
    /// The prologues that compute A and B, whose `arg` is then unused; the elements of its rows,
    /// or of its columns, are contiguous.
    pub prologues: [Option<Box<Prologue>>; 2],
    /// The epilogue.
    pub epilogue: Option<Epilogue>,
    /// The algorithm on the CPU.
    pub algorithm: Decision,
}

dims!(MatMul: batch, m, k, n, lhs, rhs, prologues, epilogue, algorithm; dtypes, reduce_range, out);

impl MatMul {
    /// Returns the dtype of its first operand, which is also that of the second except for bytes.
    pub fn dtype(&self) -> DType {
        self.dtypes[0]
    }

    /// Returns the dtype of its sums.
    pub fn sums(&self) -> DType {
        sums(self.dtype())
    }

    /// True if its operands are f16 or bf16.
    pub fn is_half(&self) -> bool {
        self.dtype().is_half()
    }

    /// True if its operands have fewer bits than its sums.
    pub fn is_narrow(&self) -> bool {
        self.sums() != self.dtype()
    }
}

impl Described for MatMul {
    fn name(&self) -> &str {
        let programs = self.prologues.iter().flatten().map(|p| &p.program);
        (self.program().or(programs.into_iter().next())).map_or("matmul", |p| &p.name)
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

    fn results(&self) -> Option<Vec<&Dim>> {
        Some(self.batch.iter().chain([&self.m, &self.n]).collect())
    }

    fn footprints(&self) -> Vec<Footprint> {
        let MatMul { batch, m, k, n, .. } = self;
        let lhs = || self.lhs.footprint(batch, m, k);
        let rhs = || self.rhs.footprint(batch, k, n);
        let [left, right] = self.prologues.each_ref().map(Option::is_none);
        let is_unfused = self.epilogue.is_none();
        let out = || Footprint::whole(self.out, batch.iter().chain([m, n]));
        let unfused = [left.then(lhs), right.then(rhs), is_unfused.then(out)];
        unfused.into_iter().flatten().collect()
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
