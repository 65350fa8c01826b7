//! The gradients of attention, of which the weights are computed again, a block of rows at a time.

use super::scores::{AllSums, Block, Scores, Side, is_finite};
use super::softmax::Sums;
use crate::contraction::multiply;
use crate::error::Result;
use crate::kernels::matmul::{Operand, run_blocks, split};
use crate::kernels::work::{Call, Work};
use crate::memory::{Storage, room};
use crate::simd::{Isa, Kernel, Level, compiled};
use crate::tile::affine::{ceil, extent, product};
use crate::tile::{Failure, Failures};
use kiln_base::Dim;
use kiln_plan as plan;

/// Linked gradients of attention.
pub(crate) struct AttentionGrad {
    scores: Scores,
    columns: i64,
    value: Operand,
    gradient: Operand,
    out: usize,
    /// Where the gradients of query, key and value begin, in elements.
    begin: [i64; 3],
    /// Parts of the rows of a matrix. Each has sums of its own for keys and values, which are added in order.
    parts: i64,
    shares: unsafe fn(Shares),
}

/// Scores that are computed at once: there are as many gradients of them.
const BLOCK: Block = Block {
    scores: 1 << 18,
    keys: i64::MAX,
    rows: 128,
};
/// Parts that there are at least in all, so that threads can share them, where there are so many blocks.
const LEAST_PARTS: i64 = 8;

/// What a thread keeps from part to part: weights, gradients of scores, sums, and halves as f32.
#[derive(Default)]
struct Scratch {
    weights: Option<Storage>,
    scores: Option<Storage>,
    sums: Option<Storage>,
    rows: Option<Storage>,
    query: Option<Storage>,
    key: Option<Storage>,
    value: Option<Storage>,
    gradient: Option<Storage>,
    /// Gradients times what weights are multiplied by.
    parts: Option<Storage>,
    /// Keys and values turned over.
    turned: [Option<Storage>; 2],
}

impl Work for AttentionGrad {
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
    /// Whether there is code for it.
    pub(crate) fn computes(p: &plan::AttentionGrad) -> bool {
        Scores::computes(&p.scores)
    }

    /// Checks and links gradients whose arguments have these lengths.
    pub(crate) fn new(
        p: &plan::AttentionGrad,
        values: &[i64],
        lens: &[i64],
        level: Level,
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
        let all = [scores.matrices().max(1), parts, scores.keys.max(1)];
        product(&[product(&all)?, scores.width + columns + 1, 4])?;
        Ok(AttentionGrad {
            value: operand(&p.value, scores.keys)?,
            gradient: operand(&p.gradient, scores.length)?,
            out: p.out as usize,
            begin: [0, query, query + key],
            parts,
            shares: compiled::<Gradients, Shares>(level),
            columns,
            scores,
        })
    }

    /// Sums of the keys and values of a matrix.
    fn sums(&self) -> i64 {
        self.scores.keys * (self.scores.width + self.columns)
    }

