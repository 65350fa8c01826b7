//! The packer of operands: elements of a matrix become the words that micro-kernels read.
//!
//! A is read by rows, each of contiguous words along K. B is read in panels: rows of words, one for each column. So
//! either is a matrix of *lines*, rows of A or columns of B, whose words are side by side, or lie below each other with
//! those of the other lines next to them. Terms of a line that are contiguous in memory are converted together, otherwise
//! those of neighbouring lines. Where that gives the other order, words are transposed, a few at a time.

use kiln_base::DType;
use kiln_jit::contraction::{Matrix, pack};
use kiln_kernel::affine::ceil;
use kiln_kernel::simd::convert::widen;
use kiln_kernel::simd::transpose::transpose;
use kiln_kernel::simd::{Features, Isa, Vectorized, vectorized};
use kiln_kernel::view::{Plain, View, ViewMut};

/// The lines whose words are joined, or transposed, at a time.
const LINES: usize = 64;
/// The words of each line that are transposed at a time: where terms of lines are converted together, and where not.
const WORDS: [i64; 2] = [32, 8];
/// The number of f16 or bf16 that are widened at a time.
const SOME: usize = 64;

/// The packer of an operand.
#[derive(Copy, Clone)]
pub(crate) struct Packer {
    pub level: Features,
    /// The dtypes of elements in memory, and of terms.
    pub dtypes: [DType; 2],
    /// The number of terms of a word.
    pub count: i64,
}

/// The elements of lines in memory, and the strides of words, of the terms of a word and of lines, in elements.
type LineElements<'a> = (View<'a, u8>, [i64; 3]);

impl Packer {
    /// Packs `k` terms of some lines. Terms and lines have these strides in memory, in elements; words and lines have
    /// these strides in the result, in words, one of which is 1. Zeros fill the last word of a line.
    pub(crate) fn pack(
        self,
        (from, [term, line]): (View<u8>, [i64; 2]),
        sizes: (i64, i64),
        to: (ViewMut<u8>, [i64; 2]),
    ) {
        self.pack_words((from, [self.count * term, term, line]), sizes, to);
    }

    /// Packs as [`Packer::pack`], with a stride of words in memory of its own: words may share elements.
    pub(crate) fn pack_words(
        self,
        (from, [word, term, line]): LineElements,
        (k, lines): (i64, i64),
        (to, [to_word, to_line]): (ViewMut<u8>, [i64; 2]),
    ) {
        let (by_lines, is_copied) = (to_word == 1, self.dtypes[0] == self.dtypes[1]);
        let pitch = if by_lines { to_line } else { to_word };
        let is_even = word == self.count * term;
        if is_copied && is_even && (self.count == 1 || by_lines && self.dtypes[0].size() == 2) {
            return match by_lines {
                true => self.copy_lines((from, [line, term]), (k, lines), (to, pitch)),
                false => self.copy((from, term, line), (k, lines), (to, pitch)),
            };
        }
        let converts_lines = match (term, line) {
            _ if !is_even => false,
            (1, _) => true,
            (_, 1) => false,
            _ => by_lines,
        };
        let (from, sizes, to) = ((from, [word, term, line]), (k, lines), (to, pitch));
        match (converts_lines, by_lines) {
            (true, true) => self.convert_lines(from, sizes, to),
            (false, false) => self.join_lines(from, sizes, to),
            _ => self.transpose_words(converts_lines, from, sizes, to),
        }
    }

    /// Copies elements to rows.
    fn copy(
        self,
        (from, row, column): Matrix<u8>,
        sizes: (i64, i64),
        (to, pitch): (ViewMut<u8>, i64),
    ) {
        let level = self.level;
        match self.dtypes[0].size() {
            1 => pack::<u8>(level, (from, row, column), sizes, (to, pitch)),
            2 => pack::<u16>(level, (from.cast(), row, column), sizes, (to.cast(), pitch)),
            4 => pack::<u32>(level, (from.cast(), row, column), sizes, (to.cast(), pitch)),
            _ => pack::<u64>(level, (from.cast(), row, column), sizes, (to.cast(), pitch)),
        }
    }

    /// Copies the terms of each line to contiguous words.
    fn copy_lines(
        self,
        (from, [line, term]): (View<u8>, [i64; 2]),
        (k, lines): (i64, i64),
        (to, pitch): (ViewMut<u8>, i64),
    ) {
        let (size, pitch) = (self.dtypes[0].size() as i64, self.count * pitch);
        for i in (0..lines).filter(|_| k % self.count != 0) {
            to.fill((i * pitch + k) * size, size, 0);
        }
        self.copy((from, line, term), (lines, k), (to, pitch));
    }

