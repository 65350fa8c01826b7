//! The gradients of attention: for a block of rows at a time, with recomputed weights.

use super::scores::{AllSums, BLOCK_ROWS, ScoreBlock, Scores, Side, apart, is_finite};
use super::softmax::{LANES, Sums};
use crate::kernels::matmul::{Operand, run_blocks, split};
use kiln_base::Dim;
use kiln_jit::contraction::{Right, pack, pack_panels};
use kiln_kernel::affine::{ceil, extent, product};
use kiln_kernel::error::Result;
use kiln_kernel::failures::{Failure, Failures};
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::simd::{Features, Isa, Kernel, compiled, fma32, merged};
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
    begin: [i64; 3],
    /// The number of parts of a matrix's rows. Each part has its own accumulators for keys and values, which are added
    /// in order.
    parts: i64,
    means: unsafe fn(Means),
    shares: unsafe fn(Shares),
}

/// The sizes of a block.
const BLOCK: ScoreBlock = ScoreBlock {
    keys: 512,
    rows: 256,
};
/// The least number of parts in all, so that threads can share them, if there are enough blocks.
const LEAST_PARTS: i64 = 8;

/// The buffers that a thread keeps between parts.
#[derive(Default)]
struct Scratch {
    /// The accumulated gradients of keys and values, unless parts have their own.
    sums: Option<Storage>,
    /// The operands as they are multiplied.
    query: Option<Storage>,
    key: Option<Storage>,
    summed_key: Option<Storage>,
    value: Option<Storage>,
    gradient: Option<Storage>,
    /// Panels of transposed keys, transposed values, and keys.
    panels: [Option<Storage>; 3],
    block: Buffers,
}

/// The buffers kept between blocks.
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
struct RightOperands {
    keys: Right<f32>,
    values: Right<f32>,
    key: Right<f32>,
}

impl LinkedKernel for AttentionGrad {
    unsafe fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        // SAFETY: linked for arguments of these lengths; its parts are apart where `parallel` says so.
        unsafe { self.run(call.args, call.scratch, call.parallel, call.failures) };
        Ok(None)
    }

    fn scratch(&self) -> usize {
        let all = self.scores.matrices() * self.parts * self.sums();
        if self.parts > 1 {
            all as usize * size_of::<f32>()
        } else {
            0
        }
    }
}

impl AttentionGrad {
    /// True if there is code for it.
    pub(crate) fn computes(p: &plan::AttentionGrad) -> bool {
        Scores::computes(&p.scores)
    }

    /// Checks and links gradients whose arguments have these lengths.
    pub(crate) fn new(
        p: &plan::AttentionGrad,
        values: &[i64],
        lens: &[i64],
        level: Features,
    ) -> Result<AttentionGrad> {
        let scores = Scores::new(&p.scores, BLOCK, values, lens, level)?;
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
        let parts = ceil(LEAST_PARTS, scores.matrices().max(1)).min(blocks);
        let all = [
            scores.matrices().max(1),
            parts,
            scores.keys + 2 * apart(scores.part),
        ];
        product(&[product(&all)?, scores.width + columns + 1, 4])?;
        Ok(AttentionGrad {
            value: operand(&p.value, scores.keys)?,
            gradient: operand(&p.gradient, scores.length)?,
            out: p.out as usize,
            begin: [0, query, query + key],
            parts,
            means: compiled::<Mean, Means>(level),
            shares: compiled::<Gradients, Shares>(level),
            columns,
            scores,
        })
    }

    /// Returns the number of accumulated elements of a matrix: for each part of the keys, one row per column of the
    /// keys, followed by one per column of the values.
    fn sums(&self) -> i64 {
        ceil(self.scores.keys, self.scores.part) * self.part_sums()
    }

    /// Returns the number of accumulated elements of a part.
    fn part_sums(&self) -> i64 {
        self.scores.pitch * (self.scores.width + self.columns)
    }

