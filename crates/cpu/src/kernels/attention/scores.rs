//! The weights of some rows of queries for some keys: scores, a mask, and the softmax.

use super::dropout::Dropout;
use super::softmax::{ScoreRow, Sums, factor, narrow, pack_pairs};
use crate::kernels::matmul::{MAX_K, Operand};
use crate::kernels::pack::are_finite;
use crate::kernels::terms::Terms;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kiln_base::{DType, Dim};
use kiln_jit::contraction::{Matrix, Right, multiply};
use kiln_kernel::affine::{ceil, extent, product};
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::Features;
use kiln_kernel::simd::convert;
use kiln_kernel::simd::convert::Mem;
use kiln_kernel::view::{Arguments, Plain, View, ViewMut};
use kiln_plan as plan;

/// Returns the pitch of rows of `numbers` numbers: an odd number of cache lines, so that rows do not collide in one
/// cache set.
pub(super) fn padded_pitch(numbers: i64) -> i64 {
    const LINE: i64 = 16;
    (ceil(numbers, LINE) | 1) * LINE
}

/// The maximum numbers of rows and keys of a block, whose scores are computed at once.
pub(super) const BLOCK_ROWS: i64 = 256;
const BLOCK_KEYS: i64 = 512;
/// The minimum number of blocks: where there are fewer, they have `SHORT_BLOCK_ROWS` rows.
const MIN_BLOCKS: i64 = 16;
const SHORT_BLOCK_ROWS: i64 = 128;

/// The softmax state of each row of a block.
pub(super) type AllSums = [Sums; BLOCK_ROWS as usize];

/// Linked scores of f32, or of f16 or bf16 that are computed in it.
pub(crate) struct Scores {
    pub dtype: DType,
    /// The layout of operands as they are multiplied.
    pub terms: Terms,
    pub scale: f32,
    /// The factors of scores, without a mask and with one.
    factors: [f32; 2],
    pub causal: bool,
    pub batch: Vec<i64>,
    pub length: i64,
    pub keys: i64,
    pub width: i64,
    query: Operand,
    pub key: Operand,
    mask: Option<(Operand, DType)>,
    dropout: Option<Dropout>,
    /// Rows of a block.
    pub rows: i64,
    /// The maximum number of keys of a block.
    pub part: i64,
    /// The pitch of rows of weights, in numbers.
    pub pitch: i64,
    pub level: Features,
}

/// A matrix of f32, and the strides of its rows and columns.
pub(super) type Side<'a> = Matrix<'a, f32>;

/// Memory for a copy of an operand, and true if it holds the copy already.
pub(super) type Copy<'a> = (&'a mut Option<Storage>, bool);

impl Scores {
    /// True if there is code for it.
    pub(crate) fn computes(p: &plan::Scores) -> bool {
        let mask = p.mask.as_ref().map(|m| m.1);
        let mask = mask.is_none_or(|m| m == p.dtype || m == DType::Bool);
        matches!(p.dtype, DType::F32 | DType::F16 | DType::BF16) && mask
    }

    /// Checks and links scores whose arguments have these lengths.
    pub(super) fn new(
        p: &plan::Scores,
        values: &[i64],
        lens: &[i64],
        level: Features,
    ) -> Result<Scores> {
        let get = |d: &Dim| extent(d, values);
        let batch = p.batch.iter().map(get).collect::<Result<Vec<_>>>()?;
        let (length, keys, width) = (get(&p.length)?, get(&p.keys)?, get(&p.width)?);
        if width.max(keys).max(length) > MAX_K {
            return Err(damaged!("attention over {keys} keys of {width} columns"));
        }
        product(&[BLOCK_ROWS, keys.max(1), width.max(1)])?;
        let operand = |x: &plan::Matrix, rows: i64, columns: i64| {
            Operand::new(x, (&batch, rows, columns), values, lens[x.arg as usize])
        };
        let mask = match &p.mask {
            Some((x, dtype)) => Some((operand(x, length, keys)?, *dtype)),
            None => None,
        };
        let part = keys.clamp(1, BLOCK_KEYS);
        let blocks = batch
            .iter()
            .fold(ceil(length, BLOCK_ROWS), |n, d| n.saturating_mul(*d));
        let rows = if blocks < MIN_BLOCKS {
            SHORT_BLOCK_ROWS
        } else {
            BLOCK_ROWS
        };
        let dropout = p.dropout.as_ref();
        let dropout = dropout.map(|p| Dropout::new(p, values, lens, level));
        // Only bf16 has a narrowing of weights.
        let grouped = p.dtype == DType::BF16;
        let terms = Terms::new(([p.dtype; 2], false), level, grouped);
        Ok(Scores {
            dropout: dropout.transpose()?,
            dtype: p.dtype,
            terms,
            scale: p.scale as f32,
            factors: [factor(p.scale), factor(1.0)],
            causal: p.causal,
            query: operand(&p.query, length, width)?,
            key: operand(&p.key, keys, width)?,
            mask,
            rows,
            pitch: padded_pitch(part),
            part,
            batch,
            length,
            keys,
            width,
            level,
        })
    }

