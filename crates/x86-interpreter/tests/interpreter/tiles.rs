//! Products of tiles, which few processors have: beside sums of whole numbers.

use fastrand::Rng;
use kiln_x86::{Asm, Gpr, Mem, Tile, TileProduct, TileSizes};
use kiln_x86_interpreter::{FaultKind, Machine};

const SUMS: Tile = Tile(3);
const LEFT: Tile = Tile(0);
const RIGHT: Tile = Tile(7);

/// `*rdx += *rdi · *rsi`, rows of each 64 bytes apart, of so many rows, words of a row and columns.
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

/// The terms of a word, on either side.
fn terms(by: TileProduct, word: u32, on_the_right: bool) -> Vec<i32> {
    match by {
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
        for by in [TileProduct::Bf16, TileProduct::U8I8] {
            let [rows, words, columns] = [0; 3].map(|_| rng.u8(1..=16));
            let mut word = |_| match by {
                TileProduct::Bf16 => (0..2).fold(0, |word, _| {
                    word << 16 | (rng.i8(-9..9) as f32).to_bits() >> 16
                }),
                TileProduct::U8I8 => rng.u32(..),
            };
            let (a, b) = ([0u32; 256].map(&mut word), [0u32; 256].map(&mut word));
            let begun = [0u32; 256].map(|_| match by {
                TileProduct::Bf16 => (rng.i8(..) as f32).to_bits(),
                TileProduct::U8I8 => rng.u32(..),
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
                    TileProduct::Bf16 => f32::from_bits(begun[at]) as i32,
                    TileProduct::U8I8 => begun[at] as i32,
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
                    TileProduct::Bf16 => (sum as f32).to_bits(),
                    TileProduct::U8I8 => sum as u32,
                };
                assert_eq!(
                    *found, expected,
                    "{by:?} {rows} {words} {columns} at {i}, {j}"
                );
            }
        }
    }
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
    // Which the processor does not know.
    assert_eq!(fault(&same, 256), FaultKind::Unknown);
}
