//! Primitives on values of a group of lanes.

use super::ir::{Cmp, Ir, Src, Virt};
use super::value::{NotEmitted, Value, in_registers, is_wide};
use super::{math, native};
use kiln_base::Compute;
use kiln_base::prim::{Binary, Unary};
use kiln_x86::{MaskOp, op};

/// Returns `mask ? a : b`.
pub(super) fn select(ir: &mut Ir, m: Virt, a: Value, b: Value) -> Result<Value, NotEmitted> {
    let ty = a.ty;
    if ty == Compute::Mask {
        let (a, b) = (a.mask()?, b.mask()?);
        let left = ir.masks(MaskOp::And, m, a);
        let right = ir.masks(MaskOp::AndNot, m, b);
        return Ok(Value::one(ty, ir.masks(MaskOp::Or, left, right)));
    }
    if !is_wide(ty) {
        return Ok(Value::one(ty, ir.select(false, m, a.parts[0], b.parts[0])));
    }
    let masks = ir.split_mask(m);
    Ok(Value::of(ty, |p| {
        let p = usize::from(p);
        ir.select(true, masks[p], a.parts[p], b.parts[p]).into()
    }))
}

/// Returns a mask computed for each part of a value.
pub(super) fn per_part(
    ir: &mut Ir,
    ty: Compute,
    mut f: impl FnMut(&mut Ir, usize) -> Virt,
) -> Value {
    let low = f(ir, 0);
    if !is_wide(ty) {
        return Value::one(Compute::Mask, low);
    }
    let high = f(ir, 1);
    Value::one(Compute::Mask, ir.join_masks(low, high))
}

/// Returns a value computed for each part of another.
fn each(ir: &mut Ir, ty: Compute, mut f: impl FnMut(&mut Ir, usize) -> Virt) -> Value {
    Value::of(ty, |p| f(ir, usize::from(p)).into())
}

/// Returns 1 where a mask is set, otherwise 0.
pub(super) fn as_number(ir: &mut Ir, m: Virt, ty: Compute) -> Result<Value, NotEmitted> {
    let of = |ir: &mut Ir, x: i64| {
        let part = match ty {
            Compute::F32 => ir.f32(x as f32),
            Compute::F64 => ir.f64(x as f64),
            Compute::I32 => ir.i32(x as i32),
            _ => ir.i64(x),
        };
        Value {
            ty,
            parts: [part, part],
        }
    };
    let (one, zero) = (of(ir, 1), of(ir, 0));
    select(ir, m, one, zero)
}

/// Returns zero of a type.
pub(super) fn zero(ir: &mut Ir, ty: Compute) -> Src {
    if is_wide(ty) { ir.i64(0) } else { ir.i32(0) }
}

/// Returns a mask of the lanes where a value is not zero.
pub(super) fn is_set(ir: &mut Ir, a: Value) -> Result<Virt, NotEmitted> {
    if a.ty == Compute::Mask {
        return a.mask();
    }
    let zero = zero(ir, a.ty);
    let wide = is_wide(a.ty);
    per_part(ir, a.ty, |ir, p| match a.ty.is_float() {
        true => ir.compare(wide, Cmp::Ne, a.parts[p], zero),
        false => ir.compare_int(wide, Cmp::Ne, a.parts[p], zero),
    })
    .mask()
}

/// Returns a primitive on one value.
pub(super) fn unary(ir: &mut Ir, what: Unary, a: Value) -> Result<Value, NotEmitted> {
    match a.ty {
        Compute::F32 | Compute::F64 => float_unary(ir, what, a),
        Compute::I32 | Compute::I64 => int_unary(ir, what, a),
        Compute::Mask => {
            let m = a.mask()?;
            Ok(Value::one(Compute::Mask, ir.not_mask(m)))
        }
    }
}

