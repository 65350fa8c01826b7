//! Conversions of 8-bit floats, by the formulas of [`Float8`]. Their bits are the low byte of each lane.

use super::ir::{Cmp, Ir, Src, Virt};
use super::value::to_registers;
use kiln_base::Float8;
use kiln_x86::op;

/// The sign bit.
const SIGN: i32 = 0x80;

/// Converts 8-bit floats to f32.
pub(super) fn widen(ir: &mut Ir, bits: Virt, float: Float8) -> Virt {
    let width = ir.width();
    let abs = ir.i32(0x7f);
    let abs = ir.op2(op::VPAND, bits, abs);
    let shift = 23 - float.fraction as u8;
    let aligned = ir.op1_with(op::VPSLLD, width, Some(shift), abs);
    let offset = ir.i32((127 - float.bias as i32) << 23);
    let normal = ir.op2(op::VPADDD, aligned, offset);
    let (count, smallest) = (ir.op1(op::VCVTDQ2PS, abs), ir.f32(float.smallest()));
    let subnormal = ir.op2(op::VMULPS, count, smallest);
    let min_normal = ir.i32(1 << float.fraction);
    let is_subnormal = ir.compare_int(false, Cmp::Gt, min_normal, abs.into());
    let finite = ir.select(false, is_subnormal, subnormal, normal);
    let magnitude = if float.fnuz {
        let (sign, nan) = (ir.i32(SIGN), ir.f32(f32::NAN));
        let is_nan = ir.compare_int(false, Cmp::Eq, bits.into(), sign);
        ir.select(false, is_nan, nan, finite)
    } else {
        let (largest, infinity) = (ir.i32(float.largest as i32), ir.f32(f32::INFINITY));
        let special = ir.op2(op::VPOR, aligned, infinity);
        let is_special = ir.compare_int(false, Cmp::Gt, abs.into(), largest);
        ir.select(false, is_special, special, finite)
    };
    let sign = ir.i32(SIGN);
    let sign = ir.op2(op::VPAND, bits, sign);
    let sign = ir.op1_with(op::VPSLLD, width, Some(24), sign);
    ir.op2(op::VPOR, magnitude, sign)
}

/// Rounds f32 to the bits of the nearest 8-bit floats.
pub(super) fn round(ir: &mut Ir, x: Src, float: Float8) -> Virt {
    let width = ir.width();
    let [x, _] = to_registers(ir, [x, x]);
    let abs = ir.i32(i32::MAX);
    let abs = ir.op2(op::VPAND, x, abs);
    let shift = 23 - float.fraction as u8;
    let (lsb, one) = (ir.op1_with(op::VPSRLD, width, Some(shift), abs), ir.i32(1));
    let odd = ir.op2(op::VPAND, lsb, one);
    let rounded_up = ir.op2(op::VPADDD, abs, odd);
    let offset = ir.i32((1 << (shift - 1)) - 1 - ((127 - float.bias as i32) << 23));
    let rounded_up = ir.op2(op::VPADDD, rounded_up, offset);
    let normal = ir.op1_with(op::VPSRLD, width, Some(shift), rounded_up);
    let aligner = ir.f32(float.aligner());
    let subnormal = ir.op2(op::VADDPS, abs, aligner);
    let subnormal = ir.op2(op::VPSUBD, subnormal, aligner);
    let min_normal = ir.i32(float.least_normal() as i32);
    let is_subnormal = ir.compare_int(false, Cmp::Gt, min_normal, abs.into());
    let finite = ir.select(false, is_subnormal, subnormal, normal);
    let largest = ir.i32(float.largest as i32);
    let is_overflow = ir.compare_int(false, Cmp::Gt, finite.into(), largest);
    let overflow = ir.i32(float.largest as i32 + 1);
    let magnitude = ir.select(false, is_overflow, overflow, finite);
    let sign = ir.op1_with(op::VPSRLD, width, Some(24), x);
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
