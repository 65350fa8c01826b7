//! Numbers and primitives as C expressions. Operands are names or literals, so that no precedence needs care.

use crate::error::{Error, Result};
use kiln_base::prim::{Binary, RandomKind, Reduction, Unary};
use kiln_base::{Compute, DType, Scalar};

/// The C type of a compute type.
pub(crate) fn ctype(compute: Compute) -> &'static str {
    match compute {
        Compute::F32 => "float",
        Compute::F64 => "double",
        Compute::I32 => "int32_t",
        Compute::I64 => "int64_t",
        Compute::Mask => "int",
    }
}

/// The C type of an element in memory; halves are their bits.
pub(crate) fn memory(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool | DType::U8 => "uint8_t",
        DType::I8 => "int8_t",
        DType::I16 => "int16_t",
        DType::I32 => "int32_t",
        DType::I64 => "int64_t",
        DType::U16 | DType::F16 | DType::BF16 => "uint16_t",
        DType::U32 => "uint32_t",
        DType::U64 => "uint64_t",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}

/// What the functions of a compute type are called by.
pub(crate) fn suffix(compute: Compute) -> &'static str {
    match compute {
        Compute::Mask => "i32",
        other => other.name(),
    }
}

/// A number in a compute type.
pub(crate) fn literal(s: Scalar, compute: Compute) -> String {
    let sign = |text: String| match text.starts_with('-') {
        true => format!("({text})"),
        false => text,
    };
    match compute {
        Compute::F32 => sign(float32(s.as_f64() as f32)),
        Compute::F64 => sign(float64(s.as_f64())),
        Compute::I32 => match s.as_i64() as i32 {
            i32::MIN => "INT32_MIN".into(),
            x => sign(x.to_string()),
        },
        Compute::I64 => match s.as_i64() {
            i64::MIN => "INT64_MIN".into(),
            x => sign(format!("{x}LL")),
        },
        Compute::Mask => i32::from(s.as_bool()).to_string(),
    }
}

/// A float, to the bit.
pub(crate) fn float32(x: f32) -> String {
    match x {
        x if x.is_nan() => "NAN".into(),
        f32::INFINITY => "INFINITY".into(),
        f32::NEG_INFINITY => "-INFINITY".into(),
        x => format!("{x:?}f"),
    }
}

/// A double, to the bit.
pub(crate) fn float64(x: f64) -> String {
    match x {
        x if x.is_nan() => "(double)NAN".into(),
        f64::INFINITY => "(double)INFINITY".into(),
        f64::NEG_INFINITY => "-(double)INFINITY".into(),
        x => format!("{x:?}"),
    }
}

/// What memory holds, as a value of the dtype's compute type.
pub(crate) fn loaded(x: &str, dtype: DType) -> String {
    match dtype {
        DType::Bool => format!("({x} != 0)"),
        DType::F16 => format!("kiln_from_f16({x})"),
        DType::BF16 => format!("kiln_from_bf16({x})"),
        DType::U8 | DType::I8 | DType::I16 | DType::U16 => format!("(int32_t){x}"),
        DType::U32 | DType::U64 => format!("(int64_t){x}"),
        DType::I32 | DType::I64 | DType::F32 | DType::F64 => x.into(),
    }
}

/// A value of the dtype's compute type, as memory holds it: floats round and integers wrap.
pub(crate) fn stored(x: &str, dtype: DType) -> String {
    match dtype {
        DType::F16 => format!("kiln_to_f16_f32({x})"),
        DType::BF16 => format!("kiln_to_bf16_f32({x})"),
        DType::I32 | DType::I64 | DType::F32 | DType::F64 => x.into(),
        narrow => format!("({}){x}", memory(narrow)),
    }
}

