//! Elementwise operators.

use super::{Record, text};
use crate::call::{Call, Results, axis, single};
use crate::fault::invalid;
use crate::packed::Packed;
use crate::value::{Traced, Value};
use crate::{known, tensor};
use kiln_tensor::{DType, Result, RoundingMode, Scalar, SoftPlus, Tensor};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "Abs" => |c| single(c.tensor(0)?.abs()),
        "Acos" => |c| single(c.tensor(0)?.acos()),
        "Acosh" => |c| single(c.tensor(0)?.acosh()),
        "Asin" => |c| single(c.tensor(0)?.asin()),
        "Asinh" => |c| single(c.tensor(0)?.asinh()),
        "Atan" => |c| single(c.tensor(0)?.atan()),
        "Atanh" => |c| single(c.tensor(0)?.atanh()),
        "BitwiseNot" | "Not" => |c| {
            let x = c.tensor(0)?;
            let unsigned = Unsigned::from_tensor(&x);
            single(unsigned.restore(unsigned.signed(&x).bitwise_not()))
        },
        "Ceil" => |c| single(c.tensor(0)?.ceil()),
        "Cos" => |c| single(c.tensor(0)?.cos()),
        "Cosh" => |c| single(c.tensor(0)?.cosh()),
        "Erf" => |c| single(c.tensor(0)?.erf()),
        "Exp" => |c| single(c.tensor(0)?.exp()),
        "Floor" => |c| single(c.tensor(0)?.floor()),
        "HardSwish" => |c| single(c.tensor(0)?.hardswish()),
        "IsNaN" => |c| single(c.tensor(0)?.isnan()),
        "Log" => |c| single(c.tensor(0)?.log()),
        "Mish" => |c| single(c.tensor(0)?.mish()),
        "Neg" => |c| single(c.tensor(0)?.neg()),
        "Reciprocal" => |c| single(c.tensor(0)?.reciprocal()),
        "Relu" => |c| single(c.tensor(0)?.relu()),
        "Round" => |c| single(c.tensor(0)?.round()),
        "Sigmoid" => |c| single(c.tensor(0)?.sigmoid()),
        "Sign" => |c| single(c.tensor(0)?.sign()),
        "Sin" => |c| single(c.tensor(0)?.sin()),
        "Sinh" => |c| single(c.tensor(0)?.sinh()),
        // Without a threshold above which PyTorch's is linear.
        "Softplus" => |c| {
            single(
                c.tensor(0)?
                    .softplus_with(SoftPlus::new().threshold(f64::INFINITY)),
            )
        },
        "Softsign" => |c| single(c.tensor(0)?.softsign()),
        "Sqrt" => |c| single(c.tensor(0)?.sqrt()),
        "Tan" => |c| single(c.tensor(0)?.tan()),
        "Tanh" => |c| single(c.tensor(0)?.tanh()),

        "Celu" => |c| single(c.tensor(0)?.celu_with(c.float("alpha", 1.0)?)),
        "Clip" => clip,
        "Elu" => |c| single(c.tensor(0)?.elu_with(c.float("alpha", 1.0)?)),
        "Gelu" => |c| {
            let x = c.tensor(0)?;
            match c.text("approximate", "none")? {
                "none" => single(x.gelu()),
                "tanh" => single(x.gelu_tanh()),
                other => Err(invalid(format!("there is no approximation {other:?}"))),
            }
        },
        "HardSigmoid" => |c| {
            let y = c.tensor(0)? * c.float("alpha", 0.2)? + c.float("beta", 0.5)?;
            single(y.clamp(0.0, 1.0))
        },
        "IsInf" => |c| {
            let x = c.tensor(0)?;
            match (
                c.flag("detect_negative", true)?,
                c.flag("detect_positive", true)?,
            ) {
                (true, true) => single(x.isinf()),
                (true, false) => single(x.isneginf()),
                (false, true) => single(x.isposinf()),
                (false, false) => single(Tensor::zeros(x.dims(), DType::Bool)),
            }
        },
        "LeakyRelu" => |c| single(c.tensor(0)?.leaky_relu_with(c.float("alpha", 0.01)?)),
        "PRelu" => prelu,
        "Selu" => |c| {
            let (alpha, gamma) = (c.float("alpha", 1.673_263_2)?, c.float("gamma", 1.050_701)?);
            single(c.tensor(0)?.elu_with(alpha) * gamma)
        },
        "Shrink" => |c| {
            let (x, lambda, bias) = (c.tensor(0)?, c.float("lambd", 0.5)?, c.float("bias", 0.0)?);
            let dtype = x.dtype();
            let wide = if dtype.is_float() {
                x
            } else {
                x.to_dtype(DType::F64)
            };
            let low = (&wide + bias).where_cond(wide.lt(-lambda), wide.zeros_like());
            single(
                (&wide - bias)
                    .where_cond(wide.gt(lambda), low)
                    .to_dtype(dtype),
            )
        },
        "SwiGLU" => |c| {
            let gate = swish(&c.tensor(0)?, c.float("alpha", 1.0)?);
            single(gate * c.tensor(1)?)
        },
        "Swish" => |c| single(swish(&c.tensor(0)?, c.float("alpha", 1.0)?)),
        "ThresholdedRelu" => |c| single(c.tensor(0)?.threshold(c.float("alpha", 1.0)?, 0.0)),

        "Add" => |c| binary(c, |a, b| a.add(b)),
        "And" => |c| binary(c, |a, b| a.logical_and(b)),
        "BitShift" => |c| match c.text("direction", "")? {
            "LEFT" => shift(c, |a, b| a.bitwise_left_shift(b)),
            "RIGHT" => {
                let is_wide = Unsigned::from_tensor(&c.tensor(0)?).is_wide();
                shift(c, |a, b| match is_wide {
                    // Without copies of the sign.
                    true => {
                        let kept = b.full_like(2).bitwise_left_shift(b.rsub(63)) - 1i64;
                        a.bitwise_right_shift(b).bitwise_and(kept)
                    }
                    false => a.bitwise_right_shift(b),
                })
            }
            other => Err(invalid(format!("there is no direction {other:?}"))),
        },
        "BitwiseAnd" => |c| binary(c, |a, b| a.bitwise_and(b)),
        "BitwiseOr" => |c| binary(c, |a, b| a.bitwise_or(b)),
        "BitwiseXor" => |c| binary(c, |a, b| a.bitwise_xor(b)),
        "Div" => |c| {
            let is_wide = Unsigned::from_tensor(&c.tensor(0)?).is_wide();
            binary(c, |a, b| match a.dtype().is_float() {
                true => a.div(b),
                false if is_wide => wide_division(a, b).0,
                false => a.div_rounding(b, RoundingMode::Trunc),
            })
        },
        "Equal" => |c| binary(c, |a, b| a.eq(b)),
        "Greater" => |c| apply_in_order(c, |a, b| a.gt(b)),
        "GreaterOrEqual" => |c| apply_in_order(c, |a, b| a.ge(b)),
        "Less" => |c| apply_in_order(c, |a, b| a.lt(b)),
        "LessOrEqual" => |c| apply_in_order(c, |a, b| a.le(b)),
        "Mod" => |c| match (
            Unsigned::from_tensor(&c.tensor(0)?).is_wide(),
            c.flag("fmod", false)?,
        ) {
            (true, _) => binary(c, |a, b| wide_division(a, b).1),
            (false, true) => binary(c, |a, b| a.fmod(b)),
            (false, false) => binary(c, |a, b| a.remainder(b)),
        },
        "Mul" => |c| binary(c, |a, b| a.mul(b)),
        "Or" => |c| binary(c, |a, b| a.logical_or(b)),
        // The exponent may be of another type.
        "Pow" => |c| {
            let dtype = c.tensor(0)?.dtype();
            let power = binary_tensor(c, |a, b| {
                let (a, b) = match (a.dtype().is_float(), b.dtype().is_float()) {
                    (true, false) => (a.clone(), b.to_dtype(a.dtype())),
                    (false, true) => (a.to_dtype(DType::F64), b.to_dtype(DType::F64)),
                    _ => (a.clone(), b.to_dtype(a.dtype())),
                };
                a.pow(b)
            });
            single(power?.to_dtype(dtype))
        },
        "Sub" => |c| binary(c, |a, b| a.sub(b)),
        "Xor" => |c| binary(c, |a, b| a.logical_xor(b)),

        "Max" => |c| fold(c, |a, b| in_order(a, b, |a, b| a.maximum(b))),
        "Mean" => |c| {
            let count = c.inputs.len() as f64;
            single(sum(c)? / count)
        },
        "Min" => |c| fold(c, |a, b| in_order(a, b, |a, b| a.minimum(b))),
        "Sum" => |c| single(sum(c)?),

        "Cast" => |c| match c.packed("to")? {
            Some(packed) => cast_packed(c, packed),
            None if known::to_text(c)? => text::of_numbers(c),
            None => single(cast(c, tensor::dtype(c.int("to", 0)?)?)?),
        },
        "CastLike" => |c| match c.traced(1)?.packed() {
            Some(packed) => cast_packed(c, packed),
            None => single(cast(c, c.tensor(1)?.dtype())?),
        },
        "BitCast" => bit_cast,
        "Where" => |c| single(c.tensor(1)?.where_cond(c.tensor(0)?, c.tensor(2)?)),
        _ => return None,
    })
}

