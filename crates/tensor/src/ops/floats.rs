//! The parts of floating-point numbers, and steps between them.

use super::args::{Int, check_alike, check_float};
use crate::operand::AsTensor;
use crate::operand::Other;
use crate::record::{Recorded, Recorder, compose, compose_pair};
use crate::{DType, Tensor, promote};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw};

#[on_cells]
impl Tensor {
    /// True for a negative sign, also that of −0.
    pub fn signbit(&self) -> Tensor {
        compose("signbit", &[self], |b| match self.dtype() {
            DType::Bool => b.full(false, DType::Bool, self.dims()),
            _ => b.unary(Pw::SignBit, self),
        })
    }

    /// Returns |a| with the sign of b, where −0 counts as negative; always a float.
    pub fn copysign<'a>(&self, other: impl Into<Other<'a>>) -> Tensor {
        compose("copysign", &other.operands_with(self), |b| {
            let (x, y) = other.promoted(b, self)?;
            let dtype = promote::float_dtype(x.dtype());
            let (x, y) = (b.cast(&x, dtype)?, b.cast(&y, dtype)?);
            let size = b.unary(Pw::Abs, &x)?;
            let minus = b.unary(Pw::Neg, &size)?;
            let negative = b.unary(Pw::SignBit, &y)?;
            let signed = b.select(&negative, &minus, &size)?;
            b.connect(&signed, &y)
        })
    }

    /// 0 below zero, 1 above, `values` at zero. Both tensors must have the same dtype.
    pub fn heaviside(&self, values: impl AsTensor) -> Tensor {
        compose("heaviside", &[self, values], |b| {
            check_alike(self, "input", values, "values")?;
            if self.dtype() == DType::Bool {
                return b.binary(Pw::Or, self, values);
            }
            let above = b.with(Pw::Gt, self, 0i64)?;
            let step = b.cast(&above, self.dtype())?;
            let zero = b.with(Pw::Eq, self, 0i64)?;
            b.select(&zero, values, &step)
        })
    }

    /// x · 2ᵉ for an exponent e.
    pub fn ldexp(&self, other: impl AsTensor) -> Tensor {
        compose("ldexp", &[self, other], |b| {
            let exponent = b.cast(other, promote::float_dtype(other.dtype()))?;
            let power = b.unary(Pw::Exp2, &exponent)?;
            let (x, power) = b.promoted(self, &power)?;
            b.binary(Pw::Mul, &x, &power)
        })
    }

    /// The mantissa m, ½ ≤ |m| < 1, and the i32 exponent e of `x = m · 2ᵉ`. Zeros, infinities and NaN are their own
    /// mantissas, with exponent 0.
    pub fn frexp(&self) -> (Tensor, Tensor) {
        compose_pair("frexp", &[self], |b| {
            check_float(self, "operand")?;
            // The logarithm finds the exponent up to an error of one, and no intermediate value is subnormal.
            let x = b.cast(self, DType::F64)?;
            let size = b.unary(Pw::Abs, &x)?;
            let small = b.with(Pw::Lt, &size, 2f64.powi(-900))?;
            let grown = b.with(Pw::Mul, &x, 2f64.powi(200))?;
            let scaled = b.select(&small, &grown, &x)?;
            let finite = b.finite(&x)?;
            let zero = b.with(Pw::Eq, &x, 0.0)?;
            let number = b.unary(Pw::Not, &zero)?;
            let number = b.binary(Pw::And, &finite, &number)?;
            let size = b.unary(Pw::Abs, &scaled.detach())?;
            let unit = b.scalar_like(1.0, &size)?;
            let size = b.select(&number, &size, &unit)?;
            let log = b.unary(Pw::Log2, &size)?;
            let exponent = b.unary(Pw::Floor, &log)?;
            let exponent = b.with(Pw::Add, &exponent, 1.0)?;
            let minus = b.unary(Pw::Neg, &exponent)?;
            let power = b.unary(Pw::Exp2, &minus)?;
            let mantissa = b.binary(Pw::Mul, &scaled, &power)?;
            let size = b.unary(Pw::Abs, &mantissa)?;
            let high = b.with(Pw::Ge, &size, 1.0)?;
            let low = b.with(Pw::Lt, &size, 0.5)?;
            let (half, double) = (
                b.with(Pw::Mul, &mantissa, 0.5)?,
                b.with(Pw::Mul, &mantissa, 2.0)?,
            );
            let mantissa = b.select(&low, &double, &mantissa)?;
            let mantissa = b.select(&high, &half, &mantissa)?;
            let mantissa = b.select(&number, &mantissa, &x)?;
            let up = b.cast(&high, DType::F64)?;
            let down = b.cast(&low, DType::F64)?;
            let shift = b.cast(&small, DType::F64)?;
            let shift = b.with(Pw::Mul, &shift, 200.0)?;
            let exponent = b.binary(Pw::Add, &exponent, &up)?;
            let exponent = b.binary(Pw::Sub, &exponent, &down)?;
            let exponent = b.binary(Pw::Sub, &exponent, &shift)?;
            let none = b.scalar_like(0.0, &exponent)?;
            let exponent = b.select(&number, &exponent, &none)?;
            Ok((
                b.cast(&mantissa, self.dtype())?,
                b.cast(&exponent, DType::I32)?,
            ))
        })
    }

    /// The next number of the dtype from x towards `other`.
    pub fn nextafter(&self, other: impl AsTensor) -> Tensor {
        compose("nextafter", &[self, other], |b| {
            let (x, y) = b.promoted(self, other)?;
            check_float(&x, "operand")?;
            next(b, &x, &y)
        })
    }

    /// Rounded to a number of decimals, halves to even; a negative number rounds to tens, hundreds, ….
    /// Integers have no decimals to round.
    pub fn round_decimals(&self, decimals: impl Into<Int>) -> Tensor {
        if decimals == 0 {
            return self.round();
        }
        compose("round", &[self], |b| {
            check_float(self, "operand")?;
            let power = 10f64.powf(decimals.unsigned_abs() as f64);
            let (before, after) = match decimals > 0 {
                true => (Pw::Mul, Pw::Div),
                false => (Pw::Div, Pw::Mul),
            };
            let x = b.widen(self)?;
            let x = b.with(before, &x, power)?;
            let x = b.unary(Pw::Round, &x)?;
            let x = b.with(after, &x, power)?;
            b.cast(&x, self.dtype())
        })
    }
}