fn float_unary(ir: &mut Ir, what: Unary, a: Value) -> Result<Value, NotEmitted> {
    use Unary::*;
    let ty = a.ty;
    let wide = is_wide(ty);
    let pick = |single, double| if wide { double } else { single };
    let width = ir.width();
    let constant = |ir: &mut Ir, x: f64| match wide {
        true => ir.f64(x),
        false => ir.f32(x as f32),
    };
    let magnitude = |ir: &mut Ir| match wide {
        true => ir.i64(i64::MAX),
        false => ir.i32(i32::MAX),
    };
    Ok(match what {
        Neg => {
            let sign = constant(ir, -0.0);
            let xor = pick(op::VXORPS, op::VXORPD);
            each(ir, ty, |ir, p| ir.either(xor, a.parts[p], sign))
        }
        Abs => {
            let bits = magnitude(ir);
            let and = pick(op::VANDPS, op::VANDPD);
            each(ir, ty, |ir, p| ir.either(and, a.parts[p], bits))
        }
        Not => {
            let zero = zero(ir, ty);
            let m = per_part(ir, ty, |ir, p| ir.compare(wide, Cmp::Eq, a.parts[p], zero));
            as_number(ir, m.mask()?, ty)?
        }
        Sqrt => each(ir, ty, |ir, p| {
            ir.op1(pick(op::VSQRTPS, op::VSQRTPD), a.parts[p])
        }),
        Rsqrt | Recip => {
            let one = constant(ir, 1.0);
            each(ir, ty, |ir, p| {
                let below = match what {
                    Rsqrt => ir.op1(pick(op::VSQRTPS, op::VSQRTPD), a.parts[p]).into(),
                    _ => a.parts[p],
                };
                ir.op2(pick(op::VDIVPS, op::VDIVPD), one, below)
            })
        }
        Floor | Ceil | Round | Trunc => {
            let mode = match what {
                Round => 8,
                Floor => 9,
                Ceil => 10,
                _ => 11,
            };
            let round = pick(op::VROUNDPS, op::VROUNDPD);
            each(ir, ty, |ir, p| {
                ir.op1_of(round, width, Some(mode), a.parts[p])
            })
        }
        IsNan => per_part(ir, ty, |ir, p| {
            ir.compare(wide, Cmp::Unordered, a.parts[p], a.parts[p])
        }),
        IsInf => {
            let bits = magnitude(ir);
            let infinity = constant(ir, f64::INFINITY);
            per_part(ir, ty, |ir, p| {
                let x = ir.either(pick(op::VANDPS, op::VANDPD), a.parts[p], bits);
                ir.compare(wide, Cmp::Eq, x, infinity)
            })
        }
        SignBit => {
            let parts = in_registers(ir, a.parts);
            per_part(ir, ty, |ir, p| ir.signs(wide, parts[p]))
        }
        _ if ty == Compute::F32 => {
            let x = in_registers(ir, a.parts)[0];
            match math::unary(ir, what, x) {
                Some(y) => Value::one(ty, y),
                None => native::unary_of(ir, what, a, None),
            }
        }
        _ => native::unary_of(ir, what, a, None),
    })
}

fn int_unary(ir: &mut Ir, what: Unary, a: Value) -> Result<Value, NotEmitted> {
    use Unary::*;
    let ty = a.ty;
    let wide = is_wide(ty);
    let zero = zero(ir, ty);
    Ok(match what {
        Neg => {
            let sub = if wide { op::VPSUBQ } else { op::VPSUBD };
            each(ir, ty, |ir, p| ir.op2(sub, zero, a.parts[p]))
        }
        Abs if !wide => Value::one(ty, ir.op1(op::VPABSD, a.parts[0])),
        Abs if ir.target.evex => each(ir, ty, |ir, p| ir.op1(op::VPABSQ, a.parts[p])),
        Abs => each(ir, ty, |ir, p| {
            let sign = ir.op2(op::VPCMPGTQ, zero, a.parts[p]);
            let flipped = ir.op2(op::VPXOR, a.parts[p], sign);
            ir.op2(op::VPSUBQ, flipped, sign)
        }),
        Not => {
            let ones = ir.i32(-1);
            each(ir, ty, |ir, p| ir.either(op::VPXOR, a.parts[p], ones))
        }
        Floor | Ceil | Round | Trunc => a,
        IsNan | IsInf => {
            let (zero, one) = (ir.i32(0), ir.i32(1));
            Value::one(Compute::Mask, ir.compare_int(false, Cmp::Eq, zero, one))
        }
        _ => return Err(NotEmitted),
    })
}