    /// # Safety
    /// As [`LinkedKernel::run`].
    unsafe fn run(&self, args: &[*mut u8], sums: *mut u8, parallel: bool, failures: &Failures) {
        let s = &self.scores;
        let blocks = ceil(s.length, s.rows);
        let work = s.length * s.keys * (3 * s.width + 2 * self.columns + 2);
        let with_sums: Vec<*mut u8> = args.iter().copied().chain([sums]).collect();
        let launch = (None, &with_sums[..], parallel, failures);
        // SAFETY: `args` are those it was linked for; parts write different places.
        run_blocks(
            (s.matrices() * self.parts, work / self.parts),
            launch,
            |i, args, scratch: &mut Scratch, _| unsafe {
                let (b, part) = (i / self.parts, i % self.parts);
                let edge = |part: i64| blocks * part / self.parts;
                self.part(args, i, b, (edge(part), edge(part + 1)), scratch)
            },
        );
        if self.parts > 1 && !failures.cancelled() {
            let args = crate::kernels::matmul::Args(&with_sums);
            split(
                s.matrices(),
                self.parts * self.sums(),
                parallel,
                |from, to| {
                    let args = &args;
                    // SAFETY: every part wrote its sums; matrices are apart.
                    let added = (from..to).try_for_each(|b| unsafe { self.add_parts(args.0, b) });
                    if let Err(e) = added {
                        failures.broken(e);
                    }
                },
            );
        }
    }

    /// Computes blocks of rows of matrix `b`, with part `i`'s accumulators of keys and values.
    unsafe fn part(
        &self,
        args: &[*mut u8],
        i: i64,
        b: i64,
        (from, until): (i64, i64),
        scratch: &mut Scratch,
    ) -> Result<()> {
        let (s, columns) = (&self.scores, self.columns);
        let own = self.sums();
        let all = args[args.len() - 1].cast::<f32>();
        let sums: *mut f32 = match self.parts {
            1 => room(&mut scratch.sums, own)?,
            _ => all.wrapping_offset((i * own) as isize),
        };
        // SAFETY: linking proved the operands within their buffers; there is room for all that is kept.
        unsafe {
            std::slice::from_raw_parts_mut(sums, own as usize).fill(0.0);
            let key = s.key(args, b, &mut scratch.key)?;
            let summed_key = match s.terms.are_grouped() {
                true => s.summed(&s.key, args, (b, s.keys), s.width, &mut scratch.summed_key)?,
                false => key,
            };
            let rows = (b, 0, s.keys);
            let value = s.side(&self.value, args, rows, columns, &mut scratch.value)?;
            let (words, value_words) = (s.terms.words(s.width), s.terms.words(columns));
            // A weight of zero times a value that is not finite still makes NaN. Without a causal mask, all keys are
            // seen.
            let finite = s.causal
                && is_finite(key, (0, s.keys), words, s.terms)
                && is_finite(value, (0, s.keys), value_words, s.terms);
            let [of_keys, of_value, of_key] = &mut scratch.panels;
            let transposed = |(x, row, col): Side| (x, col, row);
            let pack = |x, sizes, to| {
                pack_panels((s.level, s.terms.instruction()), x, sizes, to).map(Right::Packed)
            };
            let held = RightOperands {
                keys: pack(transposed(key), (words, s.keys), of_keys)?,
                values: pack(transposed(value), (value_words, s.keys), of_value)?,
                key: pack(summed_key, (s.terms.words(s.keys), s.width), of_key)?,
            };
            for block in from..until {
                let first = block * s.rows;
                let rows = (b, first, s.rows.min(s.length - first));
                let q = s.query(args, rows, &mut scratch.query)?;
                let g = s.side(&self.gradient, args, rows, columns, &mut scratch.gradient)?;
                let finite = finite
                    && is_finite(q, (0, rows.2), words, s.terms)
                    && is_finite(g, (0, rows.2), value_words, s.terms);
                let seen = if finite {
                    s.seen(first + rows.2)
                } else {
                    s.keys
                };
                let sides = (q, g, &held);
                self.block(args, rows, seen, sides, sums, &mut scratch.block)?;
            }
            if self.parts == 1 {
                self.write_sums(args, b, sums)?;
            }
        }
        Ok(())
    }