/// Adds or subtracts between 0.6 and 1.2 units in the last place, which rounds to the next number (after S. M. Rump
/// et al., Computing predecessor and successor in rounding to nearest, 2009). Tiny numbers are multiples of the
/// smallest positive number, which is added instead. For other dtypes the sum is exact enough in f64, for tiny f64
/// after scaling.
fn next(b: &mut Recorder, x: &Tensor, y: &Tensor) -> Recorded {
    const SCALE: i32 = 200;
    let dtype = x.dtype();
    let float = dtype.float().filter(|_| dtype.computes());
    let float = float.ok_or_else(|| OpError::new("takes floats that are computed in"))?;
    let smallest = float.smallest();
    let (from, to) = (b.cast(x, DType::F64)?, b.cast(y, DType::F64)?);
    let size = b.unary(Pw::Abs, &from)?;
    let small = b.with(Pw::Lt, &size, 2f64.powi(-500))?;
    let scaled = b.with(Pw::Mul, &from, 2f64.powi(SCALE))?;
    let start = b.select(&small, &scaled, &from)?;
    let size = b.unary(Pw::Abs, &start)?;
    let relative = b.with(Pw::Mul, &size, 0.6 * float.epsilon())?;
    let quantum = |n: i32| 2f64.powi(n.max(-1000));
    let in_small = b.scalar_like(quantum(smallest + SCALE), &start)?;
    let elsewhere = b.scalar_like(quantum(smallest), &start)?;
    let absolute = b.select(&small, &in_small, &elsewhere)?;
    let step = b.binary(Pw::Maximum, &relative, &absolute)?;
    let minus = b.unary(Pw::Neg, &step)?;
    let upwards = b.binary(Pw::Gt, &to, &from)?;
    let step = b.select(&upwards, &step, &minus)?;
    let moved = b.binary(Pw::Add, &start, &step)?;
    let unscaled = b.with(Pw::Mul, &moved, 2f64.powi(-SCALE))?;
    let moved = b.select(&small, &unscaled, &moved)?;
    let moved = b.cast(&moved, dtype)?;
    // From an infinity the next number is the largest. NaN stays, and so does x if it equals y.
    let infinite = b.unary(Pw::IsInf, x)?;
    let largest = b.scalar_like(float.largest, x)?;
    let lowest = b.unary(Pw::Neg, &largest)?;
    let up = b.with(Pw::Gt, x, 0.0)?;
    let ends = b.select(&up, &largest, &lowest)?;
    let moved = b.select(&infinite, &ends, &moved)?;
    let same = b.binary(Pw::Eq, x, y)?;
    let moved = b.select(&same, y, &moved)?;
    let both = b.binary(Pw::Add, x, y)?;
    let (no_x, no_y) = (b.unary(Pw::IsNan, x)?, b.unary(Pw::IsNan, y)?);
    let nan = b.binary(Pw::Or, &no_x, &no_y)?;
    let moved = b.select(&nan, &both, &moved)?;
    let slope = b.binary(Pw::First, x, y)?;
    b.binary(Pw::Surrogate, &moved, &slope)
}
