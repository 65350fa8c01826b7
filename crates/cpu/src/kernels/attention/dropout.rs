//! Dropout of weights. Random numbers by position make a stored mask unnecessary.

use crate::kernels::matmul::Operand;
use kiln_base::prim::{RandomKind, philox_lanes};
use kiln_kernel::error::Result;
use kiln_kernel::simd::{Features, Isa, Vectorized, vectorized};
use kiln_kernel::view::Arguments;
use kiln_plan as plan;

/// Linked dropout.
pub(super) struct Dropout {
    key: Operand,
    threshold: u32,
    scale: f32,
    level: Features,
}

impl Dropout {
    /// Checks and links dropout for arguments of these lengths.
    pub(super) fn new(
        p: &plan::Dropout,
        values: &[i64],
        lens: &[i64],
        level: Features,
    ) -> Result<Dropout> {
        // Uniform numbers are multiples of 2⁻²⁴, and are compared in f32.
        let threshold = (f64::from(p.p as f32) * f64::from(1 << 24)).ceil() as u32;
        Ok(Dropout {
            key: Operand::new(&p.key, (&[], 1, 2), values, lens[p.key.arg as usize])?,
            threshold,
            scale: p.scale() as f32,
            level,
        })
    }

    /// Applies dropout to `numbers`, which begin at index `first` of the random stream.
    pub(super) fn drop(&self, args: &Arguments, first: i64, numbers: &mut [f32]) {
        let key = |i: i64| {
            self.key
                .at::<i64>(args, &[], 0, 0, i)
                .get(0)
                .cast_unsigned()
        };
        let row = DropoutRow {
            numbers,
            seed: key(0),
            position: key(1).wrapping_add(first.cast_unsigned()),
            threshold: self.threshold,
            scale: self.scale,
        };
        vectorized(self.level, row);
    }
}

/// A row of numbers, and the position of its first number in the random stream.
struct DropoutRow<'a> {
    numbers: &'a mut [f32],
    seed: u64,
    position: u64,
    /// A number is dropped if the first 24 bits of its random word are less than this.
    threshold: u32,
    scale: f32,
}

/// The number of uniform f32 per block of random words.
const NUMBERS_PER_BLOCK: usize = RandomKind::Uniform.numbers_a_block(false) as usize;
/// The number of blocks generated at once.
const BLOCKS: usize = 16;
/// The number of elements that are processed at once.
const NUMBERS: usize = NUMBERS_PER_BLOCK * BLOCKS;

impl Vectorized for DropoutRow<'_> {
    #[inline(always)]
    fn run<I: Isa>(mut self) {
        let mut remaining = std::mem::take(&mut self.numbers);
        let mut block = self.position / NUMBERS_PER_BLOCK as u64;
        let mut skipped = (self.position % NUMBERS_PER_BLOCK as u64) as usize;
        while !remaining.is_empty() {
            let factors = factors(block, &self);
            let (chunk, tail) = remaining.split_at_mut(remaining.len().min(NUMBERS - skipped));
            for (x, factor) in chunk.iter_mut().zip(&factors[skipped..]) {
                *x *= factor;
            }
            (remaining, skipped, block) = (tail, 0, block.wrapping_add(BLOCKS as u64));
        }
    }
}

/// Returns the dropout factors of the numbers from a block on.
#[inline(always)]
fn factors(block: u64, row: &DropoutRow) -> [f32; NUMBERS] {
    let mut c = [[0u32; BLOCKS]; 4];
    (0..BLOCKS).for_each(|lane| {
        let block = block.wrapping_add(lane as u64);
        (c[0][lane], c[1][lane]) = (block as u32, (block >> 32) as u32);
        c[2][lane] = NUMBERS_PER_BLOCK as u32 - 1;
    });
    let c = philox_lanes(c, row.seed);
    let mut factors = [0f32; NUMBERS];
    for (lane, block_factors) in factors
        .as_chunks_mut::<NUMBERS_PER_BLOCK>()
        .0
        .iter_mut()
        .enumerate()
    {
        for (word, factor) in c.iter().zip(block_factors) {
            *factor = if word[lane] >> 8 >= row.threshold {
                row.scale
            } else {
                0.0
            };
        }
    }
    factors
}