    /// Packs words in the order that conversions do not give, of some lines at a time.
    fn transpose_words(
        self,
        converts_lines: bool,
        (from, [word, term, line]): LineElements,
        (k, lines): (i64, i64),
        (to, pitch): (ViewMut<u8>, i64),
    ) {
        let (to, size) = (to.cast::<u32>(), self.dtypes[0].size() as i64);
        let high = WORDS[usize::from(!converts_lines)];
        let mut some = [0u32; LINES * WORDS[0] as usize];
        let some = ViewMut::of(&mut some);
        for first in (0..lines).step_by(LINES) {
            let count = (lines - first).min(LINES as i64);
            for top in (0..ceil(k, self.count)).step_by(high as usize) {
                let terms = (k - top * self.count).min(high * self.count);
                let from = from.shift((first * line + top * word) * size);
                let (from, sizes) = ((from, [word, term, line]), (terms, count));
                let words = ceil(terms, self.count);
                if converts_lines {
                    self.convert_lines(from, sizes, (some.bytes(), high));
                    let to = to.shift(first + top * pitch);
                    transpose(self.level, (*some, high), (count, words), (to, pitch));
                } else {
                    self.join_lines(from, sizes, (some.bytes(), LINES as i64));
                    let to = to.shift(first * pitch + top);
                    transpose(
                        self.level,
                        (*some, LINES as i64),
                        (words, count),
                        (to, pitch),
                    );
                }
            }
        }
    }

    /// Converts the terms of each line to contiguous words.
    fn convert_lines(
        self,
        (from, [_, term, line]): LineElements,
        (k, lines): (i64, i64),
        (to, pitch): (ViewMut<u8>, i64),
    ) {
        // Lines that follow each other are one.
        let (k, lines) = match (term, line, pitch * self.count) == (1, k, k) {
            true => (k * lines, 1),
            false => (k, lines),
        };
        let [size, term_size] = self.dtypes.map(|dtype| dtype.size() as i64);
        let bytes = 4 * ceil(k, self.count);
        for i in 0..lines {
            let (from, to) = (from.shift(i * line * size), to.shift(4 * i * pitch));
            self.convert((from, term), k, to);
            to.fill(k * term_size, bytes - k * term_size, 0);
        }
    }

    /// Joins the terms of each word of all lines to words side by side.
    fn join_lines(
        self,
        (from, [word, term, line]): LineElements,
        (k, lines): (i64, i64),
        (to, pitch): (ViewMut<u8>, i64),
    ) {
        let (size, count) = (self.dtypes[0].size() as i64, self.count);
        let to = to.cast::<u32>();
        let row = |i: i64, j: i64| from.shift((i * word + j * term) * size);
        // Contiguous terms of neighbouring lines are joined as they are.
        let whole = match self.dtypes[0] == self.dtypes[1] && line == 1 {
            true => k / count,
            false => 0,
        };
        let joined = Joined {
            rows: [0, 1, 2, 3].map(|j: i64| row(0, j.min(count - 1))),
            terms: count,
            word: word * size,
            sizes: [whole, lines],
            to: (to, pitch),
        };
        vectorized(self.level, joined);
        let mut rows = [[0; LINES]; 4];
        for i in whole..ceil(k, count) {
            for first in (0..lines).step_by(LINES) {
                let some = (lines - first).min(LINES as i64);
                let (terms, to) = (count.min(k - i * count), to.shift(i * pitch + first));
                let from = |j: i64| (row(i, j).shift(first * line * size), line);
                if count == 1 {
                    self.convert(from(0), some, to.bytes());
                    continue;
                }
                rows[terms as usize..].fill([0; LINES]);
                for (j, to) in (0..terms).zip(&mut rows) {
                    self.convert(from(j), some, ViewMut::of(to).bytes());
                }
                let joined = Joined {
                    rows: rows.each_ref().map(|row| View::of(row).bytes()),
                    terms: count,
                    word: 0,
                    sizes: [1, some],
                    to: (to, pitch),
                };
                vectorized(self.level, joined);
            }
        }
    }

    /// Converts elements with this stride to contiguous terms.
    fn convert(self, from: (View<u8>, i64), count: i64, to: ViewMut<u8>) {
        convert(self.level, self.dtypes, from, count, to);
    }
}

/// Rows of terms that share words, the first in their lowest bits.
struct Joined<'a> {
    /// The rows of the first words, and the distance to those of the next ones in bytes.
    rows: [View<'a, u8>; 4],
    word: i64,
    /// The number of terms of a word.
    terms: i64,
    /// The words of a line, and the lines.
    sizes: [i64; 2],
    to: (ViewMut<'a, u32>, i64),
}

impl Vectorized for Joined<'_> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let ([words, lines], (mut to, pitch)) = (self.sizes, self.to);
        for i in 0..words {
            let to = to.slice_mut(i * pitch, lines).iter_mut();
            let [a, b, c, d] = self.rows.map(|row| row.shift(i * self.word));
            if self.terms == 2 {
                let [a, b] = [a, b].map(|row| row.cast::<u16>().slice(0, lines));
                for (word, (a, b)) in to.zip(a.iter().zip(b)) {
                    *word = u32::from(*a) | u32::from(*b) << 16;
                }
                continue;
            }
            let [a, b, c, d] = [a, b, c, d].map(|row| row.slice(0, lines));
            for ((((word, a), b), c), d) in to.zip(a).zip(b).zip(c).zip(d) {
                *word = u32::from_le_bytes([*a, *b, *c, *d]);
            }
        }
    }
}

