//! Primitives on values of a group of lanes.

use super::ir::{Cmp, Ir, Src, Virt};
use super::value::{NotEmitted, Value, is_wide, to_registers};
use super::{math, native};
use kiln_base::Compute;
use kiln_base::prim::{Binary, Unary};
use kiln_x86::{MaskOp, op};

/// Returns `mask ? a : b`.
pub(super) fn select(ir: &mut Ir, m: Virt, a: Value, b: Value) -> Result<Value, NotEmitted> {
    let ty = a.ty;
    if ty == Compute::Mask {
        let (a, b) = (a.mask()?, b.mask()?);
        let left = ir.mask_op(MaskOp::And, m, a);
        let right = ir.mask_op(MaskOp::AndNot, m, b);
        return Ok(Value::new(ty, ir.mask_op(MaskOp::Or, left, right)));
    }
    if !is_wide(ty) {
        return Ok(Value::new(ty, ir.select(false, m, a.parts[0], b.parts[0])));
    }
    let masks = ir.split_mask(m);
    Ok(Value::from_parts(ty, |p| {
        let p = usize::from(p);
        ir.select(true, masks[p], a.parts[p], b.parts[p]).into()
    }))
}

/// Computes a mask for each part of a value, and joins the masks.
pub(super) fn mask_per_part(
    ir: &mut Ir,
    ty: Compute,
    mut f: impl FnMut(&mut Ir, usize) -> Virt,
) -> Value {
    let low = f(ir, 0);
    if !is_wide(ty) {
        return Value::new(Compute::Mask, low);
    }
    let high = f(ir, 1);
    Value::new(Compute::Mask, ir.join_masks(low, high))
}

/// Computes a value part by part.
fn per_part(ir: &mut Ir, ty: Compute, mut f: impl FnMut(&mut Ir, usize) -> Virt) -> Value {
    Value::from_parts(ty, |p| f(ir, usize::from(p)).into())
}

