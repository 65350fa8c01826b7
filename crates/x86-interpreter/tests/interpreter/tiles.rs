//! Products of tiles, which few processors support, compared with sums of integers.

use fastrand::Rng;
use half::f16;
use kiln_x86::{Asm, Gpr, Mem, Tile, TileProduct, TileSizes};
use kiln_x86_interpreter::{FaultKind, Machine};

const SUMS: Tile = Tile(3);
const LEFT: Tile = Tile(0);
const RIGHT: Tile = Tile(7);

/// `*rdx += *rdi · *rsi` with rows 64 bytes apart; the sizes are rows, words of a row of the first operand, and
/// columns.
fn product(by: TileProduct, [rows, words, columns]: [u8; 3], releases: bool) -> Vec<u8> {
    let sizes = TileSizes::default()
        .with(SUMS, rows, 4 * columns)
        .with(LEFT, rows, 4 * words)
        .with(RIGHT, words, 4 * columns);
    let mut a = Asm::new(true);
    a.configure_tiles(&sizes);
    a.mov_number(Gpr::RAX, 64);
    a.load_tile(SUMS, Mem::at(Gpr::RDX), Gpr::RAX);
    a.load_tile(LEFT, Mem::at(Gpr::RDI), Gpr::RAX);
    a.load_tile(RIGHT, Mem::at(Gpr::RSI), Gpr::RAX);
    a.multiply_tiles(by, SUMS, LEFT, RIGHT);
    a.store_tile(Mem::at(Gpr::RDX), Gpr::RAX, SUMS);
    if releases {
        a.release_tiles();
    }
    a.leave(&[], 0);
    a.finish()
}

/// The terms in a word of either operand.
fn terms(by: TileProduct, word: u32, on_the_right: bool) -> Vec<i32> {
    match by {
        TileProduct::F16 => [word, word >> 16]
            .map(|bits| f16::from_bits(bits as u16).to_f32() as i32)
            .to_vec(),
        TileProduct::Bf16 => [word << 16, word & 0xFFFF_0000]
            .map(|bits| f32::from_bits(bits) as i32)
            .to_vec(),
        TileProduct::U8I8 => (word.to_le_bytes().iter())
            .map(|b| {
                if on_the_right {
                    i32::from(*b as i8)
                } else {
                    i32::from(*b)
                }
            })
            .collect(),
    }
}

#[test]
fn products_of_tiles() {
    let mut rng = Rng::with_seed(7);
    for _ in 0..60 {
        for by in [TileProduct::F16, TileProduct::Bf16, TileProduct::U8I8] {
            let [rows, words, columns] = [0; 3].map(|_| rng.u8(1..=16));
            let mut word = |_| match by {
                TileProduct::F16 => (0..2).fold(0, |word, _| {
                    let half = f16::from_f32(rng.i8(-9..9).into());
                    word << 16 | u32::from(half.to_bits())
                }),
                TileProduct::Bf16 => (0..2).fold(0, |word, _| {
                    word << 16 | (rng.i8(-9..9) as f32).to_bits() >> 16
                }),
                TileProduct::U8I8 => rng.u32(..),
            };
            let (a, b) = ([0u32; 256].map(&mut word), [0u32; 256].map(&mut word));
            let begun = [0u32; 256].map(|_| match by {
                TileProduct::U8I8 => rng.u32(..),
                _ => (rng.i8(..) as f32).to_bits(),
            });
            let mut c = begun;
            let code = product(by, [rows, words, columns], true);
            let addresses = [a.as_ptr() as u64, b.as_ptr() as u64, c.as_mut_ptr() as u64];
            let mut machine = Machine::new().readable(&a).readable(&b).writable(&mut c);
            machine.call(&code, &addresses).unwrap();
            drop(machine);
            for (at, found) in c.iter().enumerate() {
                let (i, j) = (at / 16, at % 16);
                let mut sum = match by {
                    TileProduct::U8I8 => begun[at] as i32,
                    _ => f32::from_bits(begun[at]) as i32,
                };
                if i < rows.into() && j < columns.into() {
                    for k in 0..usize::from(words) {
                        let (x, y) = (
                            terms(by, a[16 * i + k], false),
                            terms(by, b[16 * k + j], true),
                        );
                        let products = x.iter().zip(y).map(|(x, y)| x * y);
                        sum = products.fold(sum, i32::wrapping_add);
                    }
                }
                let expected = match by {
                    TileProduct::U8I8 => sum as u32,
                    _ => (sum as f32).to_bits(),
                };
                assert_eq!(
                    *found, expected,
                    "{by:?} {rows} {words} {columns} at {i}, {j}"
                );
            }
        }
    }
}

