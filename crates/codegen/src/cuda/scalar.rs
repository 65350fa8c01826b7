//! Numbers and primitives as C expressions. Operands are names or parenthesised, so that no precedence
//! needs care.

use super::source::long;
use kiln_base::prim::{Binary, RandomKind, Reduction, Unary};
use kiln_base::{Compute, DType, Scalar};

/// The C type of a compute type.
pub(super) fn ctype(compute: Compute) -> &'static str {
    match compute {
        Compute::F32 => "float",
        Compute::F64 => "double",
        Compute::I32 => "int",
        Compute::I64 => "long long",
        Compute::Mask => "bool",
    }
}

/// A number in a compute type.
pub(super) fn literal(s: Scalar, compute: Compute) -> String {
    let sign = |text: String| match text.starts_with('-') {
        true => format!("({text})"),
        false => text,
    };
    match compute {
        Compute::F32 => match s.as_f64() as f32 {
            x if x.is_nan() => "kiln_nan".into(),
            f32::INFINITY => "kiln_inf".into(),
            f32::NEG_INFINITY => "(-kiln_inf)".into(),
            x => sign(format!("{x:?}f")),
        },
        Compute::F64 => match s.as_f64() {
            x if x.is_nan() => "(double)kiln_nan".into(),
            f64::INFINITY => "(double)kiln_inf".into(),
            f64::NEG_INFINITY => "(-(double)kiln_inf)".into(),
            x => sign(format!("{x:?}")),
        },
        Compute::I32 => match s.as_i64() as i32 {
            i32::MIN => "(-2147483647 - 1)".into(),
            x => sign(x.to_string()),
        },
        Compute::I64 => long(s.as_i64()),
        Compute::Mask => s.as_bool().to_string(),
    }
}

/// What memory holds, as a value of the dtype's compute type.
pub(super) fn loaded(x: &str, dtype: DType) -> String {
    match dtype {
        DType::Bool => format!("({x} != 0)"),
        DType::F16 => format!("kiln_from_f16({x})"),
        DType::BF16 => format!("kiln_from_bf16({x})"),
        DType::U8 | DType::I8 | DType::I16 | DType::U16 => format!("(int){x}"),
        DType::U32 | DType::U64 => format!("(long long){x}"),
        DType::I32 | DType::I64 | DType::F32 | DType::F64 => x.into(),
    }
}

/// A value of the dtype's compute type, as memory holds it: floats round and integers wrap.
pub(super) fn stored(x: &str, dtype: DType) -> String {
    match dtype {
        DType::F16 => format!("kiln_to_f16({x})"),
        DType::BF16 => format!("kiln_to_bf16({x})"),
        DType::Bool | DType::I32 | DType::I64 | DType::F32 | DType::F64 => x.into(),
        narrow => format!("({}){x}", super::source::memory(narrow)),
    }
}

/// A primitive on one value.
pub(super) fn unary(op: Unary, x: &str, compute: Compute) -> String {
    use Unary::*;
    let f = match compute {
        Compute::F32 => "f",
        Compute::F64 => "",
        Compute::Mask => {
            return match op {
                Not => format!("!{x}"),
                _ => x.into(),
            };
        }
        Compute::I32 | Compute::I64 => {
            return match op {
                Neg => format!("kiln_neg({x})"),
                Abs => format!("kiln_abs({x})"),
                Not => format!("~{x}"),
                _ => x.into(),
            };
        }
    };
    let one = literal(Scalar::Float(1.0), compute);
    // Functions of our own that exist in double precision alone.
    let special = |name: &str| match compute {
        Compute::F32 => format!("(float){name}((double){x})"),
        _ => format!("{name}({x})"),
    };
    match op {
        Neg => format!("-{x}"),
        Abs => format!("fabs{f}({x})"),
        Not => format!("({})({x} == 0)", ctype(compute)),
        Recip => format!("{one} / {x}"),
        Rsqrt if compute == Compute::F64 => format!("{one} / sqrt({x})"),
        Sigmoid => format!("{one} / ({one} + exp{f}(-{x}))"),
        Round => format!("rint{f}({x})"),
        IsNan => format!("{x} != {x}"),
        IsInf => format!(
            "fabs{f}({x}) == {}",
            literal(Scalar::Float(f64::INFINITY), compute)
        ),
        SignBit => format!("kiln_sign_bit({x})"),
        Sqrt | Rsqrt | Exp | Exp2 | Expm1 | Log | Log2 | Log10 | Log1p | Sin | Cos | Tan | Asin
        | Acos | Atan | Sinh | Cosh | Tanh | Asinh | Acosh | Atanh | Erf | Floor | Ceil | Trunc => {
            format!("{}{f}({x})", op.name())
        }
        Erfc => special("erfc"),
        ErfInv => special("erfinv"),
        Ndtri => special("normcdfinv"),
        LogNdtr | Lgamma | Digamma | I0 | I0e | I1 | I1e => special(&format!("kiln_{}", op.name())),
    }
}