    /// Returns the number of matrices in the batch.
    pub(super) fn matrices(&self) -> i64 {
        self.batch.iter().product()
    }

    /// Returns some rows of the query of matrix `b`; `rows` is the matrix, the first row and their number.
    pub(super) fn query<'a>(
        &self,
        args: &Arguments<'a>,
        rows: (i64, i64, i64),
        copy: &'a mut Option<Storage>,
    ) -> Result<Side<'a>> {
        self.side(&self.query, args, rows, self.width, (copy, false))
    }

    /// Returns the keys of matrix `b`.
    pub(super) fn key<'a>(&self, args: &Arguments<'a>, b: i64, copy: Copy<'a>) -> Result<Side<'a>> {
        self.side(&self.key, args, (b, 0, self.keys), self.width, copy)
    }

    /// Returns the address of the keys of matrix `b`, which identifies them.
    pub(super) fn key_start(&self, args: &Arguments, b: i64) -> usize {
        self.key.at::<u8>(args, &self.batch, b, 0, 0).id()
    }

    /// Returns some rows of an operand's matrix `b`. Rows of f16 or bf16 are copied as terms, padded with zeros to
    /// whole words.
    pub(super) fn side<'a>(
        &self,
        x: &Operand,
        args: &Arguments<'a>,
        (b, first, rows): (i64, i64, i64),
        columns: i64,
        (copy, is_there): Copy<'a>,
    ) -> Result<Side<'a>> {
        let terms = self.terms;
        if self.dtype == DType::F32 {
            return Ok((x.at(args, &self.batch, b, first, 0), x.row, x.col));
        }
        let words = terms.words(columns);
        let to = ViewMut::<f32>::room(copy, rows * words)?;
        if !is_there {
            let from = x.at::<u16>(args, &self.batch, b, first, 0).bytes();
            let packer = terms.packer(0, self.dtype);
            packer.pack(
                (from, [x.col, x.row]),
                (columns, rows),
                (to.bytes(), [1, words]),
            );
        }
        Ok((*to, words, 1))
    }

    /// Returns all rows of an operand's matrix `b`, interleaved: a row of words holds as many rows as a word has terms.
    /// Zeros pad the last row of words.
    fn paired<'a>(
        &self,
        x: &Operand,
        args: &Arguments<'a>,
        (b, rows): (i64, i64),
        columns: i64,
        (copy, is_there): Copy<'a>,
    ) -> Result<Side<'a>> {
        let to = ViewMut::<f32>::room(copy, self.terms.words(rows) * columns)?;
        if !is_there {
            let from = x.at::<u16>(args, &self.batch, b, 0, 0).bytes();
            let packer = self.terms.packer(1, self.dtype);
            packer.pack(
                (from, [x.row, x.col]),
                (rows, columns),
                (to.bytes(), [columns, 1]),
            );
        }
        Ok((*to, columns, 1))
    }

    /// Returns B of a product with weights: all rows of an operand's matrix `b`.
    pub(super) fn summed<'a>(
        &self,
        x: &Operand,
        args: &Arguments<'a>,
        (b, rows): (i64, i64),
        columns: i64,
        copy: Copy<'a>,
    ) -> Result<Side<'a>> {
        match self.terms.are_grouped() {
            true => self.paired(x, args, (b, rows), columns, copy),
            false => self.side(x, args, (b, 0, rows), columns, copy),
        }
    }

    /// Returns the transpose of `rows` rows of terms: one line per column, each of `rows` terms.
    pub(super) fn transposed<'a>(
        &self,
        (x, row, col): Side,
        (rows, columns): (i64, i64),
        copy: &'a mut Option<Storage>,
    ) -> Result<Side<'a>> {
        let pitch = padded_pitch(self.terms.words(rows));
        let to = ViewMut::<f32>::room(copy, columns * pitch)?;
        // Words with several terms are contiguous.
        let from = (x.bytes(), [self.terms.count() * row, col]);
        let packer = self.terms.packer(0, self.terms.instruction.terms[0]);
        packer.pack(from, (rows, columns), (to.bytes(), [1, pitch]));
        Ok((*to, pitch, 1))
    }

    /// Returns A of a product: rows of weights, or of their gradients, for `keys` keys.
    pub(super) fn left<'a>(
        &self,
        numbers: ViewMut<'a, f32>,
        (rows, keys): (i64, i64),
        copy: &'a mut Option<Storage>,
    ) -> Result<Side<'a>> {
        if !self.terms.are_grouped() {
            return Ok((*numbers, self.pitch, 1));
        }
        let pitch = padded_pitch(self.terms.words(keys));
        let to = ViewMut::<f32>::room(copy, rows * pitch)?;
        for i in 0..rows {
            self.narrow_row(*numbers.shift(i * self.pitch), keys, to.shift(i * pitch));
        }
        Ok((*to, pitch, 1))
    }

    /// Returns B of a product whose K runs over rows of weights, or of their gradients, for `keys` keys. Where a word
    /// has several terms, rows are packed into words in place.
    pub(super) fn right<'a>(
        &self,
        numbers: ViewMut<'a, f32>,
        (rows, keys): (i64, i64),
    ) -> Right<'a, f32> {
        let line = |i: i64| numbers.shift(i * self.pitch);
        for word in (0..self.terms.words(rows)).filter(|_| self.terms.are_grouped()) {
            let (first, second) = (2 * word, 2 * word + 1);
            let second = (second < rows).then(|| *line(second));
            pack_pairs(self.level, *line(first), second, line(word).cast(), keys);
        }
        Right::Direct((*numbers, self.pitch, 1))
    }

    /// Multiplies matrices of terms.
    pub(super) fn multiply(
        &self,
        (rows, columns, terms): (i64, i64, i64),
        to: (ViewMut<f32>, i64),
        left: Side,
        right: Right<f32>,
        adds: bool,
    ) -> Result<()> {
        let sizes = (rows, columns, self.terms.words(terms));
        let parameters = (self.terms.instruction, self.level, None);
        multiply(parameters, sizes, to, left, right, adds)
    }

    /// Narrows a row of weights for `keys` keys to terms, in place.
    pub(super) fn narrow(&self, row: ViewMut<f32>, keys: i64) {
        if self.terms.are_grouped() {
            self.narrow_row(*row, keys, row);
        }
    }

    fn narrow_row(&self, numbers: View<f32>, count: i64, to: ViewMut<f32>) {
        let to = to.cast::<bf16>();
        narrow(self.level, numbers, to, count);
        if count % 2 == 1 {
            to.set(count, bf16::ZERO);
        }
    }

    /// Writes results in the dtype.
    pub(super) fn write(&self, from: &[f32], to: ViewMut<u8>) {
        let len = from.len() as i64;
        match self.dtype {
            DType::F32 => to.cast().copy(0, from),
            DType::F16 => {
                let mut to = to.cast::<f16>();
                to.slice_mut(0, len).convert_from_f32_slice(from);
            }
            _ => narrow(self.level, View::of(from), to.cast(), len),
        }
    }

    /// Returns the end of the keys that any row before row `until` sees.
    pub(super) fn seen(&self, until: i64) -> i64 {
        match self.causal {
            true => self.keys.min(until),
            false => self.keys,
        }
    }

    /// True if a row may see no key.
    pub(super) fn may_be_blind(&self) -> bool {
        self.causal || self.mask.is_some() || self.keys == 0
    }

    /// Computes the weights of rows from `first` on for some keys, without the final factor of their row. These keys
    /// follow those that the softmax state already covers. Weights of keys that a row does not see are zero. `then` is
    /// called for each row while its weights are in the cache.
    pub(super) fn weights(
        &self,
        args: &Arguments,
        (b, first, rows): (i64, i64, i64),
        (query, keys): (Side, Right<f32>),
        (from, until): (i64, i64),
        (mut weights, sums): (ViewMut<f32>, &mut AllSums),
        then: impl Fn(i64),
    ) -> Result<()> {
        let (sizes, keys) = ((rows, until - from, self.width), keys.part_from(0, from));
        self.multiply(sizes, (weights, self.pitch), query, keys, false)?;
        for (i, sums) in (0..rows).zip(sums) {
            let row = weights.slice_mut(i * self.pitch, until - from);
            let seen = self.seen(first + i + 1).clamp(from, until) - from;
            let (visible, others) = row.split_at_mut(seen as usize);
            let is_masked = self.masked(args, (b, first + i, from), visible);
            let row = ScoreRow {
                scores: visible,
                factor: self.factors[usize::from(is_masked)],
                sums,
            };
            row.softmax(self.level, self.terms.are_grouped());
            others.fill(0.0);
            then(i);
        }
        Ok(())
    }

    /// Applies dropout to the weights of rows for some keys, or to their gradients.
    pub(super) fn drop(
        &self,
        args: &Arguments,
        (b, first, rows): (i64, i64, i64),
        (from, until): (i64, i64),
        mut numbers: ViewMut<f32>,
    ) {
        let Some(dropout) = &self.dropout else {
            return;
        };
        for i in 0..rows {
            let at = (b * self.length + first + i).wrapping_mul(self.keys);
            let row = numbers.slice_mut(i * self.pitch, until - from);
            dropout.drop(args, at.wrapping_add(from), row);
        }
    }

    /// Scales a row's scores from a key on and applies the mask. Returns false, without an effect, if there is no mask.
    fn masked(&self, args: &Arguments, (b, row, key): (i64, i64, i64), scores: &mut [f32]) -> bool {
        let Some((mask, dtype)) = &self.mask else {
            return false;
        };
        let (scale, col) = (self.scale, mask.col);
        let halves = || (mask.at::<u16>(args, &self.batch, b, row, key), col);
        match dtype {
            DType::Bool => {
                let start = mask.at::<u8>(args, &self.batch, b, row, key);
                apply((start, col), scores, |score, keeps| match keeps {
                    0 => f32::NEG_INFINITY,
                    _ => score * scale,
                });
            }
            DType::F32 => {
                let start = mask.at::<f32>(args, &self.batch, b, row, key);
                apply((start, col), scores, |score, more| score * scale + more);
            }
            DType::F16 => apply(halves(), scores, |score, more| {
                score * scale + convert::F16::load(more)
            }),
            _ => apply(halves(), scores, |score, more| {
                score * scale + convert::BF16::load(more)
            }),
        }
        true
    }
}

/// Applies a mask's row, whose elements have this stride.
fn apply<T: Plain>((start, stride): (View<T>, i64), scores: &mut [f32], f: impl Fn(f32, T) -> f32) {
    if stride == 1 {
        let mask = start.slice(0, scores.len() as i64);
        return (scores.iter_mut().zip(mask)).for_each(|(s, m)| *s = f(*s, *m));
    }
    for (j, score) in (0..).zip(scores) {
        *score = f(*score, start.get(j * stride));
    }
}

/// True if some rows of an operand's matrix of terms are finite.
pub(super) fn is_finite(
    (x, row, col): Side,
    (from, until): (i64, i64),
    columns: i64,
    terms: Terms,
) -> bool {
    let dtype = terms.instruction.terms[0];
    let finite =
        |at: i64, words: i64| are_finite(dtype, x.shift(at).bytes(), words * terms.count());
    (from..until).all(|i| match col {
        1 => finite(i * row, columns),
        _ => (0..columns).all(|j| finite(i * row + j * col, 1)),
    })
}
