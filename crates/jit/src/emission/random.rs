//! Random numbers: Philox as in [`prim::random_words`](kiln_base::prim::random_words), with a block per lane of 64
//! bits.

use super::ir::{Cmp, Ir, Virt};
use super::math;
use super::value::{Value, to_registers};
use kiln_base::Compute;
use kiln_x86::op;
use std::f32::consts::TAU;

/// Returns the four words of Philox blocks, each in the low half of a lane. A block gives `numbers` numbers.
fn philox_words(ir: &mut Ir, block: Virt, key: Virt, numbers: u32) -> [Virt; 4] {
    let width = ir.width();
    let high = |ir: &mut Ir, x: Virt| ir.op1_with(op::VPSRLQ, width, Some(32), x);
    let (m0, m1) = (ir.i64(0xD251_1F53), ir.i64(0xCD9E_8D57));
    let zero = ir.i64(0);
    let tag = ir.i64(i64::from(numbers) - 1);
    let [c1, mut k1] = [high(ir, block), high(ir, key)];
    let [c2, c3] = to_registers(ir, [tag, zero]);
    let (mut c, mut k0) = ([block, c1, c2, c3], key);
    for _ in 0..10 {
        let a = ir.op2(op::VPMULUDQ, c[0], m0);
        let b = ir.op2(op::VPMULUDQ, c[2], m1);
        // The upper halves contain garbage, which is never read.
        let mix = |ir: &mut Ir, product: Virt, word: Virt, key: Virt| {
            let upper = high(ir, product);
            let x = ir.op2(op::VPXOR, upper, word);
            ir.op2(op::VPXOR, x, key)
        };
        c = [mix(ir, b, c[1], k0), b, mix(ir, a, c[3], k1), a];
        let (d0, d1) = (ir.i32(0x9E37_79B9u32 as i32), ir.i32(0xBB67_AE85u32 as i32));
        k0 = ir.op2(op::VPADDD, k0, d0);
        k1 = ir.op2(op::VPADDD, k1, d1);
    }
    c
}

/// Returns uniform `f32` in [0, 1) for each position. If positions are `consecutive` and the seed is uniform, lanes
/// share blocks.
pub(super) fn uniform(ir: &mut Ir, seed: Value, position: Value, consecutive: bool) -> Value {
    let word = match consecutive {
        true => consecutive_words(ir, seed, position),
        false => words_by_lane(ir, seed, position),
    };
    Value::new(Compute::F32, to_unit_interval(ir, word))
}

/// Scales the upper 24 bits of a word to [0, 1).
fn to_unit_interval(ir: &mut Ir, word: Virt) -> Virt {
    let (width, scale) = (ir.width(), ir.f32(1.0 / (1 << 24) as f32));
    let bits = ir.op1_with(op::VPSRLD, width, Some(8), word);
    let x = ir.op1(op::VCVTDQ2PS, bits);
    ir.op2(op::VMULPS, x, scale)
}

/// Returns standard normal `f32` from two words each, as in [`prim::random_polar`](kiln_base::prim::random_polar).
pub(super) fn normal(ir: &mut Ir, seed: Value, position: Value) -> Value {
    let (seeds, positions) = (
        to_registers(ir, seed.parts),
        to_registers(ir, position.parts),
    );
    let (width, one) = (ir.width(), ir.i64(1));
    let words = [0, 1].map(|p| {
        let block = ir.op1_with(op::VPSRLQ, width, Some(1), positions[p]);
        let [w0, w1, w2, w3] = philox_words(ir, block, seeds[p], 2);
        let index = ir.op2(op::VPAND, positions[p], one);
        let is_second = ir.compare_int(true, Cmp::Eq, index.into(), one);
        [
            ir.select(true, is_second, w2, w0),
            ir.select(true, is_second, w3, w1),
        ]
    });
    let [first, second] = [0, 1].map(|n| ir.truncate64(words[0][n], words[1][n]));
    let (one, scale) = (ir.f32(1.0), ir.f32(1.0 / (1u32 << 31) as f32));
    let u = ir.op1_with(op::VPSRLD, width, Some(1), first);
    let u = ir.op1(op::VCVTDQ2PS, u);
    let u = ir.op2(op::VADDPS, u, one);
    let u = ir.op2(op::VMULPS, u, scale);
    let (unit, tau) = (to_unit_interval(ir, second), ir.f32(TAU));
    let angle = ir.op2(op::VMULPS, unit, tau);
    Value::new(Compute::F32, math::polar(ir, u, angle))
}

