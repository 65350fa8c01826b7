//! Truth values, bounds and blends.

use super::args::{check_alike, check_float};
use super::arith::{Rule, binary};
use crate::operand::AsTensor;
use crate::operand::Other;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Scalar, Tensor, promote};
use kiln_base::Kind;
use kiln_derive::on_cells;
use kiln_ir::{Builder, Pw, ensure};

/// The rounding of [`Tensor::div_rounding`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RoundingMode {
    /// Towards zero.
    Trunc,
    /// Down.
    Floor,
}

options! {
    /// The tolerance of [`Tensor::isclose`]: `|a − b| ≤ atol + rtol · |b|`.
    Tolerance () {
        /// The tolerance relative to the other number (default 1e-5).
        rtol: f64 = 1e-5,
        /// The absolute tolerance (default 1e-8).
        atol: f64 = 1e-8,
        /// True if NaN equals NaN (default false).
        equal_nan: bool = false,
    }
}

options! {
    /// The replacements of [`Tensor::nan_to_num`].
    NanToNum () {
        /// The replacement of NaN; the default, `None`, is 0.
        nan: Option<f64> = None,
        /// The replacement of +∞; the default, `None`, is the dtype's largest number.
        posinf: Option<f64> = None,
        /// The replacement of −∞; the default, `None`, is the dtype's smallest number.
        neginf: Option<f64> = None,
    }
}