/// True if contiguous floats of a dtype are finite.
pub(crate) fn are_finite(dtype: DType, from: View<u8>, count: i64) -> bool {
    let halves = |exponent: u16| {
        let mut bits = from.cast::<u16>().slice(0, count).iter();
        bits.all(|x| x & exponent != exponent)
    };
    match dtype {
        DType::F16 => halves(0x7c00),
        DType::BF16 => halves(0x7f80),
        DType::F64 => (from.cast::<f64>().slice(0, count).iter()).all(|x| x.is_finite()),
        _ => (from.cast::<f32>().slice(0, count).iter()).all(|x| x.is_finite()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// Returns a term made of an element's bits, as bits.
    fn term(dtypes: [DType; 2], bits: u64) -> u64 {
        use DType::{BF16, F16, F32, I8, I16, I32, U8};
        match dtypes {
            [I8, U8] => bits ^ 0x80,
            [I8, I16] => u64::from(bits as i8 as u16),
            [I8, I32] => u64::from(bits as i8 as u32),
            [I16, I32] => u64::from(bits as i16 as u32),
            [F16, F32] => f16::from_bits(bits as u16).to_f32().to_bits().into(),
            [BF16, F32] => bf16::from_bits(bits as u16).to_f32().to_bits().into(),
            _ => bits,
        }
    }

    #[test]
    fn words_hold_the_terms_of_lines_in_order() {
        use DType::{BF16, F16, F32, F64, I8, I16, I32, U8};
        let kinds = [
            ([U8, U8], 4),
            ([I8, U8], 4),
            ([I8, I8], 4),
            ([BF16, BF16], 2),
            ([F16, F16], 2),
            ([I16, I16], 2),
            ([U8, I16], 2),
            ([I8, I16], 2),
            ([I8, I32], 1),
            ([I16, I32], 1),
            ([F16, F32], 1),
            ([BF16, F32], 1),
            ([F16, F16], 1),
            ([F32, F32], 1),
            ([F64, F64], 1),
        ];
        let mut seed = 7u64;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        let levels: Vec<Features> = (Features::WIDTHS.into_iter())
            .filter(|level| level.is_supported())
            .collect();
        for round in 0..3000 {
            let (dtypes, count) = kinds[round % kinds.len()];
            let packer = Packer {
                level: levels[random(levels.len())],
                dtypes,
                count,
            };
            let [size, to_size] = dtypes.map(|dtype| dtype.size());
            let (k, lines) = (random(75), random(90));
            let strides = match random(4) {
                0 => [1, k + random(3)],
                1 => [lines + random(3), 1],
                2 => [2, 2 * k + 1],
                _ => [0, 1],
            };
            let word = match random(3) {
                0 if count > 1 => random(4),
                _ => count as usize * strides[0],
            };
            let offset = |t: usize| t / count as usize * word + t % count as usize * strides[0];
            let last = offset(k / count as usize * count as usize) + count as usize * strides[0];
            let len = (last + lines * strides[1] + 1) * size;
            // Floats are finite, since NaNs of other bits are the same.
            let memory: Vec<u64> = (0..len.div_ceil(8))
                .map(|_| (random(1 << 31) as u64) << 33 & 0x3f3f_3f3f_0000_0000 | random(64) as u64)
                .collect();
            let words = k.div_ceil(count as usize);
            let word_size = to_size * count as usize;
            let to_strides = match random(2) {
                0 => [1, words + random(3)],
                _ => [lines + random(3), 1],
            };
            let all = words * to_strides[0] + lines * to_strides[1] + 1;
            let mut packed = vec![u64::MAX; (all * word_size).div_ceil(8)];
            let to = ViewMut::of(&mut packed).bytes();
            let [term_stride, line_stride] = strides.map(|n| n as i64);
            packer.pack_words(
                (
                    View::of(&memory).bytes(),
                    [word as i64, term_stride, line_stride],
                ),
                (k as i64, lines as i64),
                (to, to_strides.map(|n| n as i64)),
            );
            let read = |bytes: View<u8>, at: usize, size: usize| {
                let bytes = bytes.slice((at * size) as i64, size as i64);
                (bytes.iter().rev()).fold(0, |bits, byte| bits << 8 | u64::from(*byte))
            };
            for (line, t) in
                (0..lines).flat_map(|l| (0..words * count as usize).map(move |t| (l, t)))
            {
                let expected = match t < k {
                    true => {
                        let at = offset(t) + line * strides[1];
                        term(dtypes, read(View::of(&memory).bytes(), at, size))
                    }
                    false => 0,
                };
                let to_word = t / count as usize * to_strides[0] + line * to_strides[1];
                let found = read(*to, to_word * count as usize + t % count as usize, to_size);
                assert_eq!(
                    found, expected,
                    "{dtypes:?} {k} x {lines}, {word} {strides:?} to {to_strides:?}"
                );
            }
        }
    }
}
