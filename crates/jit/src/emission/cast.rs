//! Conversions between register types, with the semantics of casts.

use super::ir::{Cmp, Ir, Src, Virt};
use super::primitive::{is_nonzero, mask_to_number};
use super::value::{NotEmitted, Value, is_wide, to_registers};
use super::{float8, native};
use kiln_base::{Compute, DType};
use kiln_x86::{MaskOp, op};

/// Converts a value of dtype `from` to dtype `to`.
pub(super) fn convert(ir: &mut Ir, a: Value, from: DType, to: DType) -> Result<Value, NotEmitted> {
    let ty = to.compute();
    match ty {
        Compute::Mask => return Ok(Value::new(ty, is_nonzero(ir, a)?)),
        // Every dtype holds 0 and 1.
        _ if a.ty == Compute::Mask => return mask_to_number(ir, a.mask()?, ty),
        _ => {}
    }
    let value = match ty {
        // The register holds a u64 as an i64, whose value may differ.
        _ if from == DType::U64 && (ty.is_float() || to == DType::U32) => Err(NotEmitted),
        Compute::F32 => to_f32(ir, a, to),
        Compute::F64 => to_f64(ir, a),
        Compute::I32 => to_i32(ir, a, to),
        _ => to_i64(ir, a, to),
    };
    Ok(value.unwrap_or_else(|_| native::add_cast(ir, a, from, to)))
}

/// Rounds f32 to bf16, in the low half of each lane. If the value was widened from bf16, returns those bits.
pub(super) fn to_bf16(ir: &mut Ir, x: Src) -> Virt {
    let width = ir.width();
    if let Some((producer, Some(16), [Some(Src::Virt(bits)), None, None])) = ir.definition(x)
        && producer.name == op::VPSLLD.name
    {
        return bits;
    }
    let [x, _] = to_registers(ir, [x, x]);
    let upper = ir.op1_with(op::VPSRLD, width, Some(16), x);
    let (one, bias, nan) = (ir.i32(1), ir.i32(0x7fff), ir.i32(0x7fc0));
    let odd = ir.op2(op::VPAND, upper, one);
    let rounding = ir.op2(op::VPADDD, odd, bias);
    let rounded = ir.op2(op::VPADDD, rounding, x);
    let rounded = ir.op1_with(op::VPSRLD, width, Some(16), rounded);
    let is_nan = ir.compare(false, Cmp::Unordered, x, x);
    ir.select(false, is_nan, nan, rounded)
}

fn to_f32(ir: &mut Ir, a: Value, to: DType) -> Result<Value, NotEmitted> {
    let width = ir.width();
    let parts = to_registers(ir, a.parts);
    let value = match a.ty {
        Compute::F32 if to == DType::F16 => {
            let bits = ir.op1_with(op::VCVTPS2PH, width, Some(0), parts[0]);
            ir.op1(op::VCVTPH2PS, bits)
        }
        Compute::F32 if to == DType::BF16 => {
            let bits = to_bf16(ir, parts[0].into());
            ir.op1_with(op::VPSLLD, width, Some(16), bits)
        }
        Compute::F32 => match to.float8() {
            Some(float) => {
                let bits = float8::round(ir, parts[0].into(), float);
                float8::widen(ir, bits, float)
            }
            None => parts[0],
        },
        // Narrow floats are rounded once, from f64.
        _ if to.is_narrow_float() => return Err(NotEmitted),
        Compute::I32 => ir.op1(op::VCVTDQ2PS, parts[0]),
        Compute::F64 => {
            let [low, high] = parts.map(|p| ir.op1(op::VCVTPD2PS, p));
            ir.join_halves(low, high)
        }
        Compute::I64 if ir.target.evex => {
            let [low, high] = parts.map(|p| ir.op1(op::VCVTQQ2PS, p));
            ir.join_halves(low, high)
        }
        Compute::I64 => {
            let [low, high] = parts.map(|p| {
                let x = round_to_odd(ir, p);
                let x = i64_to_f64(ir, x);
                ir.op1(op::VCVTPD2PS, x)
            });
            ir.join_halves(low, high)
        }
        _ => return Err(NotEmitted),
    };
    Ok(Value::new(Compute::F32, value))
}

/// Returns the f64 nearest to an i64, without VCVTQQ2PD. The upper and lower 32 bits become the low bits of two f64s
/// with fixed exponents, which are added.
fn i64_to_f64(ir: &mut Ir, x: Virt) -> Virt {
    let width = ir.width();
    let (two_84, two_52) = (0x4530_0000_0000_0000, 0x4330_0000_0000_0000);
    let (sign, half) = (ir.i64(two_84 ^ 1 << 31), ir.i64(0xffff_ffff));
    let upper = ir.op1_with(op::VPSRLQ, width, Some(32), x);
    // Flipping the sign bit adds 2^63.
    let upper = ir.op2(op::VPXOR, upper, sign);
    let bias = ir.f64(2f64.powi(84) + 2f64.powi(63) + 2f64.powi(52));
    let upper = ir.op2(op::VSUBPD, upper, bias);
    let lower = ir.op2(op::VPAND, x, half);
    let two_52 = ir.i64(two_52);
    let lower = ir.op2(op::VPOR, lower, two_52);
    ir.op2(op::VADDPD, upper, lower)
}