/// A primitive on two values of one compute type. `site` is what an integer division by zero reports.
pub(super) fn binary(op: Binary, a: &str, b: &str, compute: Compute, site: u32) -> String {
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
        return format!("{a} {infix} {b}");
    }
    match compute {
        Compute::F32 => float(op, a, b, "f", compute),
        Compute::F64 => float(op, a, b, "", compute),
        Compute::I32 | Compute::I64 => integer(op, a, b, compute, site),
        Compute::Mask => match op {
            And | Mul | Min => format!("{a} && {b}"),
            Or | Add | Max => format!("{a} || {b}"),
            Xor | Sub => format!("{a} != {b}"),
            _ => {
                let wide = integer(
                    op,
                    &format!("(int){a}"),
                    &format!("(int){b}"),
                    Compute::I32,
                    site,
                );
                format!("({wide}) != 0")
            }
        },
    }
}

fn float(op: Binary, a: &str, b: &str, f: &str, compute: Compute) -> String {
    use Binary::*;
    let mask = |text: String| format!("({})({text})", ctype(compute));
    let nan = || literal(Scalar::Float(f64::NAN), compute);
    match op {
        Add | Sub | Mul => format!("{}({a}, {b})", rounded(op, compute)),
        Div => format!("{a} / {b}"),
        FloorDiv => format!("floor{f}({a} / {b})"),
        Rem => format!("fmod{f}({a}, {b})"),
        FloorMod => format!("kiln_floormod({a}, {b})"),
        Pow => format!("pow{f}({a}, {b})"),
        Atan2 => format!("atan2{f}({a}, {b})"),
        Hypot => format!("hypot{f}({a}, {b})"),
        Zeta if compute == Compute::F32 => {
            format!("(float)kiln_zeta((double){a}, (double){b})")
        }
        Zeta => format!("kiln_zeta({a}, {b})"),
        Max => format!("kiln_max({a}, {b})"),
        Min => format!("kiln_min({a}, {b})"),
        And => mask(format!("{a} != 0 && {b} != 0")),
        Or => mask(format!("{a} != 0 || {b} != 0")),
        Xor => mask(format!("({a} != 0) != ({b} != 0)")),
        Gcd | Lcm | Shl | Shr => nan(),
        Eq | Ne | Lt | Le | Gt | Ge => unreachable!("comparisons are printed before"),
    }
}

/// The function that rounds this one operation, which the compiler never contracts with another. So a value
/// is the same to the bit in whichever kernel it is computed.
fn rounded(op: Binary, compute: Compute) -> &'static str {
    match (op, compute) {
        (Binary::Add, Compute::F32) => "__fadd_rn",
        (Binary::Sub, Compute::F32) => "__fsub_rn",
        (Binary::Mul, Compute::F32) => "__fmul_rn",
        (Binary::Add, _) => "__dadd_rn",
        (Binary::Sub, _) => "__dsub_rn",
        _ => "__dmul_rn",
    }
}

