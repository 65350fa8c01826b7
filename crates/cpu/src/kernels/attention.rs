//! Attention: scores, their softmax and the weighted sum of the values. Blocks of rows and keys keep the scores in a
//! cache.

mod dropout;
mod gradient;
mod scores;
mod softmax;

pub(crate) use gradient::AttentionGrad;
pub(crate) use scores::Scores;

use crate::kernels::matmul::{Launch, Operand, epilogue};
use crate::tile::Linked;
use kiln_base::DType;
use kiln_jit::contraction::{PackedPanels, Right};
use kiln_kernel::affine::{ceil, extent, product};
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failure;
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::Features;
use kiln_kernel::view::{Arguments, ViewMut};
use kiln_kernel::work::Call;
use kiln_kernel::work::Program;
use kiln_plan as plan;
use scores::{AllSums, Side, is_finite};
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
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        let s = &self.scores;
        let blocks = ceil(s.length, s.rows);
        if self.columns == 0 {
            return Ok(None);
        }
        let cost = s.rows * s.keys * (s.width + self.columns + 1);
        let launch = Launch::new(self.epilogue.as_ref(), call);
        launch.run((s.matrices() * blocks, cost), |i, scratch| {
            self.compute_block(&launch, i / blocks, i % blocks * s.rows, scratch)
        });
        Ok(None)
    }

    fn program(&self) -> Option<&dyn Program> {
        Some(self.epilogue.as_ref()?)
    }
}

/// The buffers that a thread reuses between blocks: scores, accumulators, raw results, and f16 or bf16 operands widened
/// to f32.
#[derive(Default)]
struct Scratch {
    scores: Option<Storage>,
    sums: Option<Storage>,
    raw: Option<Storage>,
    query: Option<Storage>,
    kept: CopiedOperands,
}

/// The copies of the keys and values of a matrix, kept for all of its blocks of rows.
#[derive(Default)]
struct CopiedOperands {
    key: Option<Storage>,
    value: Option<Storage>,
    panels: [PackedPanels; 2],
    /// The starts of the copied keys and values in the operands, which matrices may share, and
    /// [`KeysValues::nonfinite_end`].
    source: Option<([usize; 2], i64)>,
}

/// The keys and values of a matrix.
#[derive(Clone, Copy)]
struct KeysValues<'a> {
    /// The transposed keys.
    keys: Right<'a, f32>,
    values: Right<'a, f32>,
    /// The end of the rows that contain values which are not finite.
    nonfinite_end: i64,
}

