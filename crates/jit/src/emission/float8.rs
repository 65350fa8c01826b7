//! Floats of 8 bits, by the formulas of [`Float8`]. Their bits are the low byte of each lane.

use super::ir::{Cmp, Ir, Src, Virt};
use super::value::in_registers;
use kiln_base::Float8;
use kiln_x86::op;

/// The bit of the sign.
const SIGN: i32 = 0x80;

/// Returns the numbers with these bits, as f32.
pub(super) fn widen(ir: &mut Ir, bits: Virt, float: Float8) -> Virt {
    let width = ir.width();
    let rest = ir.i32(0x7f);
    let rest = ir.op2(op::VPAND, bits, rest);
    let up = 23 - float.fraction as u8;
    let aligned = ir.op1_of(op::VPSLLD, width, Some(up), rest);
    let offset = ir.i32((127 - float.bias as i32) << 23);
    let normal = ir.op2(op::VPADDD, aligned, offset);
    let (count, smallest) = (ir.op1(op::VCVTDQ2PS, rest), ir.f32(float.smallest()));
    let tiny = ir.op2(op::VMULPS, count, smallest);
    let least = ir.i32(1 << float.fraction);
    let is_tiny = ir.compare_int(false, Cmp::Gt, least, rest.into());
    let finite = ir.select(false, is_tiny, tiny, normal);
    let magnitude = if float.fnuz {
        let (sign, nan) = (ir.i32(SIGN), ir.f32(f32::NAN));
        let is_nan = ir.compare_int(false, Cmp::Eq, bits.into(), sign);
        ir.select(false, is_nan, nan, finite)
    } else {
        let (largest, infinity) = (ir.i32(float.largest as i32), ir.f32(f32::INFINITY));
        let beyond = ir.op2(op::VPOR, aligned, infinity);
        let is_beyond = ir.compare_int(false, Cmp::Gt, rest.into(), largest);
        ir.select(false, is_beyond, beyond, finite)
    };
    let sign = ir.i32(SIGN);
    let sign = ir.op2(op::VPAND, bits, sign);
    let sign = ir.op1_of(op::VPSLLD, width, Some(24), sign);
    ir.op2(op::VPOR, magnitude, sign)
}

/// Returns the bits of the nearest numbers.
pub(super) fn round(ir: &mut Ir, x: Src, float: Float8) -> Virt {
    let width = ir.width();
    let [x, _] = in_registers(ir, [x, x]);
    let rest = ir.i32(i32::MAX);
    let rest = ir.op2(op::VPAND, x, rest);
    let cut = 23 - float.fraction as u8;
    let (last, one) = (ir.op1_of(op::VPSRLD, width, Some(cut), rest), ir.i32(1));
    let odd = ir.op2(op::VPAND, last, one);
    let up = ir.op2(op::VPADDD, rest, odd);
    let offset = ir.i32((1 << (cut - 1)) - 1 - ((127 - float.bias as i32) << 23));
    let up = ir.op2(op::VPADDD, up, offset);
    let normal = ir.op1_of(op::VPSRLD, width, Some(cut), up);
    let aligner = ir.f32(float.aligner());
    let tiny = ir.op2(op::VADDPS, rest, aligner);
    let tiny = ir.op2(op::VPSUBD, tiny, aligner);
    let least = ir.i32(float.least_normal() as i32);
    let is_tiny = ir.compare_int(false, Cmp::Gt, least, rest.into());
    let near = ir.select(false, is_tiny, tiny, normal);
    let largest = ir.i32(float.largest as i32);
    let is_beyond = ir.compare_int(false, Cmp::Gt, near.into(), largest);
    let beyond = ir.i32(float.largest as i32 + 1);
    let magnitude = ir.select(false, is_beyond, beyond, near);
    let sign = ir.op1_of(op::VPSRLD, width, Some(24), x);
    let mask = ir.i32(SIGN);
    let sign = ir.op2(op::VPAND, sign, mask);
    let signed = ir.op2(op::VPOR, magnitude, sign);
    if float.fnuz {
        let zero = ir.i32(0);
        let is_zero = ir.compare_int(false, Cmp::Eq, magnitude.into(), zero);
        return ir.select(false, is_zero, zero, signed);
    }
    let nan = ir.i32(0x7f);
    let nan = ir.op2(op::VPOR, sign, nan);
    let is_nan = ir.compare(false, Cmp::Unordered, x, x);
    ir.select(false, is_nan, nan, signed)
}
