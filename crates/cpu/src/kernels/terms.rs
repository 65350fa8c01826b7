//! Operands that have fewer bits than their sums, as register tiles read them: several terms in a word of 32 bits where
//! an instruction multiplies these, else each as what is summed.
//!
//! The instruction that multiplies four bytes takes a left operand without a sign. One with a sign has 128 added, which
//! flips a bit, padding included; sums begin with what that adds to them, taken away: `Σ (x + 128) · w − 128 · Σ w`.

use kiln_base::{DType, Instruction};
use kiln_kernel::affine::ceil;
use kiln_kernel::bugs::bug;
use kiln_kernel::simd::Features;
use kiln_kernel::simd::convert::widen;

/// Halves that are widened at a time.
const SOME: usize = 64;

/// What the operands of a product are to register tiles.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Terms {
    operands: [DType; 2],
    by: Instruction,
    level: Features,
}

impl Terms {
    /// Of operands of these dtypes, of which the first may have bytes of `seven_bits` alone; `grouped` says whether
    /// several terms may share a word.
    pub(crate) fn new(
        (operands, seven_bits): ([DType; 2], bool),
        level: Features,
        grouped: bool,
    ) -> Terms {
        Terms {
            operands,
            by: Instruction::of(operands, seven_bits, level, grouped),
            level,
        }
    }

    /// What multiplies.
    pub(crate) fn instruction(self) -> Instruction {
        self.by
    }

    /// The dtype of an operand.
    pub(crate) fn operand(self, i: usize) -> DType {
        self.operands[i]
    }

    /// Whether operands have fewer bits than their sums.
    pub(crate) fn are_narrow(self) -> bool {
        self.operands[0].size() < 4
    }

    /// Whether several of them share a word.
    pub(crate) fn are_grouped(self) -> bool {
        self.count() > 1
    }

    /// How many share a word.
    pub(crate) fn count(self) -> i64 {
        self.by.count()
    }

    /// Bytes of a term as it is multiplied.
    pub(crate) fn size(self) -> i64 {
        self.by.terms[0].size() as i64
    }

    /// Words of so many terms, in the last of which zeros may be behind these.
    pub(crate) fn words(self, terms: i64) -> i64 {
        ceil(terms, self.count())
    }

    /// Whether an operand's elements are not what is multiplied, but made into that.
    pub(crate) fn converts(self, i: usize) -> bool {
        self.operands[i] != self.by.terms[i]
    }

    /// Whether 128 is added to the left operand.
    pub(crate) fn is_flipped(self) -> bool {
        (self.operands[0], self.by.terms[0]) == (DType::I8, DType::U8)
    }

    /// What a term of the right operand adds to the number that a sum begins with.
    pub(crate) fn start(self, term: i32) -> i32 {
        bug("what was added to the left is left in sums", -128, |_| 0) * term
    }

    /// A byte of what is 0 on the left.
    pub(crate) fn padding(self) -> u8 {
        if self.is_flipped() { 0x80 } else { 0 }
    }

    /// What register tiles multiply, for people, unless that are numbers.
    pub(crate) fn shown(self) -> String {
        match self.count() {
            4 => ", of four bytes each".into(),
            2 => format!(", of pairs of {}", self.by.terms[0]),
            _ => String::new(),
        }
    }

    /// Makes elements of an operand, so many elements apart, into terms that lie side by side.
    ///
    /// # Safety
    /// The elements exist, and there is room.
    pub(crate) unsafe fn make(
        self,
        i: usize,
        (from, apart): (*const u8, i64),
        count: i64,
        to: *mut u8,
    ) {
        // SAFETY: the caller's.
        unsafe {
            let dtypes = [self.operands[i], self.by.terms[i]];
            convert(self.level, dtypes, (from, apart), count, to)
        }
    }
}