/// Returns the word of each position.
fn words_by_lane(ir: &mut Ir, seed: Value, position: Value) -> Virt {
    let width = ir.width();
    let (seeds, positions) = (
        to_registers(ir, seed.parts),
        to_registers(ir, position.parts),
    );
    let three = ir.i64(3);
    let parts = [0, 1].map(|p| {
        let block = ir.op1_with(op::VPSRLQ, width, Some(2), positions[p]);
        let [mut word, rest @ ..] = philox_words(ir, block, seeds[p], 4);
        let index = ir.op2(op::VPAND, positions[p], three);
        for (n, other) in rest.into_iter().enumerate() {
            let n = ir.i64(n as i64 + 1);
            let is_selected = ir.compare_int(true, Cmp::Eq, index.into(), n);
            word = ir.select(true, is_selected, other, word);
        }
        word
    });
    ir.truncate64(parts[0], parts[1])
}

/// Returns the words of consecutive positions, which are those of a few blocks in order.
fn consecutive_words(ir: &mut Ir, seed: Value, position: Value) -> Virt {
    let (width, lanes) = (ir.width(), ir.target.lanes());
    let [first, _] = to_registers(ir, position.parts);
    let [seed, _] = to_registers(ir, seed.parts);
    let table = |numbers: &dyn Fn(usize) -> u64, size: usize| {
        let bytes = (0..64 / size).flat_map(|i| numbers(i).to_le_bytes()[..size].to_vec());
        let bytes: Vec<u8> = bytes.collect();
        std::array::from_fn(|i| bytes[i])
    };
    let (lane64, lane32) = (
        ir.vector(table(&|i| 4 * i as u64, 8)),
        ir.vector(table(&|i| i as u64, 4)),
    );
    let first32 = ir.op1(op::VPBROADCASTD, first);
    let first = ir.op1(op::VPBROADCASTQ, first);
    // Positions may wrap around to 0.
    let block_mask = ir.i64(!3);
    let block = ir.op2(op::VANDPD, first, block_mask);
    let block = ir.op2(op::VPADDQ, block, lane64);
    let block = ir.op1_with(op::VPSRLQ, width, Some(2), block);
    let [w0, w1, w2, w3] = philox_words(ir, block, seed, 4);
    let low = ir.i64(0xffff_ffff);
    let pair = |ir: &mut Ir, a: Virt, b: Virt| {
        let a = ir.op2(op::VANDPD, a, low);
        let b = ir.op1_with(op::VPSLLQ, width, Some(32), b);
        ir.op2(op::VPOR, a, b)
    };
    let (even, odd) = (pair(ir, w0, w1), pair(ir, w2, w3));
    // Word `w` of block `b` is at `2b + w % 2` of the first pair or the second.
    let (one, two, three) = (ir.i32(1), ir.i32(2), ir.i32(3));
    let word = ir.op2(op::VPAND, first32, three);
    let word = ir.op2(op::VPADDD, word, lane32);
    let block = ir.op1_with(op::VPSRLD, width, Some(2), word);
    let block = ir.op2(op::VPADDD, block, block);
    let at = ir.op2(op::VPAND, word, one);
    let at = ir.op2(op::VPADDD, at, block);
    let second = ir.op2(op::VPAND, word, two);
    if lanes == 16 {
        let second = ir.op1_with(op::VPSLLD, width, Some(3), second);
        let at = ir.op2(op::VPADDD, at, second);
        return ir.tied(op::VPERMT2PS, even.into(), at.into(), odd.into());
    }
    let [even, odd] = [even, odd].map(|x| ir.op2(op::VPERMPS, at, x));
    let is_second = ir.compare_int(false, Cmp::Eq, second.into(), two);
    ir.select(false, is_second, odd, even)
}