#[on_cells]
impl Tensor {
    /// True where both are nonzero.
    pub fn logical_and<'a>(&self, other: impl Into<Other<'a>>) -> Tensor {
        logical("logical_and", Pw::And, self, other)
    }

    /// True where at least one of them is nonzero.
    pub fn logical_or<'a>(&self, other: impl Into<Other<'a>>) -> Tensor {
        logical("logical_or", Pw::Or, self, other)
    }

    /// True where exactly one of them is nonzero.
    pub fn logical_xor<'a>(&self, other: impl Into<Other<'a>>) -> Tensor {
        logical("logical_xor", Pw::Xor, self, other)
    }

    /// True where the element is zero.
    pub fn logical_not(&self) -> Tensor {
        compose("logical_not", &[self], |b| {
            let x = b.is_nonzero(self)?;
            b.unary(Pw::Not, &x)
        })
    }

    /// True where the element is NaN.
    pub fn isnan(&self) -> Tensor {
        compose("isnan", &[self], |b| float_predicate(b, Pw::IsNan, self))
    }

    /// True where the element is infinite.
    pub fn isinf(&self) -> Tensor {
        compose("isinf", &[self], |b| float_predicate(b, Pw::IsInf, self))
    }

    /// True where the element is neither NaN nor infinite.
    pub fn isfinite(&self) -> Tensor {
        compose("isfinite", &[self], |b| b.finite(self))
    }

    /// True where the element is +∞.
    pub fn isposinf(&self) -> Tensor {
        compose("isposinf", &[self], |b| is_infinite(b, self, Pw::Gt))
    }

    /// True where the element is −∞.
    pub fn isneginf(&self) -> Tensor {
        compose("isneginf", &[self], |b| is_infinite(b, self, Pw::Lt))
    }

    /// True where `|a − b| ≤ 1e-8 + 1e-5 · |b|` for finite numbers, or where others are equal.
    pub fn isclose(&self, other: impl AsTensor) -> Tensor {
        self.isclose_with(other, Tolerance::new())
    }

    /// [`Tensor::isclose`] with another tolerance.
    pub fn isclose_with(&self, other: impl AsTensor, options: Tolerance) -> Tensor {
        let Tolerance {
            rtol,
            atol,
            equal_nan,
        } = options;
        compose("isclose", &[self, other], |b| {
            check_alike(self, "operand", other, "other operand")?;
            ensure!(rtol >= 0.0, "rtol must not be negative, but is {rtol}");
            ensure!(atol >= 0.0, "atol must not be negative, but is {atol}");
            let equal = b.binary(Pw::Eq, self, other)?;
            let dtype = if self.dtype().is_float() {
                self.dtype()
            } else {
                DType::F64
            };
            let dtype = super::short::wide(dtype);
            let (x, y) = (b.cast(self, dtype)?, b.cast(other, dtype)?);
            let difference = b.binary(Pw::Sub, &x, &y)?;
            let difference = b.unary(Pw::Abs, &difference)?;
            let size = b.unary(Pw::Abs, &y)?;
            let allowed = b.with(Pw::Mul, &size, rtol)?;
            let allowed = b.with(Pw::Add, &allowed, atol)?;
            let is_near = b.binary(Pw::Le, &difference, &allowed)?;
            let finite = b.finite(&difference)?;
            let is_near = b.binary(Pw::And, &is_near, &finite)?;
            let close = b.binary(Pw::Or, &equal, &is_near)?;
            if !equal_nan {
                return Ok(close);
            }
            let (p, q) = (b.unary(Pw::IsNan, &x)?, b.unary(Pw::IsNan, &y)?);
            let both = b.binary(Pw::And, &p, &q)?;
            b.binary(Pw::Or, &close, &both)
        })
    }

    /// Each element clamped to `min..=max`; if min is above max, the result is max. NaN stays. At a bound that is a
    /// number the gradient is 0; at one that is a tensor, both receive half of it.
    pub fn clamp<'a>(&self, min: impl Into<Other<'a>>, max: impl Into<Other<'a>>) -> Tensor {
        let mut operands = min.operands_with(self);
        if let Other::Tensor(t) = &max {
            operands.push(t);
        }
        compose("clamp", &operands, |b| {
            let (x, low) = min.promoted(b, self)?;
            let (x, high) = max.promoted(b, &x)?;
            let low = b.cast(&low, x.dtype())?;
            let numbers = matches!((&min, &max), (Other::Number(_), Other::Number(_)));
            let row = if numbers { Pw::Clip } else { Pw::Clamp };
            b.pointwise(row, &[x, low, high])
        })
    }

    /// Each element, or `min` where `min` is larger.
    pub fn clamp_min<'a>(&self, min: impl Into<Other<'a>>) -> Tensor {
        clamp_one_sided("clamp_min", Pw::Maximum, self, min)
    }

    /// Each element, or `max` where `max` is smaller.
    pub fn clamp_max<'a>(&self, max: impl Into<Other<'a>>) -> Tensor {
        clamp_one_sided("clamp_max", Pw::Minimum, self, max)
    }

    /// `self + alpha · other`.
    pub fn add_scaled<'a>(&self, other: impl Into<Other<'a>>, alpha: impl Into<Scalar>) -> Tensor {
        combine_scaled("add", self, other, alpha, |b, x, y| {
            b.binary(
                if x.dtype() == DType::Bool {
                    Pw::Or
                } else {
                    Pw::Add
                },
                x,
                y,
            )
        })
    }

    /// `self − alpha · other`.
    pub fn sub_scaled<'a>(&self, other: impl Into<Other<'a>>, alpha: impl Into<Scalar>) -> Tensor {
        combine_scaled("sub", self, other, alpha, |b, x, y| b.binary(Pw::Sub, x, y))
    }

    /// `other − self`.
    pub fn rsub<'a>(&self, other: impl Into<Other<'a>>) -> Tensor {
        self.rsub_scaled(other, 1)
    }

    /// `other − alpha · self`.
    pub fn rsub_scaled<'a>(&self, other: impl Into<Other<'a>>, alpha: impl Into<Scalar>) -> Tensor {
        compose("rsub", &other.operands_with(self), |b| {
            let (x, y) = other.promoted(b, self)?;
            ensure!(x.dtype() != DType::Bool, "bool tensors can't be subtracted");
            check_alpha(&x, alpha)?;
            let (wide_x, wide_y) = (b.widen(&x)?, b.widen(&y)?);
            let scaled = b.with(Pw::Mul, &wide_x, alpha)?;
            let y = b.binary(Pw::Sub, &wide_y, &scaled)?;
            b.cast(&y, x.dtype())
        })
    }

    /// a / b, always a float.
    pub fn true_divide<'a>(&self, other: impl Into<Other<'a>>) -> Tensor {
        binary("true_divide", Pw::Div, Rule::Float, self, other)
    }

    /// a / b rounded; integers stay integers.
    pub fn div_rounding<'a>(
        &self,
        other: impl Into<Other<'a>>,
        rounding_mode: RoundingMode,
    ) -> Tensor {
        compose("div", &other.operands_with(self), |b| {
            let (x, y) = other.promoted(b, self)?;
            let dtype = x.dtype();
            let (x, y) = (b.widen(&x)?, b.widen(&y)?);
            let quotient = match rounding_mode {
                RoundingMode::Floor => b.binary(Pw::FloorDivide, &x, &y)?,
                RoundingMode::Trunc => {
                    let quotient = b.binary(Pw::Div, &x, &y)?;
                    b.unary(Pw::Trunc, &quotient)?
                }
            };
            b.cast(&quotient, dtype)
        })
    }

    /// `self + weight · (end − self)`; all have the same float dtype.
    pub fn lerp<'a>(&self, end: impl AsTensor, weight: impl Into<Other<'a>>) -> Tensor {
        let mut operands = weight.operands_with(self);
        operands.push(end);
        compose("lerp", &operands, |b| {
            check_float(self, "start")?;
            check_alike(self, "start", end, "end")?;
            let weight = match &weight {
                Other::Tensor(w) => {
                    check_alike(self, "start", w, "weight")?;
                    Tensor::clone(w)
                }
                Other::Number(n) => b.scalar_like(*n, self)?,
            };
            b.pointwise(Pw::Lerp, &[self.clone(), end.clone(), weight])
        })
    }

    /// `self + tensor1 · tensor2`, promoted.
    pub fn addcmul(&self, tensor1: impl AsTensor, tensor2: impl AsTensor) -> Tensor {
        self.addcmul_with(tensor1, tensor2, 1)
    }

    /// `self + value · tensor1 · tensor2`, promoted.
    #[autocast]
    pub fn addcmul_with(
        &self,
        tensor1: impl AsTensor,
        tensor2: impl AsTensor,
        value: impl Into<Scalar>,
    ) -> Tensor {
        compose("addcmul", &[self, tensor1, tensor2], |b| {
            addc(b, Pw::Mul, self, tensor1, tensor2, value)
        })
    }

    /// `self + tensor1 / tensor2`, floats only.
    pub fn addcdiv(&self, tensor1: impl AsTensor, tensor2: impl AsTensor) -> Tensor {
        self.addcdiv_with(tensor1, tensor2, 1)
    }

    /// `self + value · tensor1 / tensor2`, floats only.
    #[autocast]
    pub fn addcdiv_with(
        &self,
        tensor1: impl AsTensor,
        tensor2: impl AsTensor,
        value: impl Into<Scalar>,
    ) -> Tensor {
        compose("addcdiv", &[self, tensor1, tensor2], |b| {
            ensure!(
                tensor1.dtype().is_float() || tensor2.dtype().is_float(),
                "divides floats only, not {} by {}",
                tensor1.dtype(),
                tensor2.dtype()
            );
            addc(b, Pw::Div, self, tensor1, tensor2, value)
        })
    }

    /// NaN, +∞ and −∞ replaced by 0 and the dtype's largest and smallest number.
    pub fn nan_to_num(&self) -> Tensor {
        self.nan_to_num_with(NanToNum::new())
    }

    /// [`Tensor::nan_to_num`] with other numbers.
    pub fn nan_to_num_with(&self, options: NanToNum) -> Tensor {
        let NanToNum {
            nan,
            posinf,
            neginf,
        } = options;
        compose("nan_to_num", &[self], |b| {
            let Some(float) = self.dtype().float() else {
                return Ok(self.clone());
            };
            let largest = float.largest;
            let is_nan = b.unary(Pw::IsNan, self)?;
            let x = b.fill_where(&is_nan, nan.unwrap_or(0.0), self)?;
            let above = b.with(Pw::Eq, &x, f64::INFINITY)?;
            let below = b.with(Pw::Eq, &x, f64::NEG_INFINITY)?;
            let x = b.fill_where(&above, posinf.unwrap_or(largest), &x)?;
            b.fill_where(&below, neginf.unwrap_or(-largest), &x)
        })
    }
}

