//! The weights of some rows of queries for some keys: scores, a mask, and the softmax.

use super::dropout::Dropout;
use super::softmax::{Pair, Pairs, Row, Softmax, Sums, factor, narrow};
use crate::kernels::matmul::{LONGEST, Operand};
use crate::kernels::terms::{Terms, put};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kiln_base::{DType, Dim};
use kiln_jit::contraction::{Right, multiply_as, pack};
use kiln_kernel::affine::{ceil, extent, product};
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::simd::convert;
use kiln_kernel::simd::convert::Mem;
use kiln_kernel::simd::{Features, compiled};
use kiln_plan as plan;

/// Returns the pitch of rows of `numbers` numbers: an odd number of cache lines, so that rows do not collide in one
/// cache set.
pub(super) fn apart(numbers: i64) -> i64 {
    const LINE: i64 = 16;
    (ceil(numbers, LINE) | 1) * LINE
}

/// The most rows of a block.
pub(super) const BLOCK_ROWS: i64 = 256;
/// The rows of a block if there are fewer blocks than the second number.
const FEW: (i64, i64) = (128, 16);

/// The softmax state of each row of a block.
pub(super) type AllSums = [Sums; BLOCK_ROWS as usize];

/// The largest number of keys and rows whose scores are computed at once.
pub(super) struct ScoreBlock {
    pub keys: i64,
    pub rows: i64,
}

/// Linked scores of f32, or of f16 or bf16 that are computed in it.
pub(super) struct Scores {
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
    /// The most keys of a block.
    pub part: i64,
    /// The pitch of rows of weights, in numbers.
    pub pitch: i64,
    softmax: unsafe fn(Row),
    narrow: unsafe fn((*const f32, *mut bf16, usize)),
    pairs: unsafe fn(Pairs),
    pub level: Features,
}

/// A matrix of f32: its address, and the strides of its rows and columns.
pub(super) type Side = (*const f32, i64, i64);

impl Scores {
    /// True if there is code for it.
    pub(super) fn computes(p: &plan::Scores) -> bool {
        let mask = p.mask.as_ref().map(|m| m.1);
        let mask = mask.is_none_or(|m| m == p.dtype || m == DType::Bool);
        matches!(p.dtype, DType::F32 | DType::F16 | DType::BF16) && mask
    }