fn comparison(what: Binary) -> Option<Cmp> {
    Some(match what {
        Binary::Eq => Cmp::Eq,
        Binary::Ne => Cmp::Ne,
        Binary::Lt => Cmp::Lt,
        Binary::Le => Cmp::Le,
        Binary::Gt => Cmp::Gt,
        Binary::Ge => Cmp::Ge,
        _ => return None,
    })
}

/// Returns a primitive on two values.
pub(super) fn binary(ir: &mut Ir, what: Binary, a: Value, b: Value) -> Result<Value, NotEmitted> {
    let ty = a.ty;
    let wide = is_wide(ty);
    if ty == Compute::Mask {
        return mask_binary(ir, what, a.mask()?, b.mask()?);
    }
    if let Some(cmp) = comparison(what) {
        return Ok(per_part(ir, ty, |ir, p| match ty.is_float() {
            true => ir.compare(wide, cmp, a.parts[p], b.parts[p]),
            false => ir.compare_int(wide, cmp, a.parts[p], b.parts[p]),
        }));
    }
    match ty.is_float() {
        true => float_binary(ir, what, a, b),
        false => int_binary(ir, what, a, b),
    }
}

fn mask_binary(ir: &mut Ir, what: Binary, a: Virt, b: Virt) -> Result<Value, NotEmitted> {
    let m = match what {
        Binary::And | Binary::Min => ir.masks(MaskOp::And, a, b),
        Binary::Or | Binary::Max => ir.masks(MaskOp::Or, a, b),
        Binary::Xor | Binary::Ne => ir.masks(MaskOp::Xor, a, b),
        Binary::Lt => ir.masks(MaskOp::AndNot, a, b),
        Binary::Gt => ir.masks(MaskOp::AndNot, b, a),
        Binary::Eq => ir.masks(MaskOp::Equal, a, b),
        Binary::Le => {
            let m = ir.masks(MaskOp::AndNot, b, a);
            ir.not_mask(m)
        }
        Binary::Ge => {
            let m = ir.masks(MaskOp::AndNot, a, b);
            ir.not_mask(m)
        }
        _ => return Err(NotEmitted),
    };
    Ok(Value::one(Compute::Mask, m))
}

fn float_binary(ir: &mut Ir, what: Binary, a: Value, b: Value) -> Result<Value, NotEmitted> {
    let ty = a.ty;
    let wide = is_wide(ty);
    let pick = |single, double| if wide { double } else { single };
    let width = ir.width();
    Ok(match what {
        Binary::Add => each(ir, ty, |ir, p| {
            ir.either(pick(op::VADDPS, op::VADDPD), a.parts[p], b.parts[p])
        }),
        Binary::Mul => each(ir, ty, |ir, p| {
            ir.either(pick(op::VMULPS, op::VMULPD), a.parts[p], b.parts[p])
        }),
        Binary::Sub => each(ir, ty, |ir, p| {
            ir.op2(pick(op::VSUBPS, op::VSUBPD), a.parts[p], b.parts[p])
        }),
        Binary::Div => each(ir, ty, |ir, p| {
            ir.op2(pick(op::VDIVPS, op::VDIVPD), a.parts[p], b.parts[p])
        }),
        Binary::FloorDiv => each(ir, ty, |ir, p| {
            let q = ir.op2(pick(op::VDIVPS, op::VDIVPD), a.parts[p], b.parts[p]);
            ir.op1_of(pick(op::VROUNDPS, op::VROUNDPD), width, Some(9), q)
        }),
        // The processor returns the second operand if one is NaN or they are equal, so they are exchanged. A NaN in
        // `b` must win too.
        Binary::Max | Binary::Min => {
            let best = match what {
                Binary::Max => pick(op::VMAXPS, op::VMAXPD),
                _ => pick(op::VMINPS, op::VMINPD),
            };
            each(ir, ty, |ir, p| {
                let (a, b) = (a.parts[p], b.parts[p]);
                let number = |x: Src| ir.number(wide, x).filter(|n| !n.is_nan());
                match (number(a), number(b)) {
                    (_, Some(_)) => ir.op2(best, b, a),
                    (Some(n), None) if n != 0.0 => ir.op2(best, a, b),
                    _ => {
                        let best = ir.op2(best, b, a);
                        let nan = ir.compare(wide, Cmp::Unordered, b, b);
                        ir.select(wide, nan, b, best)
                    }
                }
            })
        }
        Binary::And | Binary::Or | Binary::Xor => {
            let (a, b) = (is_set(ir, a)?, is_set(ir, b)?);
            let operation = match what {
                Binary::And => MaskOp::And,
                Binary::Or => MaskOp::Or,
                _ => MaskOp::Xor,
            };
            let m = ir.masks(operation, a, b);
            as_number(ir, m, ty)?
        }
        _ => return Err(NotEmitted),
    })
}