#[track_caller]
fn logical(called: &'static str, op: Pw, t: &Tensor, other: Other) -> Tensor {
    compose(called, &other.operands_with(t), |b| {
        let x = b.is_nonzero(t)?;
        let y = match &other {
            Other::Tensor(o) => b.is_nonzero(o)?,
            Other::Number(n) => b.full(n.as_bool(), DType::Bool, &[])?,
        };
        b.binary(op, &x, &y)
    })
}

/// A predicate on floats; it is false for other dtypes.
fn float_predicate(b: &mut Recorder, op: Pw, t: &Tensor) -> Recorded {
    match t.dtype().kind() {
        Kind::Float => b.unary(op, t),
        _ => b.full(false, DType::Bool, t.dims()),
    }
}

fn is_infinite(b: &mut Recorder, t: &Tensor, sign: Pw) -> Recorded {
    let infinite = float_predicate(b, Pw::IsInf, t)?;
    if !t.dtype().is_float() {
        return Ok(infinite);
    }
    let side = b.with(sign, t, 0.0)?;
    b.binary(Pw::And, &infinite, &side)
}

fn check_alpha(x: &Tensor, alpha: Scalar) -> Result<(), kiln_ir::OpError> {
    ensure!(
        alpha.kind() <= x.dtype().kind(),
        "alpha {alpha} can't scale {}",
        x.dtype()
    );
    Ok(())
}