fn integer(op: Binary, a: &str, b: &str, compute: Compute, site: u32) -> String {
    use Binary::*;
    let divided = |name: &str| format!("kiln_{name}({a}, {b}, errors, site{site})");
    let by_float = |text: String| format!("({})kiln_to_i64({text})", ctype(compute));
    match op {
        Add | Sub | Mul | Pow | Gcd | Lcm | Max | Min | Shl | Shr => {
            format!("kiln_{}({a}, {b})", op.name())
        }
        Div | FloorDiv | Rem | FloorMod => divided(op.name()),
        And => format!("{a} & {b}"),
        Or => format!("{a} | {b}"),
        Xor => format!("{a} ^ {b}"),
        Atan2 | Hypot => by_float(format!("{}((double){a}, (double){b})", op.name())),
        Zeta => by_float(format!("kiln_zeta((double){a}, (double){b})")),
        Eq | Ne | Lt | Le | Gt | Ge => unreachable!("comparisons are printed before"),
    }
}

/// A cast of a value that stands for dtype `from`.
pub(super) fn convert(x: &str, from: DType, to: DType) -> String {
    match (from.compute(), to) {
        (Compute::Mask, DType::Bool) => x.into(),
        (_, DType::Bool) => format!("{x} != 0"),
        (Compute::F32 | Compute::F64, to) if to.is_int() => match to.compute() {
            Compute::I32 => format!("kiln_to_{}({x})", to.name()),
            _ => format!("(long long)kiln_to_{}({x})", to.name()),
        },
        (_, DType::I32) => format!("(int){x}"),
        (_, DType::I64 | DType::U64) => format!("(long long){x}"),
        (_, to) if to.is_int() => {
            let wrapped = format!("({}){x}", super::source::memory(to));
            format!("({}){wrapped}", ctype(to.compute()))
        }
        (Compute::F32, DType::F16 | DType::BF16) => loaded(&stored(x, to), to),
        (_, DType::F16 | DType::BF16) => {
            let unsigned = if from == DType::U64 {
                "(unsigned long long)"
            } else {
                ""
            };
            // Integers of up to 16 bits are numbers of f32.
            let exact = if from.size() <= 2 { "float" } else { "double" };
            let wide = format!("({exact}){unsigned}{x}");
            loaded(&format!("kiln_to_{}({wide})", to.name()), to)
        }
        (_, to) => {
            let unsigned = if from == DType::U64 {
                "(unsigned long long)"
            } else {
                ""
            };
            format!("({}){unsigned}{x}", ctype(to.compute()))
        }
    }
}

/// A random number.
pub(super) fn random(kind: RandomKind, seed: &str, counter: &str, dtype: DType) -> String {
    let numbers = kind.numbers_a_block(matches!(dtype, DType::F64 | DType::I64));
    let block = format!("kiln_random({counter}, {seed}, {numbers}u)");
    match (kind, dtype) {
        (RandomKind::Bits, _) => format!("kiln_random_bits({block})"),
        (RandomKind::Uniform, DType::F64) => format!("kiln_uniform_f64({block})"),
        (RandomKind::Uniform, _) => format!("kiln_uniform_f32({block})"),
        (RandomKind::Normal, DType::F64) => format!("kiln_normal_f64({block})"),
        (RandomKind::Normal, _) => format!("kiln_normal_f32({block})"),
    }
}

/// What a reduction of nothing gives.
pub(super) fn identity(op: Reduction, compute: Compute) -> String {
    let limit = match (compute, op) {
        (Compute::I32, Reduction::Max) => Scalar::Int(i64::from(i32::MIN)),
        (Compute::I32, Reduction::Min) => Scalar::Int(i64::from(i32::MAX)),
        (Compute::I64, Reduction::Max) => Scalar::Int(i64::MIN),
        (Compute::I64, Reduction::Min) => Scalar::Int(i64::MAX),
        (Compute::I32 | Compute::I64, op) => Scalar::Int(op.identity_f64() as i64),
        (_, op) => Scalar::Float(op.identity_f64()),
    };
    literal(limit, compute)
}
