//! Contents of registers and memory.

use fastrand::Rng;

/// 64 bytes of lanes of some type, special values among them.
pub fn line(rng: &mut Rng) -> [u8; 64] {
    let mut line = [0; 64];
    match rng.u8(..9) {
        0 => rng.fill(&mut line),
        1 => fill(&mut line, || special32(rng).to_le_bytes()),
        2 => fill(&mut line, || special64(rng).to_le_bytes()),
        3 => fill(&mut line, || special16(rng).to_le_bytes()),
        4 => fill(&mut line, || rng.i32(-40..70).to_le_bytes()),
        5 => fill(&mut line, || rng.i64(-80..140).to_le_bytes()),
        6 => fill(&mut line, || near(rng).to_le_bytes()),
        7 => fill(&mut line, || {
            (f64::from(near(rng)) * rng.f64()).to_le_bytes()
        }),
        _ => fill(&mut line, || {
            [[0x7F, 0x80, 0, 0xFF, 1, 0xFE][rng.usize(..6)]]
        }),
    }
    line
}

fn fill<const N: usize>(line: &mut [u8], mut f: impl FnMut() -> [u8; N]) {
    line.chunks_exact_mut(N)
        .for_each(|lane| lane.copy_from_slice(&f()));
}

/// Numbers in the range of integers, and halves between them.
fn near(rng: &mut Rng) -> f32 {
    let x = match rng.u8(..4) {
        0 => rng.i32(-20..20) as f32 / 4.0,
        1 => (1u64 << rng.u8(20..64)) as f32 + rng.i32(-3..3) as f32,
        2 => rng.i32(..) as f32,
        _ => rng.f32() * 1000.0,
    };
    if rng.bool() { x } else { -x }
}

const EXPONENTS32: [u32; 8] = [0, 0, 1, 127, 128, 150, 254, 255];

fn special32(rng: &mut Rng) -> u32 {
    let exponent = match rng.bool() {
        true => EXPONENTS32[rng.usize(..8)],
        false => rng.u32(60..200),
    };
    let fraction = [
        0,
        1,
        0x40_0000,
        0x7F_FFFF,
        0x1000,
        0x3000,
        0x8000,
        rng.u32(..1 << 23),
    ];
    rng.u32(..2) << 31 | exponent << 23 | fraction[rng.usize(..8)]
}

fn special64(rng: &mut Rng) -> u64 {
    let exponents = [
        0,
        0,
        1,
        1023,
        1024,
        1075,
        2046,
        2047,
        1023 - 127,
        1023 + 127,
        1023 - 149,
        1086,
    ];
    let exponent = match rng.bool() {
        true => exponents[rng.usize(..exponents.len())],
        false => rng.u64(900..1150),
    };
    let fraction = [
        0,
        1,
        1 << 51,
        (1 << 52) - 1,
        1 << 28,
        3 << 28,
        1 << 29,
        rng.u64(..1 << 52),
    ];
    rng.u64(..2) << 63 | exponent << 52 | fraction[rng.usize(..8)]
}

fn special16(rng: &mut Rng) -> u16 {
    let exponent = [0, 0, 1, 15, 16, 30, 31, rng.u16(..32)][rng.usize(..8)];
    let fraction = [0, 1, 0x200, 0x3FF, rng.u16(..1 << 10)][rng.usize(..5)];
    rng.u16(..2) << 15 | exponent << 10 | fraction
}