/// A primitive on one value.
pub(crate) fn unary(op: Unary, x: &str, compute: Compute) -> Result<String> {
    use Unary::*;
    let f = match compute {
        Compute::F32 => "f",
        Compute::F64 => "",
        Compute::Mask => {
            return Ok(match op {
                Not => format!("!{x}"),
                _ => x.into(),
            });
        }
        Compute::I32 | Compute::I64 => {
            return Ok(match op {
                Neg | Abs => format!("kiln_{}_{}({x})", op.name(), compute.name()),
                Not => format!("~{x}"),
                IsNan | IsInf => "0".into(),
                _ => x.into(),
            });
        }
    };
    let one = literal(Scalar::Float(1.0), compute);
    Ok(match op {
        Neg => format!("-{x}"),
        Abs => format!("fabs{f}({x})"),
        Not => format!("({})({x} == 0)", ctype(compute)),
        Recip => format!("{one} / {x}"),
        Rsqrt => format!("{one} / sqrt{f}({x})"),
        Exp | Sigmoid | Tanh | Erf if compute == Compute::F32 => {
            format!("kiln_{}_f32({x})", op.name())
        }
        Sigmoid => format!("{one} / ({one} + exp(-{x}))"),
        Round => format!("rint{f}({x})"),
        IsNan => format!("{x} != {x}"),
        IsInf => format!("fabs{f}({x}) == ({})INFINITY", ctype(compute)),
        SignBit => format!("signbit({x}) != 0"),
        Sqrt | Exp | Exp2 | Expm1 | Log | Log2 | Log10 | Log1p | Sin | Cos | Tan | Asin | Acos
        | Atan | Sinh | Cosh | Tanh | Asinh | Acosh | Atanh | Erf | Erfc | Floor | Ceil | Trunc
        | Lgamma => format!("{}{f}({x})", op.name()),
        ErfInv | LogNdtr | Ndtri | Digamma | I0 | I0e | I1 | I1e => {
            return Err(Error::function(op.name()));
        }
    })
}

/// A primitive on two values of one compute type. `site` is what an integer division by zero reports.
pub(crate) fn binary(op: Binary, a: &str, b: &str, compute: Compute, site: u32) -> Result<String> {
    use Binary::*;
    let infix = match op {
        Eq => "==",
        Ne => "!=",
        Lt => "<",
        Le => "<=",
        Gt => ">",
        Ge => ">=",
        _ => "",
    };
    if !infix.is_empty() {
        return Ok(format!("{a} {infix} {b}"));
    }
    match compute {
        Compute::F32 => float(op, a, b, "f", compute),
        Compute::F64 => float(op, a, b, "", compute),
        Compute::I32 | Compute::I64 => integer(op, a, b, compute, site),
        Compute::Mask => Ok(match op {
            And | Mul | Min => format!("{a} & {b}"),
            Or | Add | Max => format!("{a} | {b}"),
            Xor | Sub => format!("{a} ^ {b}"),
            _ => format!("({}) != 0", integer(op, a, b, Compute::I32, site)?),
        }),
    }
}

fn float(op: Binary, a: &str, b: &str, f: &str, compute: Compute) -> Result<String> {
    use Binary::*;
    let (ty, name) = (ctype(compute), compute.name());
    Ok(match op {
        Add => format!("{a} + {b}"),
        Sub => format!("{a} - {b}"),
        Mul => format!("{a} * {b}"),
        Div => format!("{a} / {b}"),
        FloorDiv => format!("floor{f}({a} / {b})"),
        Rem => format!("fmod{f}({a}, {b})"),
        Pow | Atan2 | Hypot => format!("{}{f}({a}, {b})", op.name()),
        FloorMod | Max | Min => format!("kiln_{}_{name}({a}, {b})", op.name()),
        And => format!("({ty})({a} != 0 && {b} != 0)"),
        Or => format!("({ty})({a} != 0 || {b} != 0)"),
        Xor => format!("({ty})(({a} != 0) != ({b} != 0))"),
        Gcd | Lcm | Shl | Shr => "NAN".into(),
        Zeta => return Err(Error::function("zeta")),
        Eq | Ne | Lt | Le | Gt | Ge => unreachable!("comparisons are printed before"),
    })
}

