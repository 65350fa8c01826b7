//! Elementwise operators.

use super::{Outputs, rejected, unsupported};
use crate::args::{Arg, Args, Failure, Operand, Parsed};
use kiln_tensor::{DType, NanToNum, RoundingMode, Scalar, Tensor, Tolerance, where_};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    let op = match op.strip_prefix("special.") {
        Some("gammaln") => "lgamma",
        Some("psi") => "digamma",
        Some("expit") => "sigmoid",
        Some(name) => name,
        None => op,
    };
    if let Some(y) = unary(op, a)? {
        return Ok(y.into());
    }
    if let Some(y) = binary(op, a)? {
        return Ok(y.into());
    }
    Ok(match op {
        "add" => with_alpha(a, |x, y, k| x.add_scaled(y, k), |x, y| x.add(y))?,
        "sub" => with_alpha(a, |x, y, k| x.sub_scaled(y, k), |x, y| x.sub(y))?,
        "rsub" => {
            let alpha = a.number_or(2, "alpha", 1i64)?;
            a.input()?.rsub_scaled(&a.operand(1, "other")?, alpha)
        }
        "div" | "true_divide" => {
            let (x, y) = (a.input()?, a.operand(1, "other")?);
            match a.opt_text(2, "rounding_mode")?.as_deref() {
                None => x.div(&y),
                Some("floor") => x.div_rounding(&y, RoundingMode::Floor),
                Some("trunc") => x.div_rounding(&y, RoundingMode::Trunc),
                Some(other) => return Err(rejected(format!("rounding mode {other:?}"))),
            }
        }
        "clamp" => clamp(a)?,
        "clamp_min" => a.input()?.clamp_min(&a.operand(1, "min")?),
        "clamp_max" => a.input()?.clamp_max(&a.operand(1, "max")?),
        "lerp" => a
            .input()?
            .lerp(&a.tensor(1, "end")?, &a.operand(2, "weight")?),
        "addcmul" | "addcdiv" => {
            let value = a.number_or(3, "value", 1i64)?;
            let (x, p, q) = (a.input()?, a.tensor(1, "tensor1")?, a.tensor(2, "tensor2")?);
            match op {
                "addcmul" => x.addcmul_with(&p, &q, value),
                _ => x.addcdiv_with(&p, &q, value),
            }
        }
        // The method's order: the condition is the second argument; see `Case`.
        "where" => {
            let condition = a.tensor(1, "condition")?;
            where_(&condition, &a.operand(0, "input")?, &a.operand(2, "other")?)
        }
        "round" => {
            let x = a.input()?;
            match a.int_or(1, "decimals", 0)? {
                0 => x.round(),
                decimals => x.round_decimals(decimals),
            }
        }
        "isclose" => {
            let (x, y) = (a.input()?, a.tensor(1, "other")?);
            let options = Tolerance {
                rtol: a.float_or(2, "rtol", 1e-5)?,
                atol: a.float_or(3, "atol", 1e-8)?,
                equal_nan: a.bool_or(4, "equal_nan", false)?,
            };
            x.isclose_with(&y, options)
        }
        "nan_to_num" => {
            let options = NanToNum {
                nan: a.opt_float(1, "nan")?,
                posinf: a.opt_float(2, "posinf")?,
                neginf: a.opt_float(3, "neginf")?,
            };
            a.input()?.nan_to_num_with(options)
        }
        "deg2rad" => a.input()?.mul(1f64.to_radians()),
        "rad2deg" => a.input()?.mul(1f64.to_degrees()),
        "positive" => a.input()?,
        "polygamma" => match a.get(0, "n") {
            Some(Arg::Number(_)) => a.tensor(1, "input")?.polygamma(a.int(0, "n")?),
            _ => a.input()?.polygamma(a.int(1, "n")?),
        },
        "logit" => a.input()?.logit_with(a.opt_float(1, "eps")?),
        "mvlgamma" | "multigammaln" => a.input()?.mvlgamma(a.int(1, "p")?),
        "float_power" => {
            let base = match a.operand(0, "input")? {
                Operand::Tensor(t) => t,
                Operand::Number(n) => Tensor::full((), n, DType::F64),
            };
            base.float_power(&a.operand(1, "exponent")?)
        }
        "heaviside" => a.input()?.heaviside(&a.tensor(1, "values")?),
        "ldexp" => a.input()?.ldexp(&a.tensor(1, "other")?),
        "nextafter" => a.input()?.nextafter(&a.tensor(1, "other")?),
        "frexp" => return Ok(a.input()?.frexp().into()),
        "frac" => {
            let x = a.input()?;
            x.sub(x.trunc())
        }
        _ => return Err(Failure::Unknown),
    }
    .into())
}