/// `combine(x, alpha · other)`, rounded once.
#[track_caller]
fn combine_scaled(
    called: &'static str,
    t: &Tensor,
    other: Other,
    alpha: Scalar,
    combine: impl FnOnce(&mut Recorder, &Tensor, &Tensor) -> Recorded,
) -> Tensor {
    compose(called, &other.operands_with(t), |b| {
        let (x, y) = other.promoted(b, t)?;
        check_alpha(&x, alpha)?;
        let dtype = x.dtype();
        let (x, y) = (b.widen(&x)?, b.widen(&y)?);
        let y = match dtype {
            DType::Bool => b.with(Pw::And, &y, alpha)?,
            _ => b.with(Pw::Mul, &y, alpha)?,
        };
        let z = combine(b, &x, &y)?;
        b.cast(&z, dtype)
    })
}

/// `x + value · (p op q)`, rounded once.
fn addc(b: &mut Recorder, op: Pw, x: &Tensor, p: &Tensor, q: &Tensor, value: Scalar) -> Recorded {
    let dtype = promote::common_dtype(&[x, p, q])?;
    let wide = super::short::wide(dtype);
    let sum = b.full(0i64, dtype, &[])?;
    check_alpha(&sum, value)?;
    let (x, p, q) = (b.cast(x, wide)?, b.cast(p, wide)?, b.cast(q, wide)?);
    let scaled = b.with(Pw::Mul, &p, value)?;
    let term = b.binary(op, &scaled, &q)?;
    let sum = b.binary(Pw::Add, &x, &term)?;
    b.cast(&sum, dtype)
}

/// Clamps at one bound. A float at or beyond a bound that is a number has no gradient.
#[track_caller]
fn clamp_one_sided(called: &'static str, row: Pw, t: &Tensor, bound: Other) -> Tensor {
    if !matches!(bound, Other::Number(_)) {
        return binary(called, row, Rule::Plain, t, bound);
    }
    compose(called, &[t], |b| {
        let (x, bound) = bound.promoted(b, t)?;
        if !x.dtype().is_float() {
            return b.pointwise(row, &[x, bound]);
        }
        let open = |b: &mut Recorder, number: f64| b.scalar_like(number, &x);
        let (low, high) = match row {
            Pw::Maximum => (bound, open(b, f64::INFINITY)?),
            _ => (open(b, f64::NEG_INFINITY)?, bound),
        };
        b.pointwise(Pw::Clip, &[x, low, high])
    })
}