impl Attention {
    /// Checks and links attention for arguments of these lengths.
    pub(crate) fn new(
        p: &plan::Attention,
        values: &[i64],
        lens: &[i64],
        level: Features,
    ) -> Result<Attention> {
        let scores = Scores::new(&p.scores, values, lens, level)?;
        let columns = extent(&p.columns, values)?;
        let batch = &scores.batch;
        let extents: Vec<i64> = batch
            .iter()
            .copied()
            .chain([scores.length, columns])
            .collect();
        let total = product(&extents)?;
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

    /// Computes the rows from `first` of matrix `b`.
    fn compute_block(
        &self,
        launch: &Launch,
        b: i64,
        first: i64,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let (s, args) = (&self.scores, &launch.args);
        let (rows, columns) = (s.rows.min(s.length - first), self.columns);
        let visible = s.seen(first + rows);
        let weights = ViewMut::room(&mut scratch.scores, rows * s.pitch)?;
        let element = (b * s.length + first) * columns;
        let size = s.dtype.size() as i64;
        let (to, bytes) = ((self.out, element * size, 0), rows * columns * size);
        let (out, _) = launch.destination::<u8>(to, (&mut scratch.raw, bytes, 0))?;
        let sums = match s.dtype {
            DType::F32 => out.cast(),
            _ => ViewMut::room(&mut scratch.sums, rows * columns)?,
        };
        let operands = self.pack_operands(args, b, &mut scratch.kept)?;
        let query = s.query(args, (b, first, rows), &mut scratch.query)?;
        self.sum_values(
            args,
            (b, first, rows),
            (query, operands),
            visible,
            (weights, sums),
        )?;
        if s.dtype != DType::F32 {
            s.write(sums.slice(0, rows * columns), out);
        }
        launch.apply_epilogue((out, columns), element, (rows, columns), columns)
    }

    /// Returns the keys and values of matrix `b` for micro-kernels, packed if several blocks of rows read them.
    fn pack_operands<'a>(
        &self,
        args: &Arguments<'a>,
        b: i64,
        kept: &'a mut CopiedOperands,
    ) -> Result<KeysValues<'a>> {
        let s = &self.scores;
        let value = self.value.at::<u8>(args, &s.batch, b, 0, 0);
        let source = [s.key_start(args, b), value.id()];
        let nonfinite_end = kept.source.take().filter(|(other, _)| *other == source);
        let is_copied = nonfinite_end.is_some();
        let key = s.key(args, b, (&mut kept.key, is_copied))?;
        let copy = (&mut kept.value, is_copied);
        let value = s.summed(&self.value, args, (b, s.keys), self.columns, copy)?;
        let keys_as_columns = (key.0, key.2, key.1);
        let (mut keys, mut values) = (keys_as_columns.into(), value.into());
        if s.length > s.rows {
            let [key_panels, value_panels] = &mut kept.panels;
            if !is_copied {
                let by = (s.level, s.terms.instruction);
                key_panels.pack(by, keys_as_columns, (s.terms.words(s.width), s.keys))?;
                value_panels.pack(by, value, (s.terms.words(s.keys), self.columns))?;
            }
            keys = Right::Packed(key_panels.panels()?);
            values = Right::Packed(value_panels.panels()?);
        }
        let count = s.terms.count();
        let is_nonfinite =
            |word: &i64| !is_finite(value, (*word, *word + 1), self.columns, s.terms);
        let nonfinite_end = match nonfinite_end {
            Some((_, nonfinite_end)) => nonfinite_end,
            // Without a causal mask, all keys are seen.
            None if s.causal => (0..s.terms.words(s.keys))
                .rev()
                .find(is_nonfinite)
                .map_or(0, |word| s.keys.min((word + 1) * count)),
            None => 0,
        };
        kept.source = Some((source, nonfinite_end));
        Ok(KeysValues {
            keys,
            values,
            nonfinite_end,
        })
    }

    /// Computes the weighted sums of values for some rows, which attend to keys below `visible` only.
    fn sum_values(
        &self,
        args: &Arguments,
        (b, first, rows): (i64, i64, i64),
        (query, operands): (Side, KeysValues),
        visible: i64,
        (weights, out): (ViewMut<f32>, ViewMut<f32>),
    ) -> Result<()> {
        let (s, columns) = (&self.scores, self.columns);
        let mut states: AllSums = [Sums::NONE; _];
        let scale = |i: i64, factor: f32| {
            let mut out = out;
            let elements = out.slice_mut(i * columns, columns).iter_mut();
            elements.for_each(|x| *x *= factor);
        };
        let add_weighted = |from: i64, until: i64| {
            let sizes = (rows, columns, until - from);
            let values = operands.values.part_from(s.terms.words(from), 0);
            let left = (*weights, s.pitch, 1);
            s.multiply(sizes, (out, columns), left, values, from > 0)
        };
        let mut from = 0;
        loop {
            let until = visible.min(from + s.part);
            let (rows_of_matrix, part) = ((b, first, rows), (from, until));
            let finish_row = |i: i64| {
                let row = weights.shift(i * s.pitch);
                s.drop(args, (b, first + i, 1), part, row);
                s.narrow(row, until - from);
            };
            let to = (weights, &mut states);
            s.weights(
                args,
                rows_of_matrix,
                (query, operands.keys),
                part,
                to,
                finish_row,
            )?;
            for (i, state) in (0..rows).zip(&states).filter(|_| from > 0) {
                scale(i, state.correction);
            }
            add_weighted(from, until)?;
            from = until;
            if from == visible {
                break;
            }
        }
        // A weight of zero times a value that is not finite is NaN.
        if visible < operands.nonfinite_end {
            weights.fill(0, rows * s.pitch, 0.0);
            from -= from % s.terms.count();
        }
        while from < operands.nonfinite_end {
            let until = operands.nonfinite_end.min(from + s.part);
            add_weighted(from, until)?;
            from = until;
        }
        for (i, state) in (0..rows).zip(&states) {
            scale(i, state.reciprocal(s.may_be_blind()));
        }
        Ok(())
    }
}