/// Rounds integers beyond ±2^53 to odd: to integers that an f64 holds, whose last bit is set if bits were discarded.
/// The result then rounds to the same f32 as the original.
fn round_to_odd(ir: &mut Ir, x: Virt) -> Virt {
    let (max, min) = (ir.i64(1 << 53), ir.i64(-(1 << 53)));
    let above = ir.compare_int(true, Cmp::Gt, x.into(), max);
    let below = ir.compare_int(true, Cmp::Gt, min, x.into());
    let is_inexact = ir.mask_op(MaskOp::Or, above, below);
    let (discarded, odd_bit, kept_bits) = (ir.i64(0x7ff), ir.i64(0x800), ir.i64(!0x7ff));
    let discarded_bits = ir.op2(op::VPAND, x, discarded);
    let discarded_bits = ir.op2(op::VPADDQ, discarded_bits, discarded);
    let odd = ir.op2(op::VPAND, discarded_bits, odd_bit);
    let truncated = ir.op2(op::VPAND, x, kept_bits);
    let y = ir.op2(op::VPOR, truncated, odd);
    ir.select(true, is_inexact, y, x)
}

fn to_f64(ir: &mut Ir, a: Value) -> Result<Value, NotEmitted> {
    let parts = to_registers(ir, a.parts);
    let parts = match a.ty {
        Compute::F64 => parts,
        Compute::F32 | Compute::I32 => {
            let op = match a.ty {
                Compute::F32 => op::VCVTPS2PD,
                _ => op::VCVTDQ2PD,
            };
            let upper = ir.upper_half(parts[0]);
            [ir.op1(op, parts[0]), ir.op1(op, upper)]
        }
        Compute::I64 if ir.target.evex => parts.map(|p| ir.op1(op::VCVTQQ2PD, p)),
        Compute::I64 => parts.map(|p| i64_to_f64(ir, p)),
        _ => return Err(NotEmitted),
    };
    Ok(Value {
        ty: Compute::F64,
        parts: parts.map(Src::Virt),
    })
}

/// Returns the range of an integer dtype.
fn int_range(to: DType) -> Option<(f64, f64)> {
    let (low, high) = to.int_range()?;
    Some((low as f64, high as f64))
}

/// The clamp of an f32 before its conversion to an integer. The bounds are exact in f32.
struct Clamp {
    x: Src,
    bounds: (f64, f64),
    /// True if the conversion rounds to nearest, instead of towards zero.
    nearest: bool,
}

impl Clamp {
    /// Returns the clamp of a value to a dtype's range, with the clamps and roundings that produce the value folded in.
    fn new(ir: &Ir, mut x: Src, (mut low, mut high): (f64, f64)) -> Clamp {
        let mut nearest = false;
        while let Some((op, immediate, [Some(a), b, None])) = ir.definition(x) {
            let is_integer = |n: f64| n.fract() == 0.0;
            let bound = ir.constant_value(false, a).filter(|n| !n.is_nan());
            match (op.name, bound, b) {
                ("VMAXPS", Some(bound), Some(b)) if !nearest || is_integer(bound) => {
                    low = bound.clamp(low, high);
                    x = b;
                }
                ("VMINPS", Some(bound), Some(b)) if !nearest || is_integer(bound) => {
                    high = bound.clamp(low, high);
                    x = b;
                }
                ("VROUNDPS", ..) if immediate == Some(8) && is_integer(low) && is_integer(high) => {
                    nearest = true;
                    x = a;
                }
                _ => break,
            }
        }
        let bounds = (low, high);
        Clamp { x, bounds, nearest }
    }
}

/// Clamps `x` to a range; NaN becomes 0.
fn clamp(ir: &mut Ir, wide: bool, x: Src, (low, high): (f64, f64)) -> Virt {
    let pick = |single, double| if wide { double } else { single };
    let is_zero = low == 0.0;
    let (low, high) = match wide {
        true => (ir.f64(low), ir.f64(high)),
        false => (ir.f32(low as f32), ir.f32(high as f32)),
    };
    if is_zero {
        // If one operand is NaN, these instructions return the second.
        let [x, _] = to_registers(ir, [x, x]);
        let y = ir.op2(pick(op::VMAXPS, op::VMAXPD), x, low);
        return ir.op2(pick(op::VMINPS, op::VMINPD), y, high);
    }
    let y = ir.op2(pick(op::VMAXPS, op::VMAXPD), low, x);
    let y = ir.op2(pick(op::VMINPS, op::VMINPD), high, y);
    let zero = if wide { ir.i64(0) } else { ir.i32(0) };
    let is_nan = ir.compare(wide, Cmp::Unordered, x, x);
    ir.select(wide, is_nan, zero, y)
}