    /// # Safety
    /// As [`Work::run`].
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
                    (from..to).for_each(|b| unsafe { self.add_parts(args.0, b) });
                },
            );
        }
    }

    /// Blocks of rows of matrix `b`, with part `i`'s sums of keys and values.
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
        // SAFETY: linking proved the operands within their buffers; there is room for what is kept.
        unsafe {
            std::slice::from_raw_parts_mut(sums, own as usize).fill(0.0);
            let of_values = sums.offset((s.keys * s.width) as isize);
            let key = s.key(args, b, &mut scratch.key)?;
            let rows = (b, 0, s.keys);
            let value = s.side(&self.value, args, rows, columns, &mut scratch.value)?;
            // A weight of zero still makes NaN of what is not finite.
            let finite =
                is_finite(key, (0, s.keys), s.width) && is_finite(value, (0, s.keys), columns);
            let [of_key, of_value] = &mut scratch.turned;
            let keys = s.turned(key, (s.keys, s.width), of_key)?;
            let values = s.turned(value, (s.keys, columns), of_value)?;
            for block in from..until {
                let first = block * s.rows;
                let rows = (b, first, s.rows.min(s.length - first));
                let query = s.query(args, rows, &mut scratch.query)?;
                let g = s.side(&self.gradient, args, rows, columns, &mut scratch.gradient)?;
                let finite = finite
                    && is_finite(query, (0, rows.2), s.width)
                    && is_finite(g, (0, rows.2), columns);
                let seen = if finite {
                    s.seen(first + rows.2)
                } else {
                    s.keys
                };
                let sides = [query, g, key, keys, values];
                let kept = [
                    &mut scratch.weights,
                    &mut scratch.scores,
                    &mut scratch.rows,
                    &mut scratch.parts,
                ];
                self.block(args, rows, seen, sides, [sums, of_values], kept)?;
            }
            if self.parts == 1 {
                self.write_sums(args, b, std::slice::from_raw_parts(sums, own as usize));
            }
        }
        Ok(())
    }

    /// Some rows of matrix `b`: writes the gradients of their queries, adds those of keys and values. The last two of the
    /// operands are turned over.
    unsafe fn block(
        &self,
        args: &[*mut u8],
        (b, first, rows): (i64, i64, i64),
        seen: i64,
        [query, g, key, keys, values]: [Side; 5],
        [of_keys, of_values]: [*mut f32; 2],
        kept: [&mut Option<Storage>; 4],
    ) -> Result<()> {
        let (s, columns) = (&self.scores, self.columns);
        let [of_weights, of_scores, of_rows, of_parts] = kept;
        let weights: *mut f32 = room(of_weights, rows * s.pitch)?;
        let scores: *mut f32 = room(of_scores, rows * s.pitch)?;
        let queries: *mut f32 = room(of_rows, rows * s.width)?;
        let parts: *mut f32 = room(of_parts, rows * columns)?;
        let turned = |(x, row, col): Side| (x, col, row);
        let (w, d) = (
            (weights.cast_const(), s.pitch, 1),
            (scores.cast_const(), s.pitch, 1),
        );
        // SAFETY: the caller's; there is room.
        unsafe {
            let product = |sizes, to, x, y, add| multiply(s.level, sizes, to, x, y, add);
            let at = (b, first, rows);
            let mut sums: AllSums = [Sums::NONE; _];
            s.weights(args, at, (query, keys), (0, seen), (weights, &mut sums))?;
            let wild = self.times_parts(g, &sums[..rows as usize], parts);
            let behind = if wild { s.keys } else { seen };
            for i in 0..rows {
                let row = weights.offset((i * s.pitch + seen) as isize);
                std::slice::from_raw_parts_mut(row, (behind - seen) as usize).fill(0.0);
            }
            let (seen, g) = (behind, (parts.cast_const(), columns, 1));
            product((rows, seen, columns), (scores, s.pitch), g, values, false)?;
            s.drop(args, at, (0, seen), scores);
            for i in 0..rows {
                (self.shares)(Shares {
                    weights: weights.offset((i * s.pitch) as isize),
                    scores: scores.offset((i * s.pitch) as isize),
                    len: seen as usize,
                    part: sums[i as usize].part(s.may_be_blind()),
                    scale: s.scale,
                });
            }
            s.drop(args, at, (0, seen), weights);
            product(
                (seen, columns, rows),
                (of_values, columns),
                turned(w),
                g,
                true,
            )?;
            product((rows, s.width, seen), (queries, s.width), d, key, false)?;
            product(
                (seen, s.width, rows),
                (of_keys, s.width),
                turned(d),
                query,
                true,
            )?;
            let queries = std::slice::from_raw_parts(queries, (rows * s.width) as usize);
            s.write(queries, self.at(args, 0, (b * s.length + first) * s.width));
        }
        Ok(())
    }

    /// Gradients of rows of the result times what the rows' weights are multiplied by, which is left to them. Says whether
    /// weights of a row are not numbers.
    unsafe fn times_parts(&self, (g, row, col): Side, sums: &[Sums], to: *mut f32) -> bool {
        let (columns, blind) = (self.columns, self.scores.may_be_blind());
        let mut wild = false;
        for (i, sums) in (0..).zip(sums) {
            let part = sums.part(blind);
            wild |= !part.is_finite();
            for j in 0..columns {
                // SAFETY: linking proved the gradient within its buffer; there is room.
                unsafe {
                    let g = *g.wrapping_offset((i * row + j * col) as isize);
                    *to.offset((i * columns + j) as isize) = g * part;
                }
            }
        }
        wild
    }

    /// The address of an element of a result.
    fn at(&self, args: &[*mut u8], which: usize, element: i64) -> *mut u8 {
        let at = (self.begin[which] + element) * self.scores.dtype.size() as i64;
        args[self.out].wrapping_offset(at as isize)
    }

    /// Writes the sums of the keys and values of matrix `b`.
    unsafe fn write_sums(&self, args: &[*mut u8], b: i64, sums: &[f32]) {
        let s = &self.scores;
        let (keys, values) = sums.split_at((s.keys * s.width) as usize);
        // SAFETY: linking proved that the results have room.
        unsafe {
            s.write(keys, self.at(args, 1, b * keys.len() as i64));
            s.write(values, self.at(args, 2, b * values.len() as i64));
        }
    }

    /// Adds what the parts of matrix `b` have, and writes it.
    unsafe fn add_parts(&self, args: &[*mut u8], b: i64) {
        let own = self.sums();
        let all = args[args.len() - 1].cast::<f32>();
        // SAFETY: the parts of a matrix lie one behind the other, and are its own.
        unsafe {
            let first = all.offset((b * self.parts * own) as isize);
            let sums = std::slice::from_raw_parts_mut(first, own as usize);
            for part in 1..self.parts {
                let more = first.offset((part * own) as isize).cast_const();
                let more = std::slice::from_raw_parts(more, own as usize);
                sums.iter_mut().zip(more).for_each(|(sum, x)| *sum += x);
            }
            self.write_sums(args, b, sums);
        }
    }
}

/// A row of weights, up to what they are multiplied by, and of their gradients times that, which become those of the
/// scores.
struct Shares {
    weights: *const f32,
    scores: *mut f32,
    len: usize,
    part: f32,
    scale: f32,
}

/// `d = weight · (d − part · Σ weight · d) · scale`.
struct Gradients;

/// Numbers that are worked on at once.
const LANES: usize = 16;

impl Kernel<Shares> for Gradients {
    #[inline(always)]
    unsafe fn run<I: Isa>(row: Shares) {
        // SAFETY: the row has so many weights and scores, which nobody else touches.
        let (weights, scores) = unsafe {
            (
                std::slice::from_raw_parts(row.weights, row.len),
                std::slice::from_raw_parts_mut(row.scores, row.len),
            )
        };
        let mut sums = [0f32; LANES];
        let (w, last_w) = weights.as_chunks::<LANES>();
        let (d, last_d) = scores.as_chunks::<LANES>();
        for (w, d) in w.iter().zip(d) {
            (0..LANES).for_each(|i| sums[i] += w[i] * d[i]);
        }
        for (sum, (w, d)) in sums.iter_mut().zip(last_w.iter().zip(last_d)) {
            *sum += w * d;
        }
        let sum = sums.iter().sum::<f32>() * row.part;
        for (d, w) in scores.iter_mut().zip(weights) {
            *d = w * (*d - sum) * row.scale;
        }
    }
}