    /// Processes some rows of matrix `b`: writes the gradients of their queries, and adds those of keys and values. No
    /// row sees a key from `seen` on.
    unsafe fn block(
        &self,
        args: &[*mut u8],
        (b, first, rows): (i64, i64, i64),
        seen: i64,
        (q, g, held): (Side, Side, &RightOperands),
        of_keys: *mut f32,
        kept: &mut Buffers,
    ) -> Result<()> {
        let (s, columns, at) = (&self.scores, self.columns, (b, first, rows));
        let all = ceil(s.keys, s.part) * rows * s.pitch;
        let weights: *mut f32 = room(&mut kept.weights, all)?;
        let scores: *mut f32 = room(&mut kept.scores, all)?;
        let queries: *mut f32 = room(&mut kept.queries, rows * s.width)?;
        let running_maxima: *mut f32 = room(&mut kept.running_maxima, ceil(s.keys, s.part) * rows)?;
        let mut means = [0f32; BLOCK_ROWS as usize];
        let mut sums: AllSums = [Sums::NONE; _];
        // SAFETY: the caller's; there is room.
        unsafe {
            let part = |from: i64| {
                let size = (from * rows / s.part * s.pitch) as isize;
                (weights.offset(size), scores.offset(size))
            };
            let running_max =
                |from: i64, i: i64| running_maxima.offset((from / s.part * rows + i) as isize);
            for from in (0..seen).step_by(s.part as usize) {
                let until = seen.min(from + s.part);
                let (w, d) = part(from);
                let to = (w, &mut sums);
                s.weights(args, at, (q, held.keys), (from, until), to, |_| ())?;
                let values = held.values.part_from(0, from);
                s.multiply(
                    (rows, until - from, columns),
                    (d, s.pitch),
                    g,
                    values,
                    false,
                )?;
                s.drop(args, at, (from, until), d);
                for (i, (sums, mean)) in (0..rows).zip(sums.iter().zip(&mut means)) {
                    *running_max(from, i) = sums.running_max;
                    (self.means)(Means {
                        weights: w.offset((i * s.pitch) as isize),
                        scores: d.offset((i * s.pitch) as isize),
                        len: (until - from) as usize,
                        correction: sums.correction,
                        mean,
                    });
                }
            }
            let [of_query, of_gradient] = &mut kept.transposed;
            let query = s.transposed(q, (rows, s.width), of_query)?;
            let gradient = s.transposed(g, (rows, columns), of_gradient)?;
            let wild =
                (sums[..rows as usize].iter()).any(|x| !x.part(s.may_be_blind()).is_finite());
            let behind = if wild { s.keys } else { seen };
            std::slice::from_raw_parts_mut(queries, (rows * s.width) as usize).fill(0.0);
            // The most recent parts come first, because the caches may still hold them.
            for from in (0..ceil(behind, s.part)).rev().map(|i| i * s.part) {
                let until = behind.min(from + s.part);
                let (w, d) = part(from);
                for (i, (sums, mean)) in (0..rows).zip(sums.iter().zip(&means)) {
                    let [w, d] = [w, d].map(|x| x.offset((i * s.pitch) as isize));
                    let unseen = (seen.max(from)..until.max(seen)).map(|key| key - from);
                    for key in unseen {
                        *w.offset(key as isize) = 0.0;
                        *d.offset(key as isize) = 0.0;
                    }
                    let part = sums.part(s.may_be_blind());
                    let since = match from < seen {
                        true => sums.since(*running_max(from, i)),
                        false => 0.0,
                    };
                    (self.shares)(Shares {
                        weights: w,
                        scores: d,
                        len: (until - from) as usize,
                        part: since * part,
                        mean: *mean * part,
                        scale: s.scale,
                    });
                }
                s.drop(args, at, (from, until), w);
                let of_keys = of_keys.offset((from / s.part * self.part_sums()) as isize);
                let of_values = of_keys.offset((s.width * s.pitch) as isize);
                let keys = until - from;
                let scores = s.left(d, (rows, keys), &mut kept.bf16_gradients)?;
                let [w, d] = [w, d].map(|x| s.right(x, (rows, keys)));
                let sizes = (columns, keys, rows);
                s.multiply(sizes, (of_values, s.pitch), gradient, w, true)?;
                let sizes = (s.width, keys, rows);
                s.multiply(sizes, (of_keys, s.pitch), query, d, true)?;
                let key = held.key.part_from(s.terms.words(from), 0);
                let to = (queries, s.width);
                s.multiply((rows, s.width, keys), to, scores, key, true)?;
            }
            let queries = std::slice::from_raw_parts(queries, (rows * s.width) as usize);
            s.write(queries, self.at(args, 0, (b * s.length + first) * s.width));
        }
        Ok(())
    }