fn int_binary(ir: &mut Ir, what: Binary, a: Value, b: Value) -> Result<Value, NotEmitted> {
    let ty = a.ty;
    let wide = is_wide(ty);
    let evex = ir.target.evex;
    let pick = |single, double| if wide { double } else { single };
    let either = |ir: &mut Ir, op| each(ir, ty, |ir, p| ir.either(op, a.parts[p], b.parts[p]));
    let plain = |ir: &mut Ir, op| each(ir, ty, |ir, p| ir.op2(op, a.parts[p], b.parts[p]));
    Ok(match what {
        Binary::Add => either(ir, pick(op::VPADDD, op::VPADDQ)),
        Binary::Sub => plain(ir, pick(op::VPSUBD, op::VPSUBQ)),
        Binary::Mul if !wide => either(ir, op::VPMULLD),
        Binary::Mul if evex => either(ir, op::VPMULLQ),
        Binary::Mul => each(ir, ty, |ir, p| {
            let (x, y) = (a.parts[p], b.parts[p]);
            let width = ir.width();
            let [xr, yr] = in_registers(ir, [x, y]);
            let (xh, yh) = (
                ir.op1_of(op::VPSRLQ, width, Some(32), xr),
                ir.op1_of(op::VPSRLQ, width, Some(32), yr),
            );
            let one = ir.op2(op::VPMULUDQ, xr, yh);
            let other = ir.op2(op::VPMULUDQ, xh, yr);
            let middle = ir.op2(op::VPADDQ, one, other);
            let middle = ir.op1_of(op::VPSLLQ, width, Some(32), middle);
            let low = ir.op2(op::VPMULUDQ, xr, yr);
            ir.op2(op::VPADDQ, low, middle)
        }),
        Binary::Max if !wide => either(ir, op::VPMAXSD),
        Binary::Min if !wide => either(ir, op::VPMINSD),
        Binary::Max if evex => either(ir, op::VPMAXSQ),
        Binary::Min if evex => either(ir, op::VPMINSQ),
        Binary::Max | Binary::Min => each(ir, ty, |ir, p| {
            let (x, y) = (a.parts[p], b.parts[p]);
            let greater = ir.op2(op::VPCMPGTQ, x, y);
            match what {
                Binary::Max => ir.select(true, greater, x, y),
                _ => ir.select(true, greater, y, x),
            }
        }),
        Binary::And => either(ir, op::VPAND),
        Binary::Or => either(ir, op::VPOR),
        Binary::Xor => either(ir, op::VPXOR),
        // The processor shifts everything out for counts beyond the width, as required.
        Binary::Shl => plain(ir, pick(op::VPSLLVD, op::VPSLLVQ)),
        Binary::Shr if !wide => plain(ir, op::VPSRAVD),
        Binary::Shr if evex => plain(ir, op::VPSRAVQ),
        _ => return Err(NotEmitted),
    })
}
