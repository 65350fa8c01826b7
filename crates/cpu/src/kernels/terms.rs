//! The layout of operands with fewer bits than their accumulators, as micro-kernels read them. Where an instruction
//! multiplies several terms, a word of 32 bits holds several; otherwise each term is widened to the accumulators'
//! dtype.
//!
//! The instruction that multiplies four bytes takes an unsigned A. A signed A has 128 added, which flips a bit, padding
//! included. Accumulators start with the negated contribution of this offset: `Σ (x + 128) · w − 128 · Σ w`.

use super::pack::Packer;
use kiln_base::{DType, Instruction};
use kiln_kernel::affine::ceil;
use kiln_kernel::bugs::bug;
use kiln_kernel::simd::Features;
use kiln_kernel::view::{View, ViewMut};

/// The layout of a product's operands for micro-kernels.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Terms {
    /// The dtypes of the operands in memory.
    pub operands: [DType; 2],
    /// The instruction that multiplies.
    pub instruction: Instruction,
    level: Features,
}

impl Terms {
    /// Makes the layout for operands of these dtypes. With `reduce_range`, the bytes of the first have seven bits.
    /// `grouped` says that several terms may share a word.
    pub(crate) fn new(
        (operands, reduce_range): ([DType; 2], bool),
        level: Features,
        grouped: bool,
    ) -> Terms {
        Terms {
            operands,
            instruction: Instruction::of(operands, reduce_range, level, grouped),
            level,
        }
    }

    /// True if operands have fewer bits than their accumulators.
    pub(crate) fn are_narrow(self) -> bool {
        self.operands[0].size() < 4
    }

    /// True if several terms share a word.
    pub(crate) fn are_grouped(self) -> bool {
        self.count() > 1
    }

    /// Returns the number of terms in a word.
    pub(crate) fn count(self) -> i64 {
        self.instruction.count()
    }

    /// Returns the size of a term in bytes, as it is multiplied.
    pub(crate) fn size(self) -> i64 {
        self.instruction.terms[0].size() as i64
    }

    /// Returns the number of words that hold `terms` terms; the last one may be padded with zeros.
    pub(crate) fn words(self, terms: i64) -> i64 {
        ceil(terms, self.count())
    }

    /// True if an operand's elements are converted before they are multiplied.
    pub(crate) fn converts(self, i: usize) -> bool {
        self.operands[i] != self.instruction.terms[i]
    }

    /// True if 128 is added to A.
    pub(crate) fn is_flipped(self) -> bool {
        (self.operands[0], self.instruction.terms[0]) == (DType::I8, DType::U8)
    }

    /// Adds to the initial values of accumulators the contributions of some rows of words of B, one for each column.
    pub(crate) fn add_to_initial_row(
        self,
        words: View<u8>,
        (rows, columns): (i64, i64),
        mut to: ViewMut<i32>,
    ) {
        let factor = bug("what was added to the left is left in sums", -128, |_| 0);
        let to = to.slice_mut(0, columns);
        for row in 0..rows {
            let words = words
                .slice(4 * row * columns, 4 * columns)
                .as_chunks::<4>()
                .0;
            for (to, word) in to.iter_mut().zip(words) {
                let terms: i32 = word.iter().map(|term| i32::from(*term as i8)).sum();
                *to = to.wrapping_add(factor * terms);
            }
        }
    }

    /// Returns the byte that represents zeros in A.
    pub(crate) fn padding(self) -> u8 {
        if self.is_flipped() { 0x80 } else { 0 }
    }

    /// Returns a readable description of the grouped terms; empty if terms are single elements.
    pub(crate) fn shown(self) -> String {
        match self.count() {
            4 => ", of four bytes each".into(),
            2 => format!(", of pairs of {}", self.instruction.terms[0]),
            _ => String::new(),
        }
    }

    /// Returns the packer of an operand, whose elements in memory have a dtype.
    pub(crate) fn packer(self, i: usize, dtype: DType) -> Packer {
        Packer {
            level: self.level,
            dtypes: [dtype, self.instruction.terms[i]],
            count: self.count(),
        }
    }
}