/// x · sigmoid(alpha · x).
pub(super) fn swish(x: &Tensor, alpha: f64) -> Tensor {
    x * (x * alpha).sigmoid()
}

/// Casts the input. Floats of 8 bits saturate, unless an attribute says otherwise.
fn cast(c: &Call, to: DType) -> Result<Tensor> {
    let x = c.tensor(0)?;
    let max_finite = to
        .float()
        .filter(|_| to.size() == 1 && x.dtype().is_float());
    match max_finite.filter(|_| x.dtype().size() > 1) {
        Some(float) if c.flag("saturate", true)? => {
            Ok(x.clamp(-float.largest, float.largest).to_dtype(to))
        }
        _ => Ok(x.to_dtype(to)),
    }
}

/// The same bits as another dtype of the same size. Those of floats are read.
fn bit_cast(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let to = tensor::dtype(c.int("to", 0)?)?;
    if to.size() != x.dtype().size() {
        return Err(invalid(format!(
            "{} and {to} are not of one size",
            x.dtype()
        )));
    }
    if !to.is_float() && !x.dtype().is_float() {
        return single(x.to_dtype(to));
    }
    let bits = Tensor::from_bytes(&x.to_bytes()?, to, x.shape()?);
    single(bits.to(x.device()))
}

fn cast_packed(c: &Call, packed: Packed) -> Results {
    let y = packed.cast(&c.tensor(0)?, c.text("round_mode", "up")?);
    Ok(vec![Value::Tensor(
        Traced::from_tensor(y).packed_as(Some(packed)),
    )])
}