fn to_i32(ir: &mut Ir, a: Value, to: DType) -> Result<Value, NotEmitted> {
    let width = ir.width();
    let range = int_range(to).ok_or(NotEmitted)?;
    let value = match a.ty {
        Compute::F32 if to == DType::I32 => {
            let x = a.parts[0];
            let truncated = ir.op1(op::VCVTTPS2DQ, x);
            // Numbers out of range and NaN are converted to the minimum. From 2^31 on, inverting its bits gives the
            // maximum.
            let (limit, zero, ones) = (ir.f32(2_147_483_648.0), ir.i32(0), ir.i32(-1));
            let is_large = ir.compare(false, Cmp::Ge, x, limit);
            let flipped = ir.op2(op::VPXOR, truncated, ones);
            let saturated = ir.select(false, is_large, flipped, truncated);
            let is_nan = ir.compare(false, Cmp::Unordered, x, x);
            ir.select(false, is_nan, zero, saturated)
        }
        Compute::F32 => {
            let Clamp { x, bounds, nearest } = Clamp::new(ir, a.parts[0], range);
            let y = clamp(ir, false, x, bounds);
            match nearest {
                true => ir.op1(op::VCVTPS2DQ, y),
                false => ir.op1(op::VCVTTPS2DQ, y),
            }
        }
        Compute::F64 => {
            let [low, high] = a.parts.map(|p| {
                let y = clamp(ir, true, p, range);
                ir.op1(op::VCVTTPD2DQ, y)
            });
            ir.join_halves(low, high)
        }
        Compute::I32 | Compute::I64 => {
            let parts = to_registers(ir, a.parts);
            let narrow = match a.ty {
                Compute::I32 => parts[0],
                _ => ir.truncate64(parts[0], parts[1]),
            };
            let sign_extend = |ir: &mut Ir, n: u8| {
                let shifted = ir.op1_with(op::VPSLLD, width, Some(n), narrow);
                ir.op1_with(op::VPSRAD, width, Some(n), shifted)
            };
            match to {
                DType::I8 => sign_extend(ir, 24),
                DType::I16 => sign_extend(ir, 16),
                DType::U8 | DType::U16 => {
                    let bits = ir.i32(if to == DType::U8 { 0xff } else { 0xffff });
                    ir.op2(op::VPAND, narrow, bits)
                }
                _ => narrow,
            }
        }
        Compute::Mask => return Err(NotEmitted),
    };
    Ok(Value::new(Compute::I32, value))
}

fn to_i64(ir: &mut Ir, a: Value, to: DType) -> Result<Value, NotEmitted> {
    let ty = Compute::I64;
    if a.ty.is_float() {
        if !ir.target.evex || to == DType::U64 {
            return Err(NotEmitted);
        }
        let a = to_f64(ir, a)?;
        return Ok(Value::from_parts(ty, |p| {
            let x = a.parts[usize::from(p)];
            if to == DType::U32 {
                let y = clamp(ir, true, x, (0.0, f64::from(u32::MAX)));
                return ir.op1(op::VCVTTPD2QQ, y).into();
            }
            // As for 32 bits.
            let truncated = ir.op1(op::VCVTTPD2QQ, x);
            let limit = ir.f64(9_223_372_036_854_775_808.0);
            let (zero, ones) = (ir.i64(0), ir.i64(-1));
            let is_large = ir.compare(true, Cmp::Ge, x, limit);
            let flipped = ir.op2(op::VPXOR, truncated, ones);
            let saturated = ir.select(true, is_large, flipped, truncated);
            let is_nan = ir.compare(true, Cmp::Unordered, x, x);
            ir.select(true, is_nan, zero, saturated).into()
        }));
    }
    let parts = to_registers(ir, a.parts);
    let parts = match is_wide(a.ty) {
        true => parts,
        false => {
            let upper = ir.upper_half(parts[0]);
            [
                ir.op1(op::VPMOVSXDQ, parts[0]),
                ir.op1(op::VPMOVSXDQ, upper),
            ]
        }
    };
    let parts = match to {
        DType::U32 => {
            let bits = ir.i64(0xffff_ffff);
            parts.map(|p| ir.op2(op::VPAND, p, bits))
        }
        _ => parts,
    };
    Ok(Value {
        ty,
        parts: parts.map(Src::Virt),
    })
}