/// The first terms are summed apart from the second ones. Subnormal f16 are what they are, those of bf16 and of f32 zero.
#[test]
fn halves_are_rounded_as_the_manual_says() {
    let tile = |values: &[[f32; 2]], half: fn(f32) -> u16| -> [u32; 256] {
        let mut tile = [0; 256];
        for (i, [first, second]) in values.iter().enumerate() {
            tile[i] = u32::from(half(*first)) | u32::from(half(*second)) << 16;
        }
        tile
    };
    let sum = |by: TileProduct, begun: f32, values: [[f32; 2]; 2]| {
        let half: fn(f32) -> u16 = match by {
            TileProduct::F16 => |x| f16::from_f32(x).to_bits(),
            _ => |x| (x.to_bits() >> 16) as u16,
        };
        let (a, mut c) = (tile(&values, half), [begun.to_bits(); 256]);
        // Each row of the right operand is a word of ones.
        let ones = u32::from(half(1.0));
        let b = [ones | ones << 16; 256];
        let code = product(by, [1, 2, 1], true);
        let addresses = [a.as_ptr() as u64, b.as_ptr() as u64, c.as_mut_ptr() as u64];
        let mut machine = Machine::new().readable(&a).readable(&b).writable(&mut c);
        machine.call(&code, &addresses).unwrap();
        drop(machine);
        f32::from_bits(c[0])
    };
    let least = 2f32.powi(-24);
    assert_eq!(
        sum(TileProduct::F16, 0.0, [[least, least], [0.0; 2]]),
        2.0 * least
    );
    assert_eq!(
        sum(TileProduct::Bf16, 0.0, [[2f32.powi(-130), 0.0]; 2]),
        0.0
    );
    for by in [TileProduct::F16, TileProduct::Bf16] {
        assert_eq!(sum(by, 2f32.powi(-130), [[0.0; 2]; 2]), 0.0);
        // The second terms are 1 and -1, beside which the first ones, and what was there, are not lost.
        let tiny = 2f32.powi(-13);
        let values = [[tiny, 1.0], [tiny, -1.0]];
        assert_eq!(sum(by, 0.0, values), 2.0 * tiny);
        // A sum of 2^24 has no room for one more at a time, but for both of a pair.
        assert_eq!(
            sum(by, 2f32.powi(24), [[1.0, 1.0], [0.0; 2]]),
            2f32.powi(24) + 2.0
        );
    }
}

#[test]
fn tiles_of_f16_are_encoded_as_binutils_does() {
    let mut a = Asm::new(true);
    a.multiply_tiles(TileProduct::F16, SUMS, LEFT, RIGHT);
    assert_eq!(a.finish(), [0xc4, 0xe2, 0x43, 0x5c, 0xd8]);
}

#[test]
fn tiles_that_are_used_wrongly() {
    let fault = |code: &[u8], words: usize| {
        let mut x = vec![0u32; words];
        let at = x.as_mut_ptr() as u64;
        let mut machine = Machine::new().writable(&mut x);
        machine.call(code, &[at; 3]).unwrap_err().kind
    };
    let sizes = [16, 16, 16];
    assert_eq!(
        fault(&product(TileProduct::Bf16, sizes, false), 256),
        FaultKind::NotKept
    );
    assert_eq!(
        fault(&product(TileProduct::Bf16, sizes, true), 255),
        FaultKind::OutOfBounds
    );
    let code = |body: &dyn Fn(&mut Asm)| {
        let mut a = Asm::new(true);
        body(&mut a);
        a.release_tiles();
        a.leave(&[], 0);
        a.finish()
    };
    let by = TileProduct::U8I8;
    let none = code(&|a| a.multiply_tiles(by, SUMS, LEFT, RIGHT));
    let others = TileSizes::default()
        .with(SUMS, 4, 64)
        .with(LEFT, 4, 64)
        .with(RIGHT, 15, 64);
    let unfit = code(&|a| {
        a.configure_tiles(&others);
        a.multiply_tiles(by, SUMS, LEFT, RIGHT);
    });
    let same = code(&|a| {
        a.configure_tiles(&TileSizes::default().with(SUMS, 16, 64));
        a.multiply_tiles(by, SUMS, SUMS, SUMS);
    });
    for code in [none, unfit] {
        assert_eq!(fault(&code, 256), FaultKind::Tiles);
    }
    // The processor does not know this one.
    assert_eq!(fault(&same, 256), FaultKind::Unknown);
}
