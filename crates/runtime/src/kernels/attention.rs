//! Attention: scores, their softmax and the weighted sum of the values, a block of rows at a time, so that
//! no more scores exist than fit into a cache.

use super::work::Call;
use crate::contraction::multiply;
use crate::error::{Result, damaged};
use crate::kernels::matmul::{LONGEST, Operand, Work, epilogue, run_blocks};
use crate::memory::{Storage, room};
use crate::simd::{Isa, Kernel, Level, compiled, math};
use crate::tile::affine::{ceil, extent, product};
use crate::tile::{Failure, Failures, Linked};
use kiln_base::{DType, Dim};
use kiln_plan as plan;

/// Linked attention of f32.
pub(crate) struct Attention {
    scale: f32,
    causal: bool,
    batch: Vec<i64>,
    length: i64,
    keys: i64,
    width: i64,
    columns: i64,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Option<(Operand, DType)>,
    out: usize,
    /// Rows of a block.
    rows: i64,
    softmax: unsafe fn(Row),
    level: Level,
    pub(crate) epilogue: Option<Linked>,
}

impl super::work::Work for Attention {
    unsafe fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        // SAFETY: linked for arguments of these lengths; its parts are apart where `parallel` says so.
        unsafe { self.run(call.args, call.parallel, call.failures) };
        Ok(None)
    }

    fn last(&self) -> Option<&Linked> {
        self.epilogue.as_ref()
    }
}

/// Scores of a block.
const BLOCK_SCORES: i64 = 1 << 17;
/// Rows of a block, at least and at most.
const BLOCK_ROWS: (i64, i64) = (8, 128);

impl Attention {
    /// Whether there is code for it.
    pub(crate) fn computes(p: &plan::Attention) -> bool {
        let mask = p.mask.as_ref().map(|m| m.1);
        let mask = mask.is_none_or(|m| m == DType::F32 || m == DType::Bool);
        p.dtype == DType::F32 && mask
    }

    /// Checks and links attention whose arguments have these lengths.
    pub(crate) fn new(
        p: &plan::Attention,
        values: &[i64],
        lens: &[i64],
        level: Level,
    ) -> Result<Attention> {
        let get = |d: &Dim| extent(d, values);
        let batch = p.batch.iter().map(get).collect::<Result<Vec<_>>>()?;
        let (length, keys) = (get(&p.length)?, get(&p.keys)?);
        let (width, columns) = (get(&p.width)?, get(&p.columns)?);
        if width.max(keys) > LONGEST {
            return Err(damaged!("attention over {keys} keys of {width} columns"));
        }
        let all: Vec<i64> = batch.iter().copied().chain([length, columns]).collect();
        let total = product(&all)?;
        let operand = |x: &plan::Matrix, rows: i64, cols: i64| {
            Operand::new(x, (&batch, rows, cols), values, lens[x.arg as usize])
        };
        let epilogue = epilogue(&p.epilogue, values, lens, (total, None), level)?;
        let mask = match &p.mask {
            Some((x, dtype)) => Some((operand(x, length, keys)?, *dtype)),
            None => None,
        };
        product(&[BLOCK_ROWS.1, keys.max(1), width.max(1)])?;
        Ok(Attention {
            scale: p.scale as f32,
            causal: p.causal,
            query: operand(&p.query, length, width)?,
            key: operand(&p.key, keys, width)?,
            value: operand(&p.value, keys, columns)?,
            mask,
            out: p.out as usize,
            rows: (BLOCK_SCORES / keys.max(1)).clamp(BLOCK_ROWS.0, BLOCK_ROWS.1),
            softmax: compiled::<Softmax, Row>(level),

            level,
            epilogue,
            batch,
            length,
            keys,
            width,
            columns,
        })
    }

    /// Runs it.
    ///
    /// # Safety
    /// `args` are the buffers it was linked for; see [`crate::tile::Runner::new`].
    pub(crate) unsafe fn run(&self, args: &[*mut u8], parallel: bool, failures: &Failures) {
        let batch: i64 = self.batch.iter().product();
        let blocks = ceil(self.length, self.rows);
        if self.columns == 0 {
            return;
        }
        let cost = self.rows * self.keys * (self.width + self.columns + 1);
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: `args` are those it was linked for, blocks lie within them, and write different places.
        run_blocks(
            (batch * blocks, cost),
            launch,
            |i, args, scratch, work| unsafe {
                self.block(args, i / blocks, i % blocks * self.rows, scratch, work)
            },
        );
    }

