//! The gradients of attention, by blocks of rows and with recomputed weights.

use super::scores::{AllSums, BLOCK_ROWS, Scores, Side, is_finite, padded_pitch};
use super::softmax::{LANES, Sums};
use crate::kernels::matmul::{Launch, Operand, add_parts};
use kiln_base::Dim;
use kiln_jit::contraction::{PackedPanels, Right, pack};
use kiln_kernel::affine::{ceil, extent, product};
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failure;
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::{Features, Isa, Vectorized, fma32, tree_reduce, vectorized};
use kiln_kernel::view::{Arguments, View, ViewMut};
use kiln_kernel::work::{Call, LinkedKernel};
use kiln_plan as plan;

/// Linked gradients of attention.
pub(crate) struct AttentionGrad {
    scores: Scores,
    columns: i64,
    value: Operand,
    gradient: Operand,
    out: usize,
    /// The start of the gradients of query, key and value, in elements.
    starts: [i64; 3],
    /// The number of parts of a matrix's rows. Each part has its own accumulators of key and value gradients, which are
    /// added in order.
    parts: i64,
}

/// The minimum number of parts of all matrices, if there are enough blocks, to occupy threads.
const MIN_PARTS: i64 = 8;

/// The buffers that a thread reuses between parts.
#[derive(Default)]
struct Scratch {
    /// The accumulated gradients of keys and values, unless parts have their own.
    sums: Option<Storage>,
    /// Copies of operands for micro-kernels.
    query: Option<Storage>,
    key: Option<Storage>,
    summed_key: Option<Storage>,
    value: Option<Storage>,
    gradient: Option<Storage>,
    /// Panels of transposed keys, transposed values, and keys.
    panels: [PackedPanels; 3],
    block: Buffers,
}

/// The buffers that a thread reuses between blocks.
#[derive(Default)]
struct Buffers {
    /// Weights, gradients of scores, and the running maxima that the weights are relative to.
    weights: Option<Storage>,
    scores: Option<Storage>,
    running_maxima: Option<Storage>,
    /// Gradients of queries.
    queries: Option<Storage>,
    /// Transposed queries and transposed gradients of rows of the result.
    transposed: [Option<Storage>; 2],
    /// Gradients of scores as bf16.
    bf16_gradients: Option<Storage>,
}

/// The operands that all blocks of rows of a matrix multiply: transposed keys and values, and keys.
struct RightOperands<'a> {
    keys: Right<'a, f32>,
    values: Right<'a, f32>,
    key: Right<'a, f32>,
}

impl LinkedKernel for AttentionGrad {
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        let s = &self.scores;
        let blocks = ceil(s.length, s.rows);
        let work = s.length * s.keys * (3 * s.width + 2 * self.columns + 2);
        let launch = Launch::new(None, call);
        let sums = call.scratch.cast();
        launch.run(
            (s.matrices() * self.parts, work / self.parts),
            |i, scratch| {
                let (b, part) = (i / self.parts, i % self.parts);
                let start = |part: i64| blocks * part / self.parts;
                let accumulators = sums.shift(i * self.accumulator_len());
                self.compute_part(
                    &call.args,
                    accumulators,
                    b,
                    (start(part), start(part + 1)),
                    scratch,
                )
            },
        );
        if self.parts > 1 && !call.failures.is_cancelled() {
            let cost = self.parts * self.accumulator_len();
            launch.run((s.matrices(), cost), |b, transposed| {
                let accumulators = sums.shift(b * self.parts * self.accumulator_len());
                self.add_parts(&call.args, b, accumulators, transposed)
            });
        }
        Ok(None)
    }

    fn scratch(&self) -> usize {
        let all = self.scores.matrices() * self.parts * self.accumulator_len();
        if self.parts > 1 {
            all as usize * size_of::<f32>()
        } else {
            0
        }
    }
}