    /// Returns the address of an element of a result.
    fn at(&self, args: &[*mut u8], which: usize, element: i64) -> *mut u8 {
        let at = (self.begin[which] + element) * self.scores.dtype.size() as i64;
        args[self.out].wrapping_offset(at as isize)
    }

    /// Writes the accumulated gradients of the keys and values of matrix `b`.
    unsafe fn write_sums(&self, args: &[*mut u8], b: i64, sums: *const f32) -> Result<()> {
        let s = &self.scores;
        let (mut transposed, mut first) = (None, 0);
        for (which, columns) in [(1, s.width), (2, self.columns)] {
            let count = s.keys * columns;
            let to = room::<f32>(&mut transposed, count)?;
            // SAFETY: every part has its sums; linking proved that the results have room.
            unsafe {
                for from in (0..s.keys).step_by(s.part as usize) {
                    let at = from / s.part * self.part_sums() + first * s.pitch;
                    let sums = (sums.offset(at as isize), 1, s.pitch);
                    let keys = s.part.min(s.keys - from);
                    let to = to.offset((from * columns) as isize);
                    pack(s.level, sums, (keys, columns), (to, columns));
                }
                let all = std::slice::from_raw_parts(to, count as usize);
                s.write(all, self.at(args, which, b * count));
            }
            first += columns;
        }
        Ok(())
    }

    /// Adds up the accumulators of all parts of matrix `b`, and writes the sum.
    unsafe fn add_parts(&self, args: &[*mut u8], b: i64) -> Result<()> {
        let own = self.sums();
        let all = args[args.len() - 1].cast::<f32>();
        // SAFETY: the parts of a matrix are contiguous, and belong to it alone.
        unsafe {
            let first = all.offset((b * self.parts * own) as isize);
            let sums = std::slice::from_raw_parts_mut(first, own as usize);
            for part in 1..self.parts {
                let more = first.offset((part * own) as isize).cast_const();
                let more = std::slice::from_raw_parts(more, own as usize);
                sums.iter_mut().zip(more).for_each(|(sum, x)| *sum += x);
            }
            self.write_sums(args, b, sums.as_ptr())
        }
    }
}

/// A part of a row of weights and of their gradients, and the running sum of their products, which is multiplied by a
/// correction first.
struct Means {
    weights: *const f32,
    scores: *const f32,
    len: usize,
    correction: f32,
    mean: *mut f32,
}

/// `mean = mean · correction + Σ weight · d`.
struct Mean;

impl Kernel<Means> for Mean {
    #[inline(always)]
    unsafe fn run<I: Isa>(row: Means) {
        // SAFETY: the row has `len` weights and scores.
        let (weights, scores, mean) = unsafe {
            (
                std::slice::from_raw_parts(row.weights, row.len),
                std::slice::from_raw_parts(row.scores, row.len),
                &mut *row.mean,
            )
        };
        let mut sums = [0f32; LANES];
        let (w, last_w) = weights.as_chunks::<LANES>();
        let (d, last_d) = scores.as_chunks::<LANES>();
        for (w, d) in w.iter().zip(d) {
            (0..LANES).for_each(|i| sums[i] = fma32::<I>(w[i], d[i], sums[i]));
        }
        for (sum, (w, d)) in sums.iter_mut().zip(last_w.iter().zip(last_d)) {
            *sum += w * d;
        }
        *mean = *mean * row.correction + merged(sums, |a, b| a + b);
    }
}

/// A part of a row of weights, and of their gradients. The weights are multiplied by their share of the row's
/// denominator, and the gradients become those of the scores.
struct Shares {
    weights: *mut f32,
    scores: *mut f32,
    len: usize,
    part: f32,
    mean: f32,
    scale: f32,
}

/// `weight = weight · part` and then `d = weight · (d − mean) · scale`.
struct Gradients;

impl Kernel<Shares> for Gradients {
    #[inline(always)]
    unsafe fn run<I: Isa>(row: Shares) {
        // SAFETY: the row has `len` weights and scores, which nobody else touches.
        let (weights, scores) = unsafe {
            (
                std::slice::from_raw_parts_mut(row.weights, row.len),
                std::slice::from_raw_parts_mut(row.scores, row.len),
            )
        };
        for (d, w) in scores.iter_mut().zip(weights) {
            *w *= row.part;
            *d = *w * (*d - row.mean) * row.scale;
        }
    }
}
