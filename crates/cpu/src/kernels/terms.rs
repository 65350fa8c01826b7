//! The layout of operands with fewer bits than their accumulators, as micro-kernels read them. Where an instruction
//! multiplies several terms, a word of 32 bits holds several; otherwise each term is widened to the accumulators'
//! dtype.
//!
//! The instruction that multiplies four bytes takes an unsigned A. A signed A has 128 added, which flips a bit, padding
//! included. Accumulators start with the negated contribution of this offset: `Σ (x + 128) · w − 128 · Σ w`.

use kiln_base::{DType, Instruction};
use kiln_kernel::affine::ceil;
use kiln_kernel::bugs::bug;
use kiln_kernel::simd::Features;
use kiln_kernel::simd::convert::widen;
use kiln_kernel::view::{Plain, View, ViewMut};

/// The number of f16 or bf16 that are widened at a time.
const SOME: usize = 64;

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

    /// Returns the contribution of a term of B to the initial value of an accumulator.
    pub(crate) fn start(self, term: i32) -> i32 {
        bug("what was added to the left is left in sums", -128, |_| 0) * term
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

    /// Converts elements of an operand, with this stride, into contiguous terms.
    pub(crate) fn make(self, i: usize, from: (View<u8>, i64), count: i64, to: ViewMut<u8>) {
        let dtypes = [self.operands[i], self.instruction.terms[i]];
        convert(self.level, dtypes, from, count, to);
    }

    /// Converts the terms of a row of the first operand, with this stride. Zeros fill the last word.
    pub(crate) fn make_row(self, from: (View<u8>, i64), count: i64, to: ViewMut<u8>) {
        self.make(0, from, count, to);
        let bytes = count * self.size();
        to.fill(bytes, 4 * self.words(count) - bytes, 0);
    }
}

/// Converts elements of a dtype, with this stride, into contiguous elements of another dtype with as many bits or
/// more. Bytes that lose their sign have 128 added.
pub(crate) fn convert(
    level: Features,
    [from_dtype, to_dtype]: [DType; 2],
    (from, stride): (View<u8>, i64),
    count: i64,
    to: ViewMut<u8>,
) {
    use DType::{F32, I8, I16, I32, U8};
    match (from_dtype, to_dtype) {
        (same, to_dtype) if same == to_dtype && stride == 1 => {
            to.copy(0, from.slice(0, count * same.size() as i64));
        }
        (half, F32) if half.size() == 2 => {
            let (from, mut to) = (from.cast::<u16>(), to.cast::<f32>());
            if stride == 1 {
                return widen(level, half, from.slice(0, count), to.slice_mut(0, count));
            }
            let mut halves = [0; SOME];
            for first in (0..count).step_by(SOME) {
                let n = (count - first).min(SOME as i64);
                let some = ViewMut::of(&mut halves).bytes();
                convert_each(
                    from.shift(first * stride).bytes(),
                    stride,
                    n,
                    some,
                    |x: u16| x,
                );
                widen(level, half, &halves[..n as usize], to.slice_mut(first, n));
            }
        }
        (U8, I16) => convert_each(from, stride, count, to, |x: u8| i16::from(x)),
        (I8, I16) => convert_each(from, stride, count, to, |x: i8| i16::from(x)),
        (U8, I32) => convert_each(from, stride, count, to, |x: u8| i32::from(x)),
        (I8, I32) => convert_each(from, stride, count, to, |x: i8| i32::from(x)),
        (I16, I32) => convert_each(from, stride, count, to, |x: i16| i32::from(x)),
        (I8, U8) => convert_each(from, stride, count, to, |x: u8| x ^ 0x80),
        _ if to_dtype.size() == 1 => convert_each(from, stride, count, to, |x: u8| x),
        _ if to_dtype.size() == 2 => convert_each(from, stride, count, to, |x: u16| x),
        _ => convert_each(from, stride, count, to, |x: u32| x),
    }
}

/// Implements [`convert`] for elements and results of these types.
#[inline(always)]
fn convert_each<A: Plain, B: Plain>(
    from: View<u8>,
    stride: i64,
    count: i64,
    to: ViewMut<u8>,
    f: impl Fn(A) -> B,
) {
    let (from, mut to) = (from.cast::<A>(), to.cast::<B>());
    let to = to.slice_mut(0, count).iter_mut();
    match stride {
        1 => (from.slice(0, count).iter().zip(to)).for_each(|(x, to)| *to = f(*x)),
        2.. => {
            let all = from.slice(0, (count - 1).max(0) * stride + i64::from(count > 0));
            let all = all.iter().step_by(stride as usize);
            all.zip(to).for_each(|(x, to)| *to = f(*x));
        }
        _ => (0..)
            .zip(to)
            .for_each(|(i, to)| *to = f(from.get(i * stride))),
    }
}

/// Puts one more term into each of some words, `bits` bits from their end, where there are zeros; the first term sets a
/// word.
pub(crate) fn put<E: Copy>(from: &[E], bits: i64, to: &mut [u32], term: impl Fn(E) -> u32) {
    let words = to.iter_mut().zip(from);
    match bits {
        0 => words.for_each(|(to, x)| *to = term(*x)),
        _ => words.for_each(|(to, x)| *to |= term(*x) << bits),
    }
}