/// Makes elements of a dtype, so many elements apart, into those of another that has as many bits or more, which come
/// to lie side by side. Bytes that lose their sign have 128 added.
///
/// # Safety
/// The elements exist, and there is room.
pub(crate) unsafe fn convert(
    level: Features,
    [from_dtype, to_dtype]: [DType; 2],
    (from, apart): (*const u8, i64),
    count: i64,
    to: *mut u8,
) {
    use DType::{F32, I8, I16, I32, U8};
    // SAFETY: the caller's; the dtypes say what elements are.
    unsafe {
        match (from_dtype, to_dtype) {
            (same, to_dtype) if same == to_dtype && apart == 1 => {
                std::ptr::copy_nonoverlapping(from, to, count as usize * same.size());
            }
            (half, F32) if half.size() == 2 => {
                let (from, to) = (from.cast::<u16>(), to.cast::<f32>());
                if apart == 1 {
                    let from = std::slice::from_raw_parts(from, count as usize);
                    return widen(
                        level,
                        half,
                        from,
                        std::slice::from_raw_parts_mut(to, count as usize),
                    );
                }
                let mut halves = [0; SOME];
                for first in (0..count).step_by(SOME) {
                    let n = (count - first).min(SOME as i64);
                    let (from, to) = (
                        from.offset((first * apart) as isize),
                        to.offset(first as isize),
                    );
                    each(
                        from.cast(),
                        apart,
                        n,
                        halves.as_mut_ptr().cast(),
                        |x: u16| x,
                    );
                    let to = std::slice::from_raw_parts_mut(to, n as usize);
                    widen(level, half, &halves[..n as usize], to);
                }
            }
            (U8, I16) => each(from, apart, count, to, |x: u8| i16::from(x)),
            (I8, I16) => each(from, apart, count, to, |x: i8| i16::from(x)),
            (U8, I32) => each(from, apart, count, to, |x: u8| i32::from(x)),
            (I8, I32) => each(from, apart, count, to, |x: i8| i32::from(x)),
            (I16, I32) => each(from, apart, count, to, |x: i16| i32::from(x)),
            (I8, U8) => each(from, apart, count, to, |x: u8| x ^ 0x80),
            _ if to_dtype.size() == 1 => each(from, apart, count, to, |x: u8| x),
            _ if to_dtype.size() == 2 => each(from, apart, count, to, |x: u16| x),
            _ => each(from, apart, count, to, |x: u32| x),
        }
    }
}

/// # Safety
/// As [`convert`]; elements and results are of these types.
#[inline(always)]
unsafe fn each<A: Copy, B>(
    from: *const u8,
    apart: i64,
    count: i64,
    to: *mut u8,
    f: impl Fn(A) -> B,
) {
    let (from, to) = (from.cast::<A>(), to.cast::<B>());
    // SAFETY: the caller's.
    unsafe {
        match apart {
            1 => {
                let from = std::slice::from_raw_parts(from, count as usize);
                let to = std::slice::from_raw_parts_mut(to, count as usize);
                from.iter().zip(to).for_each(|(x, to)| *to = f(*x));
            }
            _ => (0..count as isize)
                .for_each(|i| *to.offset(i) = f(*from.offset(i * apart as isize))),
        }
    }
}

/// Puts one more term into each of some words, so many bits from their end, where there are zeros; the first term sets
/// a word.
///
/// # Safety
/// There are so many terms, and words.
pub(crate) unsafe fn put<E: Copy>(
    from: *const E,
    bits: i64,
    (to, count): (*mut u32, i64),
    term: impl Fn(E) -> u32,
) {
    // SAFETY: the caller's.
    let (from, to) = unsafe {
        let from = std::slice::from_raw_parts(from, count as usize);
        (from, std::slice::from_raw_parts_mut(to, count as usize))
    };
    let words = to.iter_mut().zip(from);
    match bits {
        0 => words.for_each(|(to, x)| *to = term(*x)),
        _ => words.for_each(|(to, x)| *to |= term(*x) << bits),
    }
}