impl AttentionGrad {
    /// Checks and links gradients whose arguments have these lengths.
    pub(crate) fn new(
        p: &plan::AttentionGrad,
        values: &[i64],
        lens: &[i64],
        level: Features,
    ) -> Result<AttentionGrad> {
        let scores = Scores::new(&p.scores, values, lens, level)?;
        let get = |d: &Dim| extent(d, values);
        let columns = get(&p.columns)?;
        let [query, key, value] = p.lengths();
        let (query, key) = (get(&query)?, get(&key)?);
        product(&[(query + key).max(1), 1])?;
        get(&value)?;
        let operand = |x: &plan::Matrix, rows: i64| {
            let shape = (&scores.batch[..], rows, columns);
            Operand::new(x, shape, values, lens[x.arg as usize])
        };
        let blocks = ceil(scores.length, scores.rows).max(1);
        let parts = ceil(MIN_PARTS, scores.matrices().max(1)).min(blocks);
        let all = [
            scores.matrices().max(1),
            parts,
            scores.keys + 2 * padded_pitch(scores.part),
        ];
        product(&[product(&all)?, scores.width + columns + 1, 4])?;
        Ok(AttentionGrad {
            value: operand(&p.value, scores.keys)?,
            gradient: operand(&p.gradient, scores.length)?,
            out: p.out as usize,
            starts: [0, query, query + key],
            parts,
            columns,
            scores,
        })
    }

    /// Returns the number of accumulated elements of a matrix: for each part of the keys, one row per column of the
    /// keys, followed by one per column of the values.
    fn accumulator_len(&self) -> i64 {
        ceil(self.scores.keys, self.scores.part) * self.part_accumulator_len()
    }

    /// Returns the number of accumulated elements of a part.
    fn part_accumulator_len(&self) -> i64 {
        self.scores.pitch * (self.scores.width + self.columns)
    }

    /// Computes blocks of rows of matrix `b`. If there are several parts, `accumulators` has the part's accumulators of
    /// keys and values.
    fn compute_part(
        &self,
        args: &Arguments,
        accumulators: ViewMut<f32>,
        b: i64,
        (from, until): (i64, i64),
        scratch: &mut Scratch,
    ) -> Result<()> {
        let (s, columns) = (&self.scores, self.columns);
        let gradients = match self.parts {
            1 => ViewMut::room(&mut scratch.sums, self.accumulator_len())?,
            _ => accumulators,
        };
        gradients.fill(0, self.accumulator_len(), 0.0);
        let key = s.key(args, b, (&mut scratch.key, false))?;
        let summed_key = match s.terms.are_grouped() {
            true => {
                let copy = (&mut scratch.summed_key, false);
                s.summed(&s.key, args, (b, s.keys), s.width, copy)?
            }
            false => key,
        };
        let copy = (&mut scratch.value, false);
        let value = s.side(&self.value, args, (b, 0, s.keys), columns, copy)?;
        let (words, value_words) = (s.terms.words(s.width), s.terms.words(columns));
        // A weight of zero times a value that is not finite still makes NaN. Without a causal mask, all keys are
        // seen.
        let finite = s.causal
            && is_finite(key, (0, s.keys), words, s.terms)
            && is_finite(value, (0, s.keys), value_words, s.terms);
        let [key_panels, value_panels, summed_key_panels] = &mut scratch.panels;
        let by = (s.level, s.terms.instruction);
        key_panels.pack(by, (key.0, key.2, key.1), (words, s.keys))?;
        value_panels.pack(by, (value.0, value.2, value.1), (value_words, s.keys))?;
        summed_key_panels.pack(by, summed_key, (s.terms.words(s.keys), s.width))?;
        let operands = RightOperands {
            keys: Right::Packed(key_panels.panels()?),
            values: Right::Packed(value_panels.panels()?),
            key: Right::Packed(summed_key_panels.panels()?),
        };
        for block in from..until {
            let first = block * s.rows;
            let rows = (b, first, s.rows.min(s.length - first));
            let q = s.query(args, rows, &mut scratch.query)?;
            let copy = (&mut scratch.gradient, false);
            let g = s.side(&self.gradient, args, rows, columns, copy)?;
            let finite = finite
                && is_finite(q, (0, rows.2), words, s.terms)
                && is_finite(g, (0, rows.2), value_words, s.terms);
            let visible = if finite {
                s.seen(first + rows.2)
            } else {
                s.keys
            };
            self.compute_block(
                args,
                rows,
                visible,
                (q, g, &operands),
                gradients,
                &mut scratch.block,
            )?;
        }
        match self.parts {
            1 => self.write_gradients(args, b, *gradients, &mut scratch.block.weights),
            _ => Ok(()),
        }
    }

