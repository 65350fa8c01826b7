//! Instructions by which a CPU's micro-kernels multiply and add: a table, of which the first suitable row is taken.
//!
//! An emitter maps each to its operations on x86 (`jit::contraction`), and a portable loop computes the same. All other
//! properties of an instruction are in its row.

use crate::{DType, Feature, Features};
use std::ops::Deref;

/// A row of the table.
pub struct Row {
    name: Instruction,
    /// True if it is chosen on a machine with these features.
    is_chosen: fn(Features) -> bool,
    /// The dtypes of the terms that it multiplies. As many as fit share a word of 32 bits.
    pub terms: [DType; 2],
    /// The dtype of its accumulators.
    pub sums: DType,
    /// The lowest level at which it is emitted; below, it is a portable loop.
    pub emitted_from: Features,
    /// True if it also takes signed bytes in A, to which 128 is added.
    flips: bool,
    /// True if no byte in A may be above 127.
    pub reduce_range: bool,
    /// True if it leaves a product in a register, which is then added to the accumulator.
    pub has_product: bool,
    /// The registers that it needs besides accumulators, columns, terms and products.
    pub extra_registers: u8,
    /// For an instruction with AMX tiles, the one that multiplies the same words in vectors, if tiles can't read the
    /// rows.
    vectors: Option<Instruction>,
}

const PLAIN: Row = Row {
    name: Instruction::Vfmadd231ps,
    is_chosen: |_| true,
    terms: [DType::F32; 2],
    sums: DType::F32,
    emitted_from: Features::AVX2,
    flips: false,
    reduce_range: false,
    has_product: false,
    extra_registers: 0,
    vectors: None,
};

macro_rules! table {
    ($($name:ident: $left:ident $right:ident $sums:ident $(, $field:ident: $value:expr)*;)*) => {
        /// The name of a row: an instruction, or a short sequence that replaces it.
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // mnemonics say what they are
        pub enum Instruction {
            $($name),*
        }

        static TABLE: &[Row] = &[$(Row {
            name: Instruction::$name,
            terms: [DType::$left, DType::$right],
            sums: DType::$sums,
            $($field: $value,)*
            ..PLAIN
        }),*];
    };
}

use Instruction::*;
table! {
    Tdpfp16ps: F16 F16 F32, is_chosen: has_tiles_of_f16, vectors: Some(Vcvtph2ps);
    Tdpbf16ps: BF16 BF16 F32, is_chosen: has_tiles, vectors: Some(Vdpbf16ps);
    Tdpbusd: U8 I8 I32, is_chosen: has_tiles, flips: true, vectors: Some(Vpdpbusd);
    Vdpbf16ps: BF16 BF16 F32, is_chosen: has_fast_bf16;
    Vpdpbusd: U8 I8 I32, is_chosen: has_vnni, flips: true;
    // Widens the pairs that tiles can't read, and adds their products as f32.
    Vcvtph2ps: F16 F16 F32, is_chosen: |_| false, extra_registers: 2, emitted_from: Features::AVX512;
    Vpmaddubsw: U8 I8 I32, reduce_range: true, has_product: true, extra_registers: 1;
    Vpdpwssd: I16 I16 I32, is_chosen: has_vnni;
    Vpmaddwd: I16 I16 I32, has_product: true;
    Vpmulld: I32 I32 I32, has_product: true;
    Vpmullq: I64 I64 I64, has_product: true, emitted_from: Features::AVX512;
    Vfmadd231ps: F32 F32 F32;
    Vfmadd231pd: F64 F64 F64;
}

fn has_tiles_of_f16(level: Features) -> bool {
    level.has(Feature::AmxFp16)
}

fn has_tiles(level: Features) -> bool {
    level.has(Feature::Amx)
}

/// Processors with FP16 take four times as long for a VDPBF16PS as for an f32 VFMADD, which does half as much (Emerald
/// Rapids).
fn has_fast_bf16(level: Features) -> bool {
    level.has(Feature::Avx512Bf16) && !level.has(Feature::Avx512Fp16)
}

fn has_vnni(level: Features) -> bool {
    match level.has(Feature::Avx512) {
        true => level.has(Feature::Avx512Vnni),
        false => level.has(Feature::AvxVnni),
    }
}

