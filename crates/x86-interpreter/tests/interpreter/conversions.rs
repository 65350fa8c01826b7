//! Conversions of all numbers of 16 bits, and of the 32-bit numbers at the boundaries.

use crate::harness::{Registers, difference, interpreted, native, runs_here, wrapped};
use kiln_x86::{Code, Op, Vreg, Width, op};

/// Converts vectors in `v1` to `v0` on the processor and the interpreter and compares.
fn compare(op: Op, immediate: Option<u8>, from: impl Iterator<Item = [u8; 32]>) {
    let code = wrapped(false, |a| match immediate {
        Some(n) => a.op(op, Width::Y, (Vreg(0), Vreg(1), n)),
        None => a.op(op, Width::Y, (Vreg(0), Vreg(1))),
    });
    if !runs_here(&code) {
        println!("skipped: this processor does not have {}", op.name);
        return;
    }
    let native_code = Code::new(&code).unwrap();
    let mut before = Registers::zero();
    for lanes in from {
        before.vectors[1][..32].copy_from_slice(&lanes);
        let here = interpreted(&code, &before, &mut []).unwrap();
        let there = native(&native_code, &before, &mut []);
        assert!(
            there == here,
            "{} {immediate:?} {}",
            op.name,
            difference(&there, &here, &before)
        );
    }
}

fn lanes<const N: usize>(numbers: &[[u8; N]]) -> [u8; 32] {
    let mut lanes = [0; 32];
    (lanes.chunks_exact_mut(N).zip(numbers)).for_each(|(lane, n)| lane.copy_from_slice(n));
    lanes
}

#[test]
fn all_of_16_bits_widen() {
    let all: Vec<[u8; 2]> = (0..=u16::MAX).map(u16::to_le_bytes).collect();
    compare(op::VCVTPH2PS, None, all.chunks(8).map(lanes));
}

/// Between each two adjacent numbers of 16 bits: the smallest number above the lower one, the middle, its neighbours.
#[test]
fn boundaries_of_16_bits_narrow() {
    let near = |high: u32| {
        let low = [0u32, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF];
        low.map(|low| (high << 13 | low).to_le_bytes())
    };
    // Exponents slightly beyond those of 16 bits, and NaNs.
    let exponents = (98..145).chain([0, 255]);
    let highs = exponents.flat_map(|e| (0..1 << 10).step_by(3).map(move |f| e << 10 | f));
    let all: Vec<[u8; 4]> = (highs.flat_map(|h| [h, h | 1 << 18]))
        .flat_map(near)
        .collect();
    for rounding in [0, 1, 2, 3, 4] {
        let step = if rounding == 0 { 1 } else { 7 };
        compare(
            op::VCVTPS2PH,
            Some(rounding),
            all.chunks(8).step_by(step).map(lanes),
        );
    }
}

/// Around the smallest and the largest integer of 32 bits.
#[test]
fn boundaries_of_integers() {
    let around = |x: f32| (0..64).map(move |i| (x.to_bits() + i - 32).to_le_bytes());
    let signs = [1.0f32, -1.0];
    let all = [
        0.5,
        1.5,
        2.5,
        8388608.0,
        2147483648.0,
        4294967296.0,
        9223372036854775808.0,
    ];
    let all: Vec<[u8; 4]> = (all.iter().flat_map(|x| signs.map(|s| s * x)))
        .flat_map(around)
        .collect();
    for op in [op::VCVTPS2DQ, op::VCVTTPS2DQ] {
        compare(op, None, all.chunks(8).map(lanes));
    }
}
