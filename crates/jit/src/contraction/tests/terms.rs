//! Tests of tiles of terms that share words, and of integers. Integers have any size, and their sums wrap around.

use super::{By, Rng};
use crate::contraction::tile::Call;
use crate::contraction::{RightSide, Rows, Tile};
use half::{bf16, f16};
use kiln_base::{DType, Features, Instruction};
use kiln_plan::schedule::{lanes, max_rows};

/// A word, or 64 bits.
trait Word: super::Whole {
    fn bits(bits: u64) -> Self;
    fn read(self) -> u64;
}
impl Word for f32 {
    fn bits(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }
    fn read(self) -> u64 {
        self.to_bits().into()
    }
}
impl Word for f64 {
    fn bits(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
    fn read(self) -> u64 {
        self.to_bits()
    }
}

/// Returns random bits for a word of terms; f16 and bf16 are small integers.
fn word(dtype: DType, rng: &mut Rng) -> u64 {
    match dtype {
        DType::F16 | DType::BF16 => (0..2).fold(0, |word, _| {
            let number = rng.below(9) as f32 - 4.0;
            let half = match dtype {
                DType::F16 => f16::from_f32(number).to_bits(),
                _ => bf16::from_f32(number).to_bits(),
            };
            word << 16 | u64::from(half)
        }),
        // Often extreme values.
        _ => match rng.below(4) {
            0 => u64::MAX,
            1 => 0x8000_0000_8080_8080,
            _ => {
                (rng.below(1 << 31) as u64) << 33
                    ^ (rng.below(1 << 31) as u64) << 11
                    ^ rng.below(1 << 20) as u64
            }
        },
    }
}

/// Returns the terms of a word, in A or B; f16 and bf16 are integers.
fn terms(dtype: DType, word: u64, on_the_right: bool) -> Vec<i64> {
    let at = |bits: usize, i: usize| word >> (bits * i);
    match dtype {
        DType::F16 => (0..2)
            .map(|i| f16::from_bits(at(16, i) as u16).to_f32() as i64)
            .collect(),
        DType::BF16 => (0..2)
            .map(|i| bf16::from_bits(at(16, i) as u16).to_f32() as i64)
            .collect(),
        DType::I16 => (0..2).map(|i| (at(16, i) as i16).into()).collect(),
        DType::U8 if on_the_right => (0..4).map(|i| (at(8, i) as i8).into()).collect(),
        DType::U8 => (0..4).map(|i| (at(8, i) as u8).into()).collect(),
        DType::I32 => vec![(word as i32).into()],
        _ => vec![word as i64],
    }
}

/// Tests a tile of random sizes.
fn a_tile<T: Word>(instruction: Instruction, level: Features, rng: &mut Rng, by: By) {
    let [dtype, _] = instruction.terms;
    let lanes = usize::from(lanes(level, instruction.sums));
    let by_tiles = instruction.has_tiles();
    let vectors = 1 + rng.below(if by_tiles { 4 } else { 8 });
    let columns = vectors * lanes - rng.below(lanes);
    let most = usize::from(max_rows(level, instruction, vectors as u8));
    // AMX tiles also have gaps between lines of rows, and several tiles per call. K may be long enough to be cut.
    let (mut across, mut lines, mut gap, mut tiles) = (1 + rng.below(most), 1, 0, 1);
    let mut steps = rng.below(9);
    if by_tiles {
        (gap, tiles) = (rng.below(3), 1 + rng.below(3));
        lines += rng.below((most - across) / (across + gap) + 1);
        steps = [40, 400][rng.below(2)];
        steps = rng.below(steps);
    }
    // The last line may have fewer.
    let rows = lines * across - rng.below(across);
    across = across.min(rows);
    let location = |row: usize| row / across * (across + gap) + row % across;
    let positions = location(rows - 1) + 1;
    let (taps, adds) = (1 + rng.below(2), rng.below(2) == 0);
    let starts = !adds && !dtype.is_half() && rng.below(2) == 0;
    let front = usize::from(starts);
    let (pitch, size) = (vectors * lanes, size_of::<T>());
    let mut numbers = |n: usize, bits: u64| -> Vec<T> {
        let word = |_| T::bits(word(dtype, rng) & bits);
        (0..n.max(1)).map(word).collect()
    };
    let bits = match instruction.reduce_range {
        true => 0x7f7f_7f7f,
        false => u64::MAX,
    };
    let (a, b) = (
        numbers(taps * tiles * positions * steps, bits),
        numbers((front + taps * steps) * pitch, u64::MAX),
    );
    let list: Vec<u64> = (0..taps)
        .map(|t| (t * tiles * positions * steps * size) as u64)
        .collect();
    // The previous contents matter where the result is added to.
    let begun = match (dtype.is_half(), adds) {
        (true, true) => u64::from(7f32.to_bits()),
        _ => u64::MAX,
    };
    let mut c = vec![T::bits(begun); tiles * rows * columns];
    let right = RightSide::of_panel((size * pitch) as i64);
    let of = Rows {
        count: rows as u8,
        across: across as u8,
        left: [1, across + gap].map(|n| (n * size * steps) as i64),
        result: [1, across as i64],
    };
    let tile = Tile {
        step: size as i64,
        steps: steps as u32,
        taps: taps as u32,
        out: (size * columns) as i64,
        adds,
        has_initial_row: starts,
        strip: match by_tiles {
            true => [(positions * steps * size) as i64, rows as i64],
            false => [0; 2],
        },
        ..Tile::new((level, instruction), of, columns as i64, right)
    };
    let call = Call {
        left: a.as_ptr().cast(),
        right: b.as_ptr().cast(),
        out: c.as_mut_ptr().cast(),
        accesses: std::ptr::null(),
        taps: list.as_ptr().cast(),
        tiles: tiles as u64,
    };
    let read: [&[T]; 2] = [&a, &b];
    by.run(tile.clone(), &call, (&read, &list), (&mut c, &mut []));
    for (at, found) in c.iter().enumerate() {
        let (i, j) = (at / columns, at % columns);
        let mut sum = match (adds, dtype) {
            (false, _) if starts => b[j].read() as i64,
            (false, _) => 0,
            (true, dtype) if dtype.is_half() => 7,
            (true, _) => -1,
        };
        for t in 0..taps * steps {
            let row = (t / steps * tiles + i / rows) * positions + location(i % rows);
            let (x, y) = (a[row * steps + t % steps], b[(front + t) * pitch + j]);
            let [x, y] = [x, y].map(T::read);
            let products = terms(dtype, x, false)
                .into_iter()
                .zip(terms(dtype, y, true));
            sum = products.fold(sum, |sum, (x, y)| sum.wrapping_add(x.wrapping_mul(y)));
        }
        let expected = match dtype {
            DType::F16 | DType::BF16 => (sum as f32).to_bits().into(),
            DType::I64 => sum as u64,
            _ => u64::from(sum as u32),
        };
        assert_eq!(found.read(), expected, "{tile:?}");
    }
}

/// Operands, and the lowest level at which an instruction multiplies them.
const ALL: [([DType; 2], Features); 12] = {
    use DType::{BF16, F16, I8, I16, I32, I64, U8};
    [
        ([F16; 2], Features::AMX_FP16),
        ([BF16; 2], Features::AMX),
        ([U8, I8], Features::AMX),
        ([BF16; 2], Features::AVX512_BF16),
        ([U8, I8], Features::AVX512_VNNI),
        ([I16; 2], Features::AVX512_VNNI),
        ([U8, I8], Features::AVX2_VNNI),
        ([I16; 2], Features::AVX2_VNNI),
        ([U8, I8], Features::AVX2),
        ([I16; 2], Features::AVX2),
        ([I32; 2], Features::AVX2),
        ([I64; 2], Features::AVX512),
    ]
};

/// Returns the level, or AVX-512 if the level lacks it.
fn wide(level: Features) -> Features {
    match level.contains(Features::AVX512) {
        true => level,
        false => Features::AVX512,
    }
}

fn at(level: Features, operands: [DType; 2]) -> (Instruction, Features) {
    (Instruction::of(operands, true, level, true), level)
}

fn some_tiles(count: usize, (instruction, level): (Instruction, Features), rng: &mut Rng, by: By) {
    for _ in 0..count {
        match instruction.sums.size() {
            8 => a_tile::<f64>(instruction, level, rng, by),
            _ => a_tile::<f32>(instruction, level, rng, by),
        }
    }
}

#[test]
fn tiles_of_terms_are_sums_of_products() {
    let mut rng = Rng(11);
    for (operands, least) in ALL {
        let (instruction, _) = at(least, operands);
        let portable = (instruction.in_vectors(), Features::BASELINE);
        let all = [portable, at(least, operands), at(wide(least), operands)];
        for of in all.into_iter().filter(|(_, level)| level.is_supported()) {
            some_tiles(200, of, &mut rng, By::Processor);
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
fn emitted_tiles_of_terms_touch_nothing_but_their_operands() {
    let mut rng = Rng(12);
    for (operands, least) in ALL {
        for level in [least, wide(least)] {
            let of = at(level, operands);
            for of in [of, (of.0.in_vectors(), level)] {
                some_tiles(40, of, &mut rng, By::Interpreter);
            }
        }
    }
}