/// Converts a mask to numbers: 1 where it is set, otherwise 0.
pub(super) fn mask_to_number(ir: &mut Ir, m: Virt, ty: Compute) -> Result<Value, NotEmitted> {
    let splat = |ir: &mut Ir, x: i64| {
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
    let (one, zero) = (splat(ir, 1), splat(ir, 0));
    select(ir, m, one, zero)
}

/// Returns a zero of a type.
pub(super) fn zero(ir: &mut Ir, ty: Compute) -> Src {
    if is_wide(ty) { ir.i64(0) } else { ir.i32(0) }
}

/// Returns a mask of the lanes where a value is not zero.
pub(super) fn is_nonzero(ir: &mut Ir, a: Value) -> Result<Virt, NotEmitted> {
    if a.ty == Compute::Mask {
        return a.mask();
    }
    let zero = zero(ir, a.ty);
    let wide = is_wide(a.ty);
    mask_per_part(ir, a.ty, |ir, p| match a.ty.is_float() {
        true => ir.compare(wide, Cmp::Ne, a.parts[p], zero),
        false => ir.compare_int(wide, Cmp::Ne, a.parts[p], zero),
    })
    .mask()
}

/// Adds a primitive on one value.
pub(super) fn unary(ir: &mut Ir, prim: Unary, a: Value) -> Result<Value, NotEmitted> {
    match a.ty {
        Compute::F32 | Compute::F64 => float_unary(ir, prim, a),
        Compute::I32 | Compute::I64 => int_unary(ir, prim, a),
        Compute::Mask => {
            let m = a.mask()?;
            Ok(Value::new(Compute::Mask, ir.not_mask(m)))
        }
    }
}

fn float_unary(ir: &mut Ir, prim: Unary, a: Value) -> Result<Value, NotEmitted> {
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
    Ok(match prim {
        Neg => {
            let sign = constant(ir, -0.0);
            let xor = pick(op::VXORPS, op::VXORPD);
            per_part(ir, ty, |ir, p| ir.commutative(xor, a.parts[p], sign))
        }
        Abs => {
            let bits = magnitude(ir);
            let and = pick(op::VANDPS, op::VANDPD);
            per_part(ir, ty, |ir, p| ir.commutative(and, a.parts[p], bits))
        }
        Not => {
            let zero = zero(ir, ty);
            let m = mask_per_part(ir, ty, |ir, p| ir.compare(wide, Cmp::Eq, a.parts[p], zero));
            mask_to_number(ir, m.mask()?, ty)?
        }
        Sqrt => per_part(ir, ty, |ir, p| {
            ir.op1(pick(op::VSQRTPS, op::VSQRTPD), a.parts[p])
        }),
        Rsqrt | Recip => {
            let one = constant(ir, 1.0);
            per_part(ir, ty, |ir, p| {
                let divisor = match prim {
                    Rsqrt => ir.op1(pick(op::VSQRTPS, op::VSQRTPD), a.parts[p]).into(),
                    _ => a.parts[p],
                };
                ir.op2(pick(op::VDIVPS, op::VDIVPD), one, divisor)
            })
        }
        Floor | Ceil | Round | Trunc => {
            let mode = match prim {
                Round => 8,
                Floor => 9,
                Ceil => 10,
                _ => 11,
            };
            let round = pick(op::VROUNDPS, op::VROUNDPD);
            per_part(ir, ty, |ir, p| {
                ir.op1_with(round, width, Some(mode), a.parts[p])
            })
        }
        IsNan => mask_per_part(ir, ty, |ir, p| {
            ir.compare(wide, Cmp::Unordered, a.parts[p], a.parts[p])
        }),
        IsInf => {
            let bits = magnitude(ir);
            let infinity = constant(ir, f64::INFINITY);
            mask_per_part(ir, ty, |ir, p| {
                let x = ir.commutative(pick(op::VANDPS, op::VANDPD), a.parts[p], bits);
                ir.compare(wide, Cmp::Eq, x, infinity)
            })
        }
        SignBit => {
            let parts = to_registers(ir, a.parts);
            mask_per_part(ir, ty, |ir, p| ir.sign_mask(wide, parts[p]))
        }
        _ if ty == Compute::F32 => {
            let x = to_registers(ir, a.parts)[0];
            match math::unary(ir, prim, x) {
                Some(y) => Value::new(ty, y),
                None => native::add_unary(ir, prim, a, None),
            }
        }
        _ => native::add_unary(ir, prim, a, None),
    })
}

fn int_unary(ir: &mut Ir, prim: Unary, a: Value) -> Result<Value, NotEmitted> {
    use Unary::*;
    let ty = a.ty;
    let wide = is_wide(ty);
    let zero = zero(ir, ty);
    Ok(match prim {
        Neg => {
            let sub = if wide { op::VPSUBQ } else { op::VPSUBD };
            per_part(ir, ty, |ir, p| ir.op2(sub, zero, a.parts[p]))
        }
        Abs if !wide => Value::new(ty, ir.op1(op::VPABSD, a.parts[0])),
        Abs if ir.target.evex => per_part(ir, ty, |ir, p| ir.op1(op::VPABSQ, a.parts[p])),
        Abs => per_part(ir, ty, |ir, p| {
            let sign = ir.op2(op::VPCMPGTQ, zero, a.parts[p]);
            let flipped = ir.op2(op::VPXOR, a.parts[p], sign);
            ir.op2(op::VPSUBQ, flipped, sign)
        }),
        Not => {
            let ones = ir.i32(-1);
            per_part(ir, ty, |ir, p| ir.commutative(op::VPXOR, a.parts[p], ones))
        }
        Floor | Ceil | Round | Trunc => a,
        IsNan | IsInf => {
            let (zero, one) = (ir.i32(0), ir.i32(1));
            Value::new(Compute::Mask, ir.compare_int(false, Cmp::Eq, zero, one))
        }
        _ => return Err(NotEmitted),
    })
}

/// Returns the condition of a primitive that compares.
fn comparison(prim: Binary) -> Option<Cmp> {
    Some(match prim {
        Binary::Eq => Cmp::Eq,
        Binary::Ne => Cmp::Ne,
        Binary::Lt => Cmp::Lt,
        Binary::Le => Cmp::Le,
        Binary::Gt => Cmp::Gt,
        Binary::Ge => Cmp::Ge,
        _ => return None,
    })
}

/// Adds a primitive on two values.
pub(super) fn binary(ir: &mut Ir, prim: Binary, a: Value, b: Value) -> Result<Value, NotEmitted> {
    let ty = a.ty;
    let wide = is_wide(ty);
    if ty == Compute::Mask {
        return mask_binary(ir, prim, a.mask()?, b.mask()?);
    }
    if let Some(cmp) = comparison(prim) {
        return Ok(mask_per_part(ir, ty, |ir, p| match ty.is_float() {
            true => ir.compare(wide, cmp, a.parts[p], b.parts[p]),
            false => ir.compare_int(wide, cmp, a.parts[p], b.parts[p]),
        }));
    }
    match ty.is_float() {
        true => float_binary(ir, prim, a, b),
        false => int_binary(ir, prim, a, b),
    }
}

fn mask_binary(ir: &mut Ir, prim: Binary, a: Virt, b: Virt) -> Result<Value, NotEmitted> {
    let m = match prim {
        Binary::And | Binary::Min => ir.mask_op(MaskOp::And, a, b),
        Binary::Or | Binary::Max => ir.mask_op(MaskOp::Or, a, b),
        Binary::Xor | Binary::Ne => ir.mask_op(MaskOp::Xor, a, b),
        Binary::Lt => ir.mask_op(MaskOp::AndNot, a, b),
        Binary::Gt => ir.mask_op(MaskOp::AndNot, b, a),
        Binary::Eq => ir.mask_op(MaskOp::Equal, a, b),
        Binary::Le => {
            let m = ir.mask_op(MaskOp::AndNot, b, a);
            ir.not_mask(m)
        }
        Binary::Ge => {
            let m = ir.mask_op(MaskOp::AndNot, a, b);
            ir.not_mask(m)
        }
        _ => return Err(NotEmitted),
    };
    Ok(Value::new(Compute::Mask, m))
}

fn float_binary(ir: &mut Ir, prim: Binary, a: Value, b: Value) -> Result<Value, NotEmitted> {
    let ty = a.ty;
    let wide = is_wide(ty);
    let pick = |single, double| if wide { double } else { single };
    let width = ir.width();
    Ok(match prim {
        Binary::Add => per_part(ir, ty, |ir, p| {
            ir.commutative(pick(op::VADDPS, op::VADDPD), a.parts[p], b.parts[p])
        }),
        Binary::Mul => per_part(ir, ty, |ir, p| {
            ir.commutative(pick(op::VMULPS, op::VMULPD), a.parts[p], b.parts[p])
        }),
        Binary::Sub => per_part(ir, ty, |ir, p| {
            ir.op2(pick(op::VSUBPS, op::VSUBPD), a.parts[p], b.parts[p])
        }),
        Binary::Div => per_part(ir, ty, |ir, p| {
            ir.op2(pick(op::VDIVPS, op::VDIVPD), a.parts[p], b.parts[p])
        }),
        Binary::FloorDiv => per_part(ir, ty, |ir, p| {
            let q = ir.op2(pick(op::VDIVPS, op::VDIVPD), a.parts[p], b.parts[p]);
            ir.op1_with(pick(op::VROUNDPS, op::VROUNDPD), width, Some(9), q)
        }),
        // The processor returns the second operand if one is NaN or both are equal, so the operands are exchanged. A
        // NaN in `b` must be returned too.
        Binary::Max | Binary::Min => {
            let min_max = match prim {
                Binary::Max => pick(op::VMAXPS, op::VMAXPD),
                _ => pick(op::VMINPS, op::VMINPD),
            };
            per_part(ir, ty, |ir, p| {
                let (a, b) = (a.parts[p], b.parts[p]);
                let number = |x: Src| ir.constant_value(wide, x).filter(|n| !n.is_nan());
                match (number(a), number(b)) {
                    (_, Some(_)) => ir.op2(min_max, b, a),
                    (Some(n), None) if n != 0.0 => ir.op2(min_max, a, b),
                    _ => {
                        let min_max = ir.op2(min_max, b, a);
                        let is_nan = ir.compare(wide, Cmp::Unordered, b, b);
                        ir.select(wide, is_nan, b, min_max)
                    }
                }
            })
        }
        Binary::And | Binary::Or | Binary::Xor => {
            let (a, b) = (is_nonzero(ir, a)?, is_nonzero(ir, b)?);
            let operation = match prim {
                Binary::And => MaskOp::And,
                Binary::Or => MaskOp::Or,
                _ => MaskOp::Xor,
            };
            let m = ir.mask_op(operation, a, b);
            mask_to_number(ir, m, ty)?
        }
        _ => return Err(NotEmitted),
    })
}

fn int_binary(ir: &mut Ir, prim: Binary, a: Value, b: Value) -> Result<Value, NotEmitted> {
    let ty = a.ty;
    let wide = is_wide(ty);
    let evex = ir.target.evex;
    let pick = |single, double| if wide { double } else { single };
    let commutative =
        |ir: &mut Ir, op| per_part(ir, ty, |ir, p| ir.commutative(op, a.parts[p], b.parts[p]));
    let ordered = |ir: &mut Ir, op| per_part(ir, ty, |ir, p| ir.op2(op, a.parts[p], b.parts[p]));
    Ok(match prim {
        Binary::Add => commutative(ir, pick(op::VPADDD, op::VPADDQ)),
        Binary::Sub => ordered(ir, pick(op::VPSUBD, op::VPSUBQ)),
        Binary::Mul if !wide => commutative(ir, op::VPMULLD),
        Binary::Mul if evex => commutative(ir, op::VPMULLQ),
        Binary::Mul => per_part(ir, ty, |ir, p| {
            let (x, y) = (a.parts[p], b.parts[p]);
            let width = ir.width();
            let [xr, yr] = to_registers(ir, [x, y]);
            let (xh, yh) = (
                ir.op1_with(op::VPSRLQ, width, Some(32), xr),
                ir.op1_with(op::VPSRLQ, width, Some(32), yr),
            );
            let low_high = ir.op2(op::VPMULUDQ, xr, yh);
            let high_low = ir.op2(op::VPMULUDQ, xh, yr);
            let middle = ir.op2(op::VPADDQ, low_high, high_low);
            let middle = ir.op1_with(op::VPSLLQ, width, Some(32), middle);
            let low = ir.op2(op::VPMULUDQ, xr, yr);
            ir.op2(op::VPADDQ, low, middle)
        }),
        Binary::Max if !wide => commutative(ir, op::VPMAXSD),
        Binary::Min if !wide => commutative(ir, op::VPMINSD),
        Binary::Max if evex => commutative(ir, op::VPMAXSQ),
        Binary::Min if evex => commutative(ir, op::VPMINSQ),
        Binary::Max | Binary::Min => per_part(ir, ty, |ir, p| {
            let (x, y) = (a.parts[p], b.parts[p]);
            let greater = ir.op2(op::VPCMPGTQ, x, y);
            match prim {
                Binary::Max => ir.select(true, greater, x, y),
                _ => ir.select(true, greater, y, x),
            }
        }),
        Binary::And => commutative(ir, op::VPAND),
        Binary::Or => commutative(ir, op::VPOR),
        Binary::Xor => commutative(ir, op::VPXOR),
        // For counts beyond the width, the processor shifts all bits out, as required.
        Binary::Shl => ordered(ir, pick(op::VPSLLVD, op::VPSLLVQ)),
        Binary::Shr if !wide => ordered(ir, op::VPSRAVD),
        Binary::Shr if evex => ordered(ir, op::VPSRAVQ),
        _ => return Err(NotEmitted),
    })
}