/// An operator with a factor alpha on its right operand.
fn with_alpha(
    a: &Args,
    with_alpha: fn(&Tensor, &Operand, Scalar) -> Tensor,
    plain: fn(&Tensor, &Operand) -> Tensor,
) -> Parsed<Tensor> {
    let (x, y) = (a.input()?, a.operand(1, "other")?);
    Ok(match a.opt_number(2, "alpha")? {
        Some(alpha) => with_alpha(&x, &y, alpha),
        None => plain(&x, &y),
    })
}

fn clamp(a: &Args) -> Parsed<Tensor> {
    let x = a.input()?;
    Ok(match (a.opt_operand(1, "min")?, a.opt_operand(2, "max")?) {
        (Some(low), Some(high)) => x.clamp(&low, &high),
        (Some(low), None) => x.clamp_min(&low),
        (None, Some(high)) => x.clamp_max(&high),
        (None, None) => return Err(rejected("clamp needs a bound")),
    })
}

macro_rules! by_name {
    ($op:expr, $call:expr; $($name:ident)*) => {
        match $op {
            $(stringify!($name) => Some($call(Tensor::$name)),)*
            _ => None,
        }
    };
}

fn unary(op: &str, a: &Args) -> Parsed<Option<Tensor>> {
    let name = op.strip_prefix("nn.functional.").unwrap_or(op);
    let name = match name {
        "sgn" => "sign", // the same on real numbers
        other => other,
    };
    // Functions of the same name with parameters, handled elsewhere.
    if matches!(
        op,
        "round" | "nn.functional.softplus" | "nn.functional.elu" | "nn.functional.gelu"
    ) {
        return Ok(None);
    }
    let call = |f: fn(&Tensor) -> Tensor| a.input().map(|x| f(&x));
    let result = by_name!(name, call;
        neg abs sign sqrt rsqrt reciprocal square exp exp2 expm1 log log2 log10 log1p
        sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf
        erfc erfinv log_ndtr ndtri ndtr lgamma digamma i0 i0e i1 i1e sinc entr signbit
        floor ceil trunc sigmoid logsigmoid relu relu6 silu softsign mish selu
        hardsigmoid hardswish bitwise_not logical_not isnan isinf isfinite isposinf isneginf
        tanhshrink
    );
    a.bool_or(usize::MAX, "inplace", false)?;
    result.transpose()
}

/// A number on the left of a tensor, as a tensor.
fn number_beside(n: Scalar, y: &Tensor) -> Tensor {
    let dtype = match n {
        _ if n.kind() <= y.dtype().kind() => y.dtype(),
        Scalar::Float(_) => DType::F32,
        _ => DType::I64,
    };
    Tensor::full((), n, dtype)
}

macro_rules! by_name_binary {
    ($op:expr; $($name:ident)*) => {
        match $op {
            $(stringify!($name) => |x: &Tensor, y: &Operand| x.$name(y),)*
            _ => return Ok(None),
        }
    };
}

fn binary(op: &str, a: &Args) -> Parsed<Option<Tensor>> {
    let op = match (op, a.get(1, "other")) {
        ("max", Some(Arg::Tensor(..))) => "maximum",
        ("min", Some(Arg::Tensor(..))) => "minimum",
        (other, _) => other,
    };
    let f: fn(&Tensor, &Operand) -> Tensor = by_name_binary!(op;
        mul floor_divide fmod remainder pow atan2 maximum minimum eq ne lt le gt ge
        bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift
        logical_and logical_or logical_xor
        fmax fmin hypot logaddexp logaddexp2 xlogy xlog1py zeta gcd lcm copysign
    );
    let y = match op {
        "pow" => a.operand(1, "exponent")?,
        _ => a.operand(1, "other")?,
    };
    let x = match (a.operand(0, "input")?, &y) {
        (Operand::Tensor(x), _) => x,
        (Operand::Number(n), Operand::Tensor(y)) => number_beside(n, y),
        _ => return Err(unsupported("two numbers")),
    };
    Ok(Some(f(&x, &y)))
}
