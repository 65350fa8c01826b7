//! Attention: scores, their softmax and the weighted sum of the values, a block of rows at a time, so that
//! no more scores exist than fit into a cache.

mod gradient;
mod scores;
mod softmax;

pub(crate) use gradient::AttentionGrad;

use super::work::Call;
use crate::contraction::multiply;
use crate::error::Result;
use crate::kernels::matmul::{Operand, Work, epilogue, run_blocks};
use crate::memory::{Storage, room};
use crate::simd::Level;
use crate::tile::affine::{ceil, extent, product};
use crate::tile::{Failure, Failures, Linked};
use kiln_base::DType;
use kiln_plan as plan;
use scores::{Scores, Side, is_finite};

/// Linked attention.
pub(crate) struct Attention {
    scores: Scores,
    columns: i64,
    value: Operand,
    out: usize,
    epilogue: Option<Linked>,
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
const BLOCK_SCORES: i64 = 1 << 18;

/// What a thread keeps from block to block: scores, sums, and halves as f32.
#[derive(Default)]
struct Scratch {
    scores: Option<Storage>,
    sums: Option<Storage>,
    query: Option<Storage>,
    key: Option<Storage>,
    value: Option<Storage>,
    /// The keys turned over, and of which matrix they are.
    keys: Option<Storage>,
    holds: Option<(i64, Side)>,
}

impl Attention {
    /// Whether there is code for it.
    pub(crate) fn computes(p: &plan::Attention) -> bool {
        Scores::computes(&p.scores)
    }

    /// Checks and links attention whose arguments have these lengths.
    pub(crate) fn new(
        p: &plan::Attention,
        values: &[i64],
        lens: &[i64],
        level: Level,
    ) -> Result<Attention> {
        let scores = Scores::new(&p.scores, BLOCK_SCORES, values, lens, level)?;
        let columns = extent(&p.columns, values)?;
        let batch = &scores.batch;
        let all: Vec<i64> = batch
            .iter()
            .copied()
            .chain([scores.length, columns])
            .collect();
        let total = product(&all)?;
        product(&[scores.keys.max(1), columns.max(1)])?;
        let shape = (&batch[..], scores.keys, columns);
        let value = Operand::new(&p.value, shape, values, lens[p.value.arg as usize])?;
        let epilogue = epilogue(&p.epilogue, values, lens, (total, None), level)?;
        Ok(Attention {
            scores,
            columns,
            value,
            out: p.out as usize,
            epilogue,
        })
    }

    /// Runs it.
    ///
    /// # Safety
    /// `args` are the buffers it was linked for; see [`crate::tile::Runner::new`].
    unsafe fn run(&self, args: &[*mut u8], parallel: bool, failures: &Failures) {
        let s = &self.scores;
        let blocks = ceil(s.length, s.rows);
        if self.columns == 0 {
            return;
        }
        let cost = s.rows * s.keys * (s.width + self.columns + 1);
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: `args` are those it was linked for, blocks lie within them, and write different places.
        run_blocks(
            (s.matrices() * blocks, cost),
            launch,
            |i, args, scratch, work| unsafe {
                self.block(args, i / blocks, i % blocks * s.rows, scratch, work)
            },
        );
    }

    /// Rows from `first` of matrix `b`.
    unsafe fn block(
        &self,
        args: &[*mut u8],
        b: i64,
        first: i64,
        scratch: &mut Scratch,
        work: &mut Work,
    ) -> Result<()> {
        let s = &self.scores;
        let (rows, columns) = (s.rows.min(s.length - first), self.columns);
        let seen = s.seen(first + rows);
        let weights: *mut f32 = room(&mut scratch.scores, rows * s.pitch)?;
        let total = (b * s.length + first) * columns;
        let size = s.dtype.size() as i64;
        let out = match self.epilogue {
            Some(_) => work.scratch::<u8>(rows * columns * size)?,
            None => args[self.out].wrapping_offset((total * size) as isize),
        };
        let sums: *mut f32 = match s.dtype {
            DType::F32 => out.cast(),
            _ => room(&mut scratch.sums, rows * columns)?,
        };
        // SAFETY: linking proved the operands within their buffers; the block lies within the result or
        // the scratch memory.
        unsafe {
            let query = s.query(args, (b, first, rows), &mut scratch.query)?;
            let keys = match scratch.holds {
                Some((held, keys)) if held == b => keys,
                _ => {
                    let key = s.key(args, b, &mut scratch.key)?;
                    s.turned(key, (s.keys, s.width), &mut scratch.keys)?
                }
            };
            scratch.holds = Some((b, keys));
            s.weights(args, (b, first, rows), (query, keys), seen, weights)?;
            let all = (b, 0, s.keys);
            let value = s.side(&self.value, args, all, columns, &mut scratch.value)?;
            let weighted = |from: i64, to: i64, add: bool| {
                let (value, row, col) = value;
                multiply(
                    s.level,
                    (rows, columns, to - from),
                    (sums, columns),
                    (weights.offset(from as isize).cast_const(), s.pitch, 1),
                    (value.wrapping_offset((from * row) as isize), row, col),
                    add,
                )
            };
            weighted(0, seen, false)?;
            // A weight of zero still makes NaN of what is not finite.
            if seen < s.keys && !is_finite(value, (seen, s.keys), columns) {
                weighted(seen, s.keys, true)?;
            }
            if s.dtype != DType::F32 {
                let sums = std::slice::from_raw_parts(sums, (rows * columns) as usize);
                s.write(sums, out);
            }
            let lines = (rows, columns);
            match s.dtype {
                DType::F32 => work.finish((out.cast::<f32>(), columns), total, lines, columns),
                _ => work.finish((out.cast::<u16>(), columns), total, lines, columns),
            }
        }
        Ok(())
    }
}