    /// Processes some rows of matrix `b`: writes the gradients of their queries, and adds those of keys and values. No
    /// row sees a key from `visible` on.
    fn compute_block(
        &self,
        args: &Arguments,
        (b, first, rows): (i64, i64, i64),
        visible: i64,
        (q, g, operands): (Side, Side, &RightOperands),
        key_gradients: ViewMut<f32>,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let (s, columns, rows_of_matrix) = (&self.scores, self.columns, (b, first, rows));
        let len = ceil(s.keys, s.part) * rows * s.pitch;
        let weights = ViewMut::<f32>::room(&mut buffers.weights, len)?;
        let scores = ViewMut::<f32>::room(&mut buffers.scores, len)?;
        let queries = ViewMut::<f32>::room(&mut buffers.queries, rows * s.width)?;
        let running_maxima = ceil(s.keys, s.part) * rows;
        let running_maxima = ViewMut::<f32>::room(&mut buffers.running_maxima, running_maxima)?;
        let mut means = [0f32; BLOCK_ROWS as usize];
        let mut states: AllSums = [Sums::NONE; _];
        let part = |from: i64| {
            let size = from * rows / s.part * s.pitch;
            (weights.shift(size), scores.shift(size))
        };
        let running_max = |from: i64, i: i64| from / s.part * rows + i;
        for from in (0..visible).step_by(s.part as usize) {
            let until = visible.min(from + s.part);
            let (w, d) = part(from);
            let to = (w, &mut states);
            s.weights(
                args,
                rows_of_matrix,
                (q, operands.keys),
                (from, until),
                to,
                |_| (),
            )?;
            let values = operands.values.part_from(0, from);
            let sizes = (rows, until - from, columns);
            s.multiply(sizes, (d, s.pitch), g, values, false)?;
            s.drop(args, rows_of_matrix, (from, until), d);
            for (i, (state, mean)) in (0..rows).zip(states.iter().zip(&mut means)) {
                running_maxima.set(running_max(from, i), state.running_max);
                let means = AccumulateMean {
                    weights: w.slice(i * s.pitch, until - from),
                    scores: d.slice(i * s.pitch, until - from),
                    correction: state.correction,
                    mean,
                };
                vectorized(s.level, means);
            }
        }
        let [of_query, of_gradient] = &mut buffers.transposed;
        let query = s.transposed(q, (rows, s.width), of_query)?;
        let gradient = s.transposed(g, (rows, columns), of_gradient)?;
        let has_nonfinite =
            (states[..rows as usize].iter()).any(|x| !x.reciprocal(s.may_be_blind()).is_finite());
        let end = if has_nonfinite { s.keys } else { visible };
        queries.fill(0, rows * s.width, 0.0);
        // The most recent parts come first, because the caches may still hold them.
        for from in (0..ceil(end, s.part)).rev().map(|i| i * s.part) {
            let until = end.min(from + s.part);
            let (mut w, mut d) = part(from);
            for (i, (state, mean)) in (0..rows).zip(states.iter().zip(&means)) {
                let first_masked = visible.max(from) - from;
                for x in [w, d] {
                    x.fill(
                        i * s.pitch + first_masked,
                        until.max(visible) - from - first_masked,
                        0.0,
                    );
                }
                let reciprocal = state.reciprocal(s.may_be_blind());
                let correction = match from < visible {
                    true => state.correction_since(running_maxima.get(running_max(from, i))),
                    false => 0.0,
                };
                let shares = ScoreGradients {
                    weights: w.slice_mut(i * s.pitch, until - from),
                    scores: d.slice_mut(i * s.pitch, until - from),
                    factor: correction * reciprocal,
                    mean: *mean * reciprocal,
                    scale: s.scale,
                };
                vectorized(s.level, shares);
            }
            s.drop(args, rows_of_matrix, (from, until), w);
            let key_gradients = key_gradients.shift(from / s.part * self.part_accumulator_len());
            let value_gradients = key_gradients.shift(s.width * s.pitch);
            let keys = until - from;
            let scores = s.left(d, (rows, keys), &mut buffers.bf16_gradients)?;
            let [w, d] = [w, d].map(|x| s.right(x, (rows, keys)));
            let sizes = (columns, keys, rows);
            s.multiply(sizes, (value_gradients, s.pitch), gradient, w, true)?;
            let sizes = (s.width, keys, rows);
            s.multiply(sizes, (key_gradients, s.pitch), query, d, true)?;
            let key = operands.key.part_from(s.terms.words(from), 0);
            let to = (queries, s.width);
            s.multiply((rows, s.width, keys), to, scores, key, true)?;
        }
        let to = self.result_at(args, 0, (b * s.length + first) * s.width);
        s.write(queries.slice(0, rows * s.width), to);
        Ok(())
    }

