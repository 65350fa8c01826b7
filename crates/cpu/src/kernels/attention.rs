//! Attention: scores, their softmax and the weighted sum of the values, for a block of rows and keys at a time, so that
//! the scores present at once fit into a cache.

mod dropout;
mod gradient;
mod scores;
mod softmax;

pub(crate) use gradient::AttentionGrad;

use crate::kernels::matmul::{EpilogueRunner, Operand, epilogue, run_blocks};
use crate::tile::Linked;
use kiln_base::DType;
use kiln_jit::contraction::{Right, pack_panels};
use kiln_kernel::affine::{ceil, extent, product};
use kiln_kernel::error::Result;
use kiln_kernel::failures::{Failure, Failures};
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::simd::Features;
use kiln_kernel::work::Call;
use kiln_kernel::work::Program;
use kiln_plan as plan;
use scores::{AllSums, ScoreBlock, Scores, Side, is_finite};
use softmax::Sums;

/// Linked attention.
pub(crate) struct Attention {
    scores: Scores,
    columns: i64,
    value: Operand,
    out: usize,
    epilogue: Option<Linked>,
}

impl kiln_kernel::work::LinkedKernel for Attention {
    unsafe fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        // SAFETY: linked for arguments of these lengths; its parts are apart where `parallel` says so.
        unsafe { self.run(call.args, call.parallel, call.failures) };
        Ok(None)
    }

    fn program(&self) -> Option<&dyn Program> {
        Some(self.epilogue.as_ref()?)
    }
}

/// The sizes of a block.
const BLOCK: ScoreBlock = ScoreBlock {
    keys: 512,
    rows: 256,
};

/// The buffers that a thread keeps between blocks: scores, accumulators, and f16 or bf16 operands widened to f32.
#[derive(Default)]
struct Scratch {
    scores: Option<Storage>,
    sums: Option<Storage>,
    query: Option<Storage>,
    key: Option<Storage>,
    value: Option<Storage>,
    /// Panels of keys and values, and the operands kept for all blocks of rows of a matrix.
    panels: [Option<Storage>; 2],
    holds: Option<KeysValues>,
}

/// The keys and values of a matrix.
#[derive(Clone, Copy)]
struct KeysValues {
    /// The start of the keys and of the values in the operands; matrices may alias them.
    of: [*const u8; 2],
    /// The keys as columns, and the values.
    keys: Right<f32>,
    values: Right<f32>,
    /// The end of the rows that contain values which are not finite.
    wild: i64,
}

impl Attention {
    /// True if there is code for it.
    pub(crate) fn computes(p: &plan::Attention) -> bool {
        Scores::computes(&p.scores)
    }

    /// Checks and links attention whose arguments have these lengths.
    pub(crate) fn new(
        p: &plan::Attention,
        values: &[i64],
        lens: &[i64],
        level: Features,
    ) -> Result<Attention> {
        let scores = Scores::new(&p.scores, BLOCK, values, lens, level)?;
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

    /// Computes the rows from `first` of matrix `b`.
    unsafe fn block(
        &self,
        args: &[*mut u8],
        b: i64,
        first: i64,
        scratch: &mut Scratch,
        work: &mut EpilogueRunner,
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
            let held = self.hold(args, b, scratch)?;
            let query = s.query(args, (b, first, rows), &mut scratch.query)?;
            self.sum(args, (b, first, rows), (query, held), seen, (weights, sums))?;
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

    /// Returns the keys and values of matrix `b` as micro-kernels read them. They are packed where more than one block
    /// of rows reads them.
    unsafe fn hold(&self, args: &[*mut u8], b: i64, scratch: &mut Scratch) -> Result<KeysValues> {
        let s = &self.scores;
        let of = [
            s.key_start(args, b),
            self.value.at::<u8>(args, &s.batch, b, 0, 0),
        ];
        if let Some(held) = scratch.holds.filter(|held| held.of == of) {
            return Ok(held);
        }
        // SAFETY: linking proved the operands within their buffers; there is room.
        let held = unsafe {
            let key = s.key(args, b, &mut scratch.key)?;
            let (all, copy) = ((b, s.keys), &mut scratch.value);
            let value = s.summed(&self.value, args, all, self.columns, copy)?;
            let keys_as_columns = (key.0, key.2, key.1);
            let (mut keys, mut values) = (keys_as_columns.into(), value.into());
            if s.length > s.rows {
                let [of_keys, of_values] = &mut scratch.panels;
                let of = (s.level, s.terms.instruction());
                let sizes = (s.terms.words(s.width), s.keys);
                keys = Right::Packed(pack_panels(of, keys_as_columns, sizes, of_keys)?);
                let sizes = (s.terms.words(s.keys), self.columns);
                values = Right::Packed(pack_panels(of, value, sizes, of_values)?);
            }
            let count = s.terms.count();
            let wild = |word: &i64| !is_finite(value, (*word, *word + 1), self.columns, s.terms);
            KeysValues {
                of,
                keys,
                values,
                // Without a causal mask, all keys are seen.
                wild: match s.causal {
                    true => (0..s.terms.words(s.keys))
                        .rev()
                        .find(wild)
                        .map_or(0, |word| s.keys.min((word + 1) * count)),
                    false => 0,
                },
            }
        };
        scratch.holds = Some(held);
        Ok(held)
    }

    /// Computes the weighted sums of values for some rows, none of which sees a key from `seen` on.
    unsafe fn sum(
        &self,
        args: &[*mut u8],
        (b, first, rows): (i64, i64, i64),
        (query, held): (Side, KeysValues),
        seen: i64,
        (weights, out): (*mut f32, *mut f32),
    ) -> Result<()> {
        let (s, columns) = (&self.scores, self.columns);
        let mut sums: AllSums = [Sums::NONE; _];
        // SAFETY: linking proved the operands within their buffers; there is room.
        unsafe {
            let line = |i: i64| {
                let line = out.offset((i * columns) as isize);
                std::slice::from_raw_parts_mut(line, columns as usize)
            };
            let weighted = |from: i64, until: i64| {
                let sizes = (rows, columns, until - from);
                let left = (weights.cast_const(), s.pitch, 1);
                let values = held.values.part_from(s.terms.words(from), 0);
                s.multiply(sizes, (out, columns), left, values, from > 0)
            };
            let mut from = 0;
            loop {
                let until = seen.min(from + s.part);
                let (at, part) = ((b, first, rows), (from, until));
                let terms = |i: i64| {
                    let row = weights.offset((i * s.pitch) as isize);
                    s.drop(args, (b, first + i, 1), part, row);
                    s.narrow(row, until - from);
                };
                let to = (weights, &mut sums);
                s.weights(args, at, (query, held.keys), part, to, terms)?;
                for (i, sums) in (0..rows).zip(&sums).filter(|_| from > 0) {
                    line(i).iter_mut().for_each(|x| *x *= sums.correction);
                }
                weighted(from, until)?;
                from = until;
                if from == seen {
                    break;
                }
            }
            // A weight of zero times a value that is not finite still makes NaN.
            let all = (rows * s.pitch) as usize;
            if seen < held.wild {
                std::slice::from_raw_parts_mut(weights, all).fill(0.0);
                from -= from % s.terms.count();
            }
            while from < held.wild {
                let until = held.wild.min(from + s.part);
                weighted(from, until)?;
                from = until;
            }
            for (i, sums) in (0..rows).zip(&sums) {
                let part = sums.part(s.may_be_blind());
                line(i).iter_mut().for_each(|x| *x *= part);
            }
        }
        Ok(())
    }
}