/// A binary operator. Before version 7, B is broadcast where attributes say so.
fn binary(c: &Call, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Results {
    single(binary_tensor(c, f)?)
}

/// [`align`] operands, unsigned ones as [`Unsigned`].
fn binary_tensor(c: &Call, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Result<Tensor> {
    let (a, b) = align(c)?;
    let unsigned = Unsigned::from_tensor(&a);
    Ok(unsigned.restore(f(&unsigned.signed(&a), &unsigned.signed(&b))))
}

fn align(c: &Call) -> Result<(Tensor, Tensor)> {
    let (a, mut b) = (c.tensor(0)?, c.tensor(1)?);
    if c.version < 7 && c.flag("broadcast", false)? && c.attribute("axis").is_some() && b.ndim() > 0
    {
        let axis = axis(c.int("axis", 0)?, a.ndim())?;
        for _ in axis + b.ndim()..a.ndim() {
            b = b.unsqueeze(-1);
        }
    }
    Ok((a, b))
}

/// Unsigned integers that Kiln stores but does not compute in, as i64. Of u64, all but what orders and divides has the
/// same bits.
pub(super) struct Unsigned(Option<DType>);

impl Unsigned {
    pub fn from_tensor(t: &Tensor) -> Unsigned {
        let dtype = t.dtype();
        Unsigned(matches!(dtype, DType::U16 | DType::U32 | DType::U64).then_some(dtype))
    }

    /// Returns the numbers as i64.
    pub fn signed(&self, t: &Tensor) -> Tensor {
        match self.0 {
            Some(dtype) if t.dtype() == dtype => t.to_dtype(DType::I64),
            _ => t.clone(),
        }
    }

    /// Returns a result in the operands' dtype, unless it is one of truth values.
    pub fn restore(&self, t: Tensor) -> Tensor {
        match self.0 {
            Some(dtype) if t.dtype() != DType::Bool => t.to_dtype(dtype),
            _ => t,
        }
    }

    /// True if i64 orders the numbers in another way.
    pub fn is_wide(&self) -> bool {
        self.0 == Some(DType::U64)
    }

    /// Moves the numbers of u64, as i64, to where i64 orders them alike; a second time, back.
    pub fn ordered(&self, t: &Tensor) -> Tensor {
        match self.is_wide() {
            true => t.bitwise_xor(i64::MIN),
            false => t.clone(),
        }
    }
}

/// A binary operator that depends on the order of numbers; `f` keeps to it.
fn apply_in_order(c: &Call, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Results {
    let (a, b) = align(c)?;
    single(in_order(&a, &b, f))
}

fn in_order(a: &Tensor, b: &Tensor, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Tensor {
    let unsigned = Unsigned::from_tensor(a);
    let moved = |t: &Tensor| unsigned.ordered(&unsigned.signed(t));
    let y = f(&moved(a), &moved(b));
    match y.dtype() {
        DType::Bool => y,
        _ => unsigned.restore(unsigned.ordered(&y)),
    }
}

/// The quotient, rounded towards 0, and the remainder of u64 as i64.
fn wide_division(a: &Tensor, b: &Tensor) -> (Tensor, Tensor) {
    let less = |a: &Tensor, b: &Tensor| a.bitwise_xor(i64::MIN).lt(b.bitwise_xor(i64::MIN));
    // Half of a has no sign; twice its quotient is at most 1 too small.
    let half = a.bitwise_right_shift(1).bitwise_and(i64::MAX);
    let is_large = b.lt(0);
    let safe = b.ones_like().where_cond(&is_large, b);
    let even_quotient = half.div_rounding(&safe, RoundingMode::Trunc) * 2i64;
    let excess = a - &even_quotient * &safe;
    let carry = less(&excess, &safe).logical_not().to_dtype(DType::I64);
    let large = less(a, b).logical_not().to_dtype(DType::I64);
    let quotient = large.where_cond(&is_large, even_quotient + carry);
    let remainder = a - &quotient * b;
    (quotient, remainder)
}

/// Shifts by at least the number of bits, or by a negative one, give what is left of the sign.
fn shift(c: &Call, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Results {
    let bits = 8 * c.tensor(0)?.dtype().size() as i64;
    let keeps_sign =
        c.text("direction", "")? == "RIGHT" && !Unsigned::from_tensor(&c.tensor(0)?).is_wide();
    binary(c, |a, b| {
        let overflowed = match keeps_sign {
            true => f(a, &b.full_like(bits - 1)),
            false => a.zeros_like(),
        };
        let in_width = b.ge(0).logical_and(b.lt(bits));
        f(a, &b.clamp(0, bits - 1)).where_cond(in_width, overflowed)
    })
}

fn fold(c: &Call, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Results {
    let operands = c.tensors(0)?;
    let folded = operands.into_iter().reduce(|a, b| f(&a, &b));
    single(folded.ok_or_else(|| invalid("there are no inputs"))?)
}

fn sum(c: &Call) -> Result<Tensor> {
    let operands = c.tensors(0)?;
    let sum = operands.into_iter().reduce(|a, b| a + b);
    sum.ok_or_else(|| invalid("there are no inputs"))
}

fn clip(c: &Call) -> Results {
    let x = c.tensor(0)?;
    if c.version < 11 {
        let (low, high) = (c.maybe_float("min")?, c.maybe_float("max")?);
        let x = low.map_or(x.clone(), |low| x.clamp_min(Scalar::Float(low)));
        return single(high.map_or(x.clone(), |high| x.clamp_max(Scalar::Float(high))));
    }
    // A minimum above the maximum gives the maximum.
    let x = c.optional(1)?.map_or(x.clone(), |low| x.maximum(low));
    single(c.optional(2)?.map_or(x.clone(), |high| x.minimum(high)))
}

fn prelu(c: &Call) -> Results {
    let (x, mut slope) = (c.tensor(0)?, c.tensor(1)?);
    // Before version 7, a vector is one number for each channel.
    if c.version < 7 && slope.ndim() == 1 {
        for _ in 2..x.ndim() {
            slope = slope.unsqueeze(-1);
        }
    }
    single(x.where_cond(x.ge(0), &x * slope))
}