    /// Returns a view of a result from an element on.
    fn result_at<'a>(&self, args: &Arguments<'a>, result: usize, element: i64) -> ViewMut<'a, u8> {
        let offset = (self.starts[result] + element) * self.scores.dtype.size() as i64;
        args.view_mut::<u8>(self.out).shift(offset)
    }

    /// Writes the accumulated gradients of the keys and values of matrix `b`.
    fn write_gradients(
        &self,
        args: &Arguments,
        b: i64,
        sums: View<f32>,
        transposed: &mut Option<Storage>,
    ) -> Result<()> {
        let (s, mut column) = (&self.scores, 0);
        for (result, columns) in [(1, s.width), (2, self.columns)] {
            let count = s.keys * columns;
            let to = ViewMut::<f32>::room(transposed, count)?;
            for from in (0..s.keys).step_by(s.part as usize) {
                let start = from / s.part * self.part_accumulator_len() + column * s.pitch;
                let sums = (sums.shift(start), 1, s.pitch);
                let keys = s.part.min(s.keys - from);
                let to = (to.shift(from * columns), columns);
                pack(s.level, sums, (keys, columns), to);
            }
            s.write(to.slice(0, count), self.result_at(args, result, b * count));
            column += columns;
        }
        Ok(())
    }

    /// Adds the accumulators of all parts of matrix `b`, and writes the sum.
    fn add_parts(
        &self,
        args: &Arguments,
        b: i64,
        accumulators: ViewMut<f32>,
        transposed: &mut Option<Storage>,
    ) -> Result<()> {
        let len = self.accumulator_len();
        add_parts(accumulators, self.parts, (len, len));
        self.write_gradients(args, b, *accumulators, transposed)
    }
}

/// A part of a row of weights and of their gradients, and the running sum of their products:
/// `mean = mean · correction + Σ weight · d`.
struct AccumulateMean<'a> {
    weights: &'a [f32],
    scores: &'a [f32],
    correction: f32,
    mean: &'a mut f32,
}

impl Vectorized for AccumulateMean<'_> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let mut sums = [0f32; LANES];
        let (w, last_w) = self.weights.as_chunks::<LANES>();
        let (d, last_d) = self.scores.as_chunks::<LANES>();
        for (w, d) in w.iter().zip(d) {
            (0..LANES).for_each(|i| sums[i] = fma32::<I>(w[i], d[i], sums[i]));
        }
        for (sum, (w, d)) in sums.iter_mut().zip(last_w.iter().zip(last_d)) {
            *sum += w * d;
        }
        *self.mean = *self.mean * self.correction + tree_reduce(sums, |a, b| a + b);
    }
}

/// A part of a row of weights, and of their gradients. The weights are divided by the row's denominator, and the
/// gradients become those of the scores: `weight = weight · factor` and then `d = weight · (d − mean) · scale`.
struct ScoreGradients<'a> {
    weights: &'a mut [f32],
    scores: &'a mut [f32],
    factor: f32,
    mean: f32,
    scale: f32,
}

impl Vectorized for ScoreGradients<'_> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        for (d, w) in self.scores.iter_mut().zip(self.weights) {
            *w *= self.factor;
            *d = *w * (*d - self.mean) * self.scale;
        }
    }
}