    /// Checks and links scores whose arguments have these lengths.
    pub(super) fn new(
        p: &plan::Scores,
        block: ScoreBlock,
        values: &[i64],
        lens: &[i64],
        level: Features,
    ) -> Result<Scores> {
        let get = |d: &Dim| extent(d, values);
        let batch = p.batch.iter().map(get).collect::<Result<Vec<_>>>()?;
        let (length, keys, width) = (get(&p.length)?, get(&p.keys)?, get(&p.width)?);
        if width.max(keys).max(length) > LONGEST {
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
        let part = keys.min(block.keys).max(1);
        let most = block.rows.min(BLOCK_ROWS);
        let blocks = batch
            .iter()
            .fold(ceil(length, most), |n, d| n.saturating_mul(*d));
        let rows = if blocks < FEW.1 { FEW.0 } else { most };
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
            pitch: apart(part),
            part,
            softmax: match terms.are_grouped() {
                true => compiled::<Softmax<true>, Row>(level),
                false => compiled::<Softmax<false>, Row>(level),
            },
            narrow: narrow(level),
            pairs: compiled::<Pair, _>(level),
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
    ///
    /// # Safety
    /// As [`Scores::side`].
    pub(super) unsafe fn query(
        &self,
        args: &[*mut u8],
        rows: (i64, i64, i64),
        copy: &mut Option<Storage>,
    ) -> Result<Side> {
        // SAFETY: the caller's; the rows are the query's.
        unsafe { self.side(&self.query, args, rows, self.width, copy) }
    }

    /// Returns the keys of matrix `b`.
    ///
    /// # Safety
    /// As [`Scores::side`].
    pub(super) unsafe fn key(
        &self,
        args: &[*mut u8],
        b: i64,
        copy: &mut Option<Storage>,
    ) -> Result<Side> {
        // SAFETY: the caller's; the rows are the key's.
        unsafe { self.side(&self.key, args, (b, 0, self.keys), self.width, copy) }
    }

    /// Returns the address of the keys of matrix `b`, which identifies them.
    pub(super) fn key_start(&self, args: &[*mut u8], b: i64) -> *const u8 {
        self.key.at(args, &self.batch, b, 0, 0)
    }

    /// Returns some rows of an operand's matrix `b`. Rows of f16 or bf16 are copied as terms, padded with zeros to
    /// whole words.
    ///
    /// # Safety
    /// `args` are the buffers that it was linked for, the operand is of these scores' dtype and has the rows.
    pub(super) unsafe fn side(
        &self,
        x: &Operand,
        args: &[*mut u8],
        (b, first, rows): (i64, i64, i64),
        columns: i64,
        copy: &mut Option<Storage>,
    ) -> Result<Side> {
        let terms = self.terms;
        if self.dtype == DType::F32 {
            return Ok((x.at(args, &self.batch, b, first, 0), x.row, x.col));
        }
        let words = terms.words(columns);
        let to = room::<f32>(copy, rows * words)?;
        for i in 0..rows {
            let from = x.at::<u16>(args, &self.batch, b, first + i, 0);
            // SAFETY: linking proved the operand within its buffer; there is room for the copy.
            unsafe {
                let to = to.offset((i * words) as isize);
                if words * terms.count() > columns {
                    *to.offset(words as isize - 1) = 0.0;
                }
                terms.make(0, (from.cast(), x.col), columns, to.cast());
            }
        }
        Ok((to, words, 1))
    }

    /// Returns all rows of an operand's matrix `b`, interleaved: a row of words holds as many rows as a word has terms.
    /// Zeros pad the last row of words.
    ///
    /// # Safety
    /// As [`Scores::side`], of pairs.
    unsafe fn paired(
        &self,
        x: &Operand,
        args: &[*mut u8],
        (b, rows): (i64, i64),
        columns: i64,
        copy: &mut Option<Storage>,
    ) -> Result<Side> {
        let all = self.terms.words(rows) * columns;
        let to = room::<f32>(copy, all + columns)?;
        for row in 0..rows {
            let from = x.at::<u16>(args, &self.batch, b, row, 0);
            // SAFETY: linking proved the operand within its buffer; there is room for the copy, and a row.
            unsafe {
                let line = to.offset(all as isize).cast::<u16>();
                self.terms
                    .make(1, (from.cast(), x.col), columns, line.cast());
                let (word, which) = (row / self.terms.count(), row % self.terms.count());
                let to = to.offset((word * columns) as isize);
                put(line, 16 * which, (to.cast(), columns), |x: u16| x.into());
            }
        }
        Ok((to, columns, 1))
    }

    /// Returns B of a product with weights: all rows of an operand's matrix `b`.
    ///
    /// # Safety
    /// As [`Scores::side`].
    pub(super) unsafe fn summed(
        &self,
        x: &Operand,
        args: &[*mut u8],
        (b, rows): (i64, i64),
        columns: i64,
        copy: &mut Option<Storage>,
    ) -> Result<Side> {
        // SAFETY: the caller's.
        unsafe {
            match self.terms.are_grouped() {
                true => self.paired(x, args, (b, rows), columns, copy),
                false => self.side(x, args, (b, 0, rows), columns, copy),
            }
        }
    }

    /// Returns the transpose of `rows` rows of terms: one line per column, each of `rows` terms.
    ///
    /// # Safety
    /// The rows and columns exist.
    pub(super) unsafe fn transposed(
        &self,
        (x, row, col): Side,
        (rows, columns): (i64, i64),
        copy: &mut Option<Storage>,
    ) -> Result<Side> {
        let words = self.terms.words(rows);
        let pitch = apart(words);
        let to = room::<f32>(copy, columns * pitch)?;
        let sizes = (columns, rows);
        // SAFETY: the caller's; there is room.
        unsafe {
            if !self.terms.are_grouped() {
                pack(self.level, (x, col, row), sizes, (to, pitch));
                return Ok((to, pitch, 1));
            }
            let bits = (x.cast::<u16>(), 1, 2 * row);
            for i in (0..columns).filter(|_| rows % 2 == 1) {
                *to.offset((i * pitch + words - 1) as isize) = 0.0;
            }
            pack(self.level, bits, sizes, (to.cast(), 2 * pitch));
        }
        Ok((to, pitch, 1))
    }

    /// Returns A of a product: rows of weights, or of their gradients, for `keys` keys.
    ///
    /// # Safety
    /// As [`Scores::narrow`].
    pub(super) unsafe fn left(
        &self,
        numbers: *mut f32,
        (rows, keys): (i64, i64),
        copy: &mut Option<Storage>,
    ) -> Result<Side> {
        if !self.terms.are_grouped() {
            return Ok((numbers, self.pitch, 1));
        }
        let pitch = apart(self.terms.words(keys));
        let to = room::<f32>(copy, rows * pitch)?;
        for i in 0..rows {
            // SAFETY: the caller's; there is room.
            unsafe {
                let row = numbers.offset((i * self.pitch) as isize);
                self.narrow_row(row, keys, to.offset((i * pitch) as isize));
            }
        }
        Ok((to, pitch, 1))
    }

    /// Returns B of a product whose K runs over rows of weights, or of their gradients, for `keys` keys. Where a word
    /// has several terms, rows are packed into words in place.
    ///
    /// # Safety
    /// As [`Scores::narrow`].
    pub(super) unsafe fn right(&self, numbers: *mut f32, (rows, keys): (i64, i64)) -> Right<f32> {
        let line = |i: i64| numbers.wrapping_offset((i * self.pitch) as isize);
        for word in (0..self.terms.words(rows)).filter(|_| self.terms.are_grouped()) {
            let (first, second) = (2 * word, 2 * word + 1);
            let there = second < rows;
            let pairs = Pairs {
                rows: [line(first), line(if there { second } else { first })],
                second: if there { u32::MAX } else { 0 },
                to: line(word).cast(),
                len: keys as usize,
            };
            // SAFETY: the caller's; words are not written over rows that are still to be read.
            unsafe { (self.pairs)(pairs) };
        }
        Right::Apart((numbers, self.pitch, 1))
    }

    /// Multiplies matrices of terms.
    ///
    /// # Safety
    /// As [`multiply_as`].
    pub(super) unsafe fn multiply(
        &self,
        (rows, columns, terms): (i64, i64, i64),
        to: (*mut f32, i64),
        left: Side,
        right: Right<f32>,
        adds: bool,
    ) -> Result<()> {
        let sizes = (rows, columns, self.terms.words(terms));
        let how = (self.terms.instruction(), self.level, None);
        // SAFETY: the caller's.
        unsafe { multiply_as(how, sizes, to, left, right, adds) }
    }

    /// Narrows a row of weights for `keys` keys to terms, in place.
    ///
    /// # Safety
    /// There are `keys` weights.
    pub(super) unsafe fn narrow(&self, row: *mut f32, keys: i64) {
        if self.terms.are_grouped() {
            // SAFETY: the caller's.
            unsafe { self.narrow_row(row, keys, row) };
        }
    }

    /// # Safety
    /// There are `count` numbers, and there is room.
    unsafe fn narrow_row(&self, numbers: *const f32, count: i64, to: *mut f32) {
        let to = to.cast::<bf16>();
        // SAFETY: the caller's; the machine has the level.
        unsafe {
            (self.narrow)((numbers, to, count as usize));
            if count % 2 == 1 {
                *to.offset(count as isize) = bf16::ZERO;
            }
        }
    }

    /// Writes results in the dtype.
    ///
    /// # Safety
    /// There is room for them at `to`, which nobody else uses.
    pub(super) unsafe fn write(&self, from: &[f32], to: *mut u8) {
        // SAFETY: the caller's.
        unsafe {
            if self.dtype == DType::F32 {
                return std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), from.len());
            }
            match self.dtype {
                DType::F16 => std::slice::from_raw_parts_mut(to.cast::<f16>(), from.len())
                    .convert_from_f32_slice(from),
                _ => (self.narrow)((from.as_ptr(), to.cast(), from.len())),
            }
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
    ///
    /// # Safety
    /// As [`Scores::side`]; the rows are the query's and the keys exist, there is room for the weights.
    pub(super) unsafe fn weights(
        &self,
        args: &[*mut u8],
        (b, first, rows): (i64, i64, i64),
        (query, keys): (Side, Right<f32>),
        (from, until): (i64, i64),
        (weights, sums): (*mut f32, &mut AllSums),
        then: impl Fn(i64),
    ) -> Result<()> {
        let (sizes, keys) = ((rows, until - from, self.width), keys.part_from(0, from));
        // SAFETY: linking proved the operands within their buffers; there is room.
        unsafe {
            self.multiply(sizes, (weights, self.pitch), query, keys, false)?;
            for (i, sums) in (0..rows).zip(sums) {
                let row = weights.offset((i * self.pitch) as isize);
                let row = std::slice::from_raw_parts_mut(row, (until - from) as usize);
                let seen = self.seen(first + i + 1).clamp(from, until) - from;
                let (visible, others) = row.split_at_mut(seen as usize);
                let is_masked = self.masked(args, (b, first + i, from), visible);
                (self.softmax)(Row {
                    start: visible.as_mut_ptr(),
                    len: visible.len(),
                    factor: self.factors[usize::from(is_masked)],
                    sums,
                });
                others.fill(0.0);
                then(i);
            }
        }
        Ok(())
    }

    /// Applies dropout to the weights of rows for some keys, or to their gradients.
    ///
    /// # Safety
    /// As [`Scores::weights`].
    pub(super) unsafe fn drop(
        &self,
        args: &[*mut u8],
        (b, first, rows): (i64, i64, i64),
        (from, until): (i64, i64),
        numbers: *mut f32,
    ) {
        let Some(dropout) = &self.dropout else {
            return;
        };
        for i in 0..rows {
            let at = (b * self.length + first + i).wrapping_mul(self.keys);
            let at = at.wrapping_add(from);
            // SAFETY: the caller's.
            unsafe {
                let row = numbers.offset((i * self.pitch) as isize);
                let row = std::slice::from_raw_parts_mut(row, (until - from) as usize);
                dropout.drop(args, at, row);
            }
        }
    }

    /// Scales a row's scores from a key on and applies the mask. Returns false, without an effect, if there is no mask.
    unsafe fn masked(
        &self,
        args: &[*mut u8],
        (b, row, key): (i64, i64, i64),
        scores: &mut [f32],
    ) -> bool {
        let Some((mask, dtype)) = &self.mask else {
            return false;
        };
        let (scale, col) = (self.scale, mask.col as isize);
        // SAFETY: linking proved the mask within its buffer.
        unsafe {
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
                DType::F16 => {
                    let start = mask.at::<u16>(args, &self.batch, b, row, key);
                    apply((start, col), scores, |score, more| {
                        score * scale + convert::F16::load(more)
                    });
                }
                _ => {
                    let start = mask.at::<u16>(args, &self.batch, b, row, key);
                    apply((start, col), scores, |score, more| {
                        score * scale + convert::BF16::load(more)
                    });
                }
            }
        }
        true
    }
}

/// Applies a mask's row, whose elements are `apart` elements apart.
///
/// # Safety
/// There are as many elements as scores.
unsafe fn apply<T: Copy>(
    (start, apart): (*const T, isize),
    scores: &mut [f32],
    f: impl Fn(f32, T) -> f32,
) {
    // SAFETY: the caller's.
    unsafe {
        if apart == 1 {
            let mask = std::slice::from_raw_parts(start, scores.len());
            return (scores.iter_mut().zip(mask)).for_each(|(s, m)| *s = f(*s, *m));
        }
        for (j, score) in scores.iter_mut().enumerate() {
            *score = f(*score, *start.offset(j as isize * apart));
        }
    }
}

/// True if some rows of an operand's matrix of terms are finite.
///
/// # Safety
/// The elements exist.
pub(super) unsafe fn is_finite(
    (x, row, col): Side,
    (from, until): (i64, i64),
    columns: i64,
    terms: Terms,
) -> bool {
    let word = |i: i64, j: i64| {
        // SAFETY: the caller's.
        unsafe { *x.wrapping_offset((i * row + j * col) as isize) }
    };
    let finite = |x: f32| match terms.are_grouped() {
        true => x.is_finite() && f32::from_bits(x.to_bits() << 16).is_finite(),
        false => x.is_finite(),
    };
    (from..until).all(|i| (0..columns).all(|j| finite(word(i, j))))
}