impl Instruction {
    /// Returns the instruction that multiplies operands of these dtypes. With `reduce_range`, no byte of the
    /// first operand is above 127. `grouped` says that several terms may share a word.
    ///
    /// # Panics
    /// If no instruction multiplies these dtypes.
    pub fn of(operands: [DType; 2], reduce_range: bool, level: Features, grouped: bool) -> Self {
        let fits = |row: &&Row| {
            (row.is_chosen)(level)
                && (grouped || row.count() == 1)
                && (reduce_range || !row.reduce_range)
                && row.takes(operands)
        };
        match TABLE.iter().find(fits) {
            Some(row) => row.name,
            None => panic!("no instruction multiplies {operands:?}"),
        }
    }

    /// Returns the instruction that multiplies numbers of the dtype of their accumulators.
    pub fn of_numbers(dtype: DType) -> Instruction {
        Instruction::of([dtype; 2], false, Features::BASELINE, false)
    }

    /// True if its accumulators are AMX tiles.
    pub fn has_tiles(self) -> bool {
        self.vectors.is_some()
    }

    /// Returns the instruction that multiplies the same words in vectors: itself, unless its accumulators are tiles.
    pub fn in_vectors(self) -> Instruction {
        self.vectors.unwrap_or(self)
    }
}

impl Deref for Instruction {
    type Target = Row;

    fn deref(&self) -> &Row {
        &TABLE[*self as usize]
    }
}

impl Row {
    /// Returns the number of terms that share a word, or 1.
    pub fn count(&self) -> i64 {
        4 / self.terms[0].size().min(4) as i64
    }

    /// True if operands of these dtypes are its terms, or are converted to them.
    fn takes(&self, operands: [DType; 2]) -> bool {
        let widens = |from: DType, to: DType| match from {
            DType::F16 | DType::BF16 => to == DType::F32,
            DType::U8 | DType::I8 => matches!(to, DType::I16 | DType::I32),
            DType::I16 => to == DType::I32,
            _ => false,
        };
        let takes = |i: usize| operands[i] == self.terms[i] || widens(operands[i], self.terms[i]);
        (takes(0) || self.flips && operands[0] == DType::I8) && takes(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8};

    #[test]
    fn vectors_multiply_the_words_of_tiles() {
        for instruction in TABLE.iter().map(|row| row.name) {
            let vectors = instruction.in_vectors();
            assert!(!vectors.has_tiles());
            assert_eq!(
                (vectors.terms, vectors.sums),
                (instruction.terms, instruction.sums)
            );
            assert!(instruction.sums.size() >= 4 && instruction.terms[0].size() <= 8);
        }
    }

    #[test]
    fn the_first_row_that_fits_is_taken() {
        let of = |operands, level| Instruction::of(operands, false, level, true);
        assert_eq!(of([BF16; 2], Features::AMX), Tdpbf16ps);
        assert_eq!(of([BF16; 2], Features::AVX512_BF16), Vdpbf16ps);
        assert_eq!(of([BF16; 2], Features::AVX512_FP16), Vfmadd231ps);
        assert_eq!(of([BF16, F32], Features::AMX), Vfmadd231ps);
        assert_eq!(of([F16; 2], Features::AMX), Vfmadd231ps);
        assert_eq!(of([F16; 2], Features::AMX_FP16), Tdpfp16ps);
        assert_eq!(of([F16, F32], Features::AMX_FP16), Vfmadd231ps);
        assert_eq!(of([I8; 2], Features::AMX), Tdpbusd);
        assert_eq!(of([I8; 2], Features::AVX512_VNNI), Vpdpbusd);
        assert_eq!(of([U8, I8], Features::AVX2_VNNI), Vpdpbusd);
        // Its vectors are AVX-512's, which lacks VNNI here.
        let wide = Features::AVX2_VNNI | Features::AVX512;
        assert_eq!(of([U8, I8], wide), Vpmaddwd);
        assert_eq!(of([I8, U8], Features::AMX), Vpdpwssd);
        assert_eq!(of([I16; 2], Features::AVX2), Vpmaddwd);
        for (operands, of_seven_bits) in [([U8, I8], Vpmaddubsw), ([I8, I8], Vpmaddwd)] {
            let of = |grouped| Instruction::of(operands, true, Features::AVX2, grouped);
            assert_eq!((of(true), of(false)), (of_seven_bits, Vpmulld));
        }
        let numbers = [F32, F64, I32, I64].map(Instruction::of_numbers);
        assert_eq!(numbers, [Vfmadd231ps, Vfmadd231pd, Vpmulld, Vpmullq]);
    }
}