    /// Rows from `first` of matrix `b`.
    unsafe fn block(
        &self,
        args: &[*mut u8],
        b: i64,
        first: i64,
        scratch: &mut Option<Storage>,
        work: &mut Work,
    ) -> Result<()> {
        let rows = self.rows.min(self.length - first);
        // Keys behind the last row are seen by none.
        let seen = match self.causal {
            true => self.keys.min(first + rows),
            false => self.keys,
        };
        let scores: *mut f32 = room(scratch, rows * self.keys)?;
        let at = |x: &Operand, row: i64| x.at::<f32>(args, &self.batch, b, row, 0);
        let total = (b * self.length + first) * self.columns;
        let dst = match self.epilogue {
            Some(_) => work.scratch(rows * self.columns)?,
            None => args[self.out].cast::<f32>().wrapping_offset(total as isize),
        };
        // SAFETY: linking proved the operands within their buffers; the block lies within the result or
        // the scratch memory.
        unsafe {
            let (query, key) = (at(&self.query, first), at(&self.key, 0));
            multiply(
                self.level,
                (rows, seen, self.width),
                (scores, self.keys),
                (query, self.query.row, self.query.col),
                (key, self.key.col, self.key.row),
                false,
            )?;
            for i in 0..rows {
                let row = std::slice::from_raw_parts_mut(
                    scores.offset((i * self.keys) as isize),
                    self.keys as usize,
                );
                let visible = match self.causal {
                    true => self.keys.min(first + i + 1),
                    false => self.keys,
                };
                self.masked(args, b, first + i, &mut row[..visible as usize]);
                row[visible as usize..].fill(0.0);
                (self.softmax)(Row {
                    start: row.as_mut_ptr(),
                    len: visible as usize,
                    hidden: self.causal || self.mask.is_some(),
                });
            }
            let value = at(&self.value, 0);
            let weighted = |from: i64, to: i64, add: bool| {
                multiply(
                    self.level,
                    (rows, self.columns, to - from),
                    (dst, self.columns),
                    (scores.offset(from as isize).cast_const(), self.keys, 1),
                    (
                        value.wrapping_offset((from * self.value.row) as isize),
                        self.value.row,
                        self.value.col,
                    ),
                    add,
                )
            };
            weighted(0, seen, false)?;
            // A weight of zero still makes NaN of what is not finite.
            if seen < self.keys && !self.finite(value, seen) {
                weighted(seen, self.keys, true)?;
            }
            work.finish(
                (dst, self.columns),
                total,
                (rows, self.columns),
                self.columns,
            );
        }
        Ok(())
    }

    /// Scales scores and applies the mask's row to them.
    unsafe fn masked(&self, args: &[*mut u8], b: i64, row: i64, scores: &mut [f32]) {
        scores.iter_mut().for_each(|score| *score *= self.scale);
        let Some((mask, dtype)) = &self.mask else {
            return;
        };
        for (j, score) in scores.iter_mut().enumerate() {
            // SAFETY: linking proved the mask within its buffer.
            unsafe {
                if *dtype == DType::Bool {
                    if *mask.at::<u8>(args, &self.batch, b, row, j as i64) == 0 {
                        *score = f32::NEG_INFINITY;
                    }
                } else {
                    *score += *mask.at::<f32>(args, &self.batch, b, row, j as i64);
                }
            }
        }
    }

    /// Whether the rows of a value matrix from one on are finite.
    unsafe fn finite(&self, value: *const f32, from: i64) -> bool {
        (from..self.keys).all(|j| {
            (0..self.columns).all(|c| {
                let at = value.wrapping_offset((j * self.value.row + c * self.value.col) as isize);
                // SAFETY: linking proved the value within its buffer.
                unsafe { (*at).is_finite() }
            })
        })
    }
}

/// A row of scores: where and how many, and whether keys may be hidden from it.
struct Row {
    start: *mut f32,
    len: usize,
    hidden: bool,
}

/// Scores to weights: `exp(score - max)` by their sum. Where keys may be hidden and every score is -inf, all
/// weights are zero.
struct Softmax;

/// Numbers that are worked on at once.
const LANES: usize = 16;

impl Kernel<Row> for Softmax {
    #[inline(always)]
    unsafe fn run<I: Isa>(row: Row) {
        // SAFETY: the row has so many scores, which nobody else touches.
        let scores = unsafe { std::slice::from_raw_parts_mut(row.start, row.len) };
        let mut most = [f32::NEG_INFINITY; LANES];
        for chunk in scores.chunks(LANES) {
            for (m, s) in most.iter_mut().zip(chunk) {
                *m = if *s > *m { *s } else { *m };
            }
        }
        let most = most.iter().fold(f32::NEG_INFINITY, |m, s| m.max(*s));
        if row.hidden && most == f32::NEG_INFINITY && scores.iter().all(|s| *s == most) {
            scores.fill(0.0);
            return;
        }
        let mut sums = [0f32; LANES];
        let (chunks, rest) = scores.as_chunks_mut::<LANES>();
        for chunk in chunks {
            for (sum, s) in sums.iter_mut().zip(chunk) {
                *s = math::exp(*s - most);
                *sum += *s;
            }
        }
        for (sum, s) in sums.iter_mut().zip(rest) {
            *s = math::exp(*s - most);
            *sum += *s;
        }
        let sum: f32 = sums.iter().sum();
        for s in scores {
            *s /= sum;
        }
    }
}