fn integer(op: Binary, a: &str, b: &str, compute: Compute, site: u32) -> Result<String> {
    use Binary::*;
    let name = compute.name();
    Ok(match op {
        Add | Sub | Mul | Pow | Gcd | Lcm | Max | Min | Shl | Shr => {
            format!("kiln_{}_{name}({a}, {b})", op.name())
        }
        Div | FloorDiv | Rem | FloorMod => {
            format!("kiln_{}_{name}({a}, {b}, failed, {site})", op.name())
        }
        And => format!("{a} & {b}"),
        Or => format!("{a} | {b}"),
        Xor => format!("{a} ^ {b}"),
        Atan2 | Hypot => format!(
            "({})kiln_to_i64({}((double){a}, (double){b}))",
            ctype(compute),
            op.name()
        ),
        Zeta => return Err(Error::function("zeta")),
        Eq | Ne | Lt | Le | Gt | Ge => unreachable!("comparisons are printed before"),
    })
}

/// A cast of a value that stands for dtype `from`.
pub(crate) fn convert(x: &str, from: DType, to: DType) -> String {
    let unsigned = match from {
        DType::U64 => "(uint64_t)",
        _ => "",
    };
    match (from.compute(), to) {
        (Compute::Mask, DType::Bool) => x.into(),
        (_, DType::Bool) => format!("{x} != 0"),
        (Compute::F32 | Compute::F64, to) if to.is_int() => {
            format!("({})kiln_to_{}({x})", ctype(to.compute()), to.name())
        }
        (_, to) if to.is_int() => format!("({})({}){x}", ctype(to.compute()), memory(to)),
        (Compute::F32, DType::F16 | DType::BF16) => loaded(&stored(x, to), to),
        (_, DType::F16 | DType::BF16) => {
            // Integers of up to 16 bits are numbers of f32.
            let (exact, name) = match from.size() {
                ..=2 => ("float", "f32"),
                _ => ("double", "f64"),
            };
            let wide = format!("({exact}){unsigned}{x}");
            loaded(&format!("kiln_to_{}_{name}({wide})", to.name()), to)
        }
        (_, to) => format!("({}){unsigned}{x}", ctype(to.compute())),
    }
}

/// A random number.
pub(crate) fn random(
    kind: RandomKind,
    [seed, offset, index]: [&str; 3],
    compute: Compute,
) -> String {
    let name = match (kind, compute) {
        (RandomKind::Bits, _) => "random_bits".into(),
        (RandomKind::Uniform, c) => format!("uniform_{}", c.name()),
        (RandomKind::Normal, c) => format!("normal_{}", c.name()),
    };
    format!("kiln_{name}((uint64_t){offset} + (uint64_t){index}, (uint64_t){seed})")
}

/// What a reduction of nothing gives.
pub(crate) fn identity(op: Reduction, compute: Compute) -> String {
    let limit = match (compute, op) {
        (Compute::I32, Reduction::Max) => Scalar::Int(i64::from(i32::MIN)),
        (Compute::I32, Reduction::Min) => Scalar::Int(i64::from(i32::MAX)),
        (Compute::I64, Reduction::Max) => Scalar::Int(i64::MIN),
        (Compute::I64, Reduction::Min) => Scalar::Int(i64::MAX),
        (Compute::Mask, Reduction::Max) => Scalar::Bool(false),
        (Compute::I32 | Compute::I64, op) => Scalar::Int(op.identity_f64() as i64),
        (_, op) => Scalar::Float(op.identity_f64()),
    };
    literal(limit, compute)
}

/// Two elements of a reduction, combined.
pub(crate) fn combine(op: Reduction, a: &str, b: &str, compute: Compute) -> String {
    match (op, compute) {
        (Reduction::Max, Compute::Mask) => format!("{a} | {b}"),
        (_, Compute::Mask) => format!("{a} & {b}"),
        (op, _) => format!("kiln_{}_{}({a}, {b})", op.combine().name(), compute.name()),
    }
}
