//! Elementwise operations with promotion.

use crate::operand::{AsTensor, Other};
use crate::record::{Recorder, compose};
use crate::{DType, Scalar, Tensor, autocast, names, promote};
use kiln_base::Kind;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, ensure};
use smallvec::{SmallVec, smallvec};

impl<'a> Other<'a> {
    /// The operands of an operation with `t` on the left.
    pub(crate) fn operands_with<'t>(&'t self, t: &'t Tensor) -> SmallVec<[&'t Tensor; 3]> {
        match self {
            Other::Tensor(o) => smallvec![t, &**o],
            Other::Number(_) => smallvec![t],
        }
    }

    /// Casts both operands to the dtype that they promote to.
    pub(crate) fn promoted(
        &self,
        b: &mut Recorder,
        t: &Tensor,
    ) -> Result<(Tensor, Tensor), OpError> {
        self.promote_by(b, t, |dtype| dtype)
    }

    /// Casts both operands to the dtype that `computed` returns for the promoted one.
    fn promote_by(
        &self,
        b: &mut Recorder,
        t: &Tensor,
        computed: impl Fn(DType) -> DType,
    ) -> Result<(Tensor, Tensor), OpError> {
        match self {
            Other::Tensor(o) => {
                names::check_aligned(t, o)?;
                let dtype = computed(promote::common_dtype(&[t, o])?);
                Ok((b.cast(t, dtype)?, b.cast(o, dtype)?))
            }
            Other::Number(s) => {
                let dtype = promote::with_scalar(t.dtype(), *s);
                let number = b.full(*s, dtype, t.dims())?;
                let dtype = computed(dtype);
                Ok((b.cast(t, dtype)?, b.cast(&number, dtype)?))
            }
        }
    }
}

/// The dtype rule of a binary operation, besides promotion.
#[derive(Copy, Clone, PartialEq)]
pub(crate) enum Rule {
    /// Computes in the promoted dtype.
    Plain,
    /// Integers and bool become f32.
    Float,
    /// Bool is compared as integers.
    Ordered,
}

/// A binary operation with promotion.
#[track_caller]
pub(crate) fn binary(called: &'static str, op: Pw, rule: Rule, a: &Tensor, other: Other) -> Tensor {
    if let Some(cast) = autocast::begin(called, &other.operands_with(a)) {
        let other = match &other {
            Other::Tensor(t) => Other::from(cast.apply(t)),
            Other::Number(n) => Other::Number(*n),
        };
        let (a, _inside) = (cast.apply(a), cast.enter());
        return binary(called, op, rule, &a, other);
    }
    compose(called, &other.operands_with(a), |b| {
        check(op, a, &other)?;
        let (x, y) = other.promote_by(b, a, |dtype| match rule {
            Rule::Float => promote::float_dtype(dtype),
            Rule::Ordered if dtype == DType::Bool => DType::U8,
            _ => dtype,
        })?;
        b.pointwise(op, &[x, y])
    })
}

/// Returns an error for calls that could be computed but would surprise, as in PyTorch.
fn check(op: Pw, a: &Tensor, other: &Other) -> Result<(), OpError> {
    match (op, other) {
        (Pw::Sub, Other::Tensor(t)) => ensure!(
            a.dtype() != DType::Bool && t.dtype() != DType::Bool,
            "bool tensors can't be subtracted; use bitwise_xor or logical_not"
        ),
        (Pw::Sub, Other::Number(_)) => ensure!(
            a.dtype() != DType::Bool,
            "a number can't be subtracted from a bool tensor; use logical_not"
        ),
        (Pw::Pow, Other::Number(Scalar::Int(n))) => ensure!(
            !a.dtype().is_int() || *n >= 0,
            "integers have no negative powers ({n}); cast to a float first"
        ),
        _ => {}
    }
    Ok(())
}

/// `a + b` and `a · b` on bool are "or" and "and".
fn on_bool(op: Pw, a: &Tensor, other: &Other) -> Pw {
    let bool_number = matches!(other, Other::Number(s) if s.kind() == Kind::Bool);
    let bool_tensor = matches!(other, Other::Tensor(t) if t.dtype() == DType::Bool);
    match op {
        Pw::Add if a.dtype() == DType::Bool && (bool_number || bool_tensor) => Pw::Or,
        Pw::Mul if a.dtype() == DType::Bool && (bool_number || bool_tensor) => Pw::And,
        op => op,
    }
}

/// A unary operation; `float` casts integers to f32 first.
#[track_caller]
pub(crate) fn unary(called: &'static str, op: Pw, float: bool, t: &Tensor) -> Tensor {
    let cast = autocast::begin(called, &[t]).map(|cast| cast.apply(t));
    let t = cast.as_ref().unwrap_or(t);
    compose(called, &[t], |b| {
        let dtype = match (op, t.dtype()) {
            (Pw::Sign, DType::Bool) => return Ok(t.clone()),
            (Pw::Square, DType::Bool) => DType::I64,
            (_, dtype) if float => promote::float_dtype(dtype),
            (_, dtype) => dtype,
        };
        let x = b.cast(t, dtype)?;
        b.pointwise(op, &[x])
    })
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident = $row:ident $float:literal;)*) => {
        #[on_cells]
        impl Tensor {
            $($(#[$doc])*
            pub fn $name(&self) -> Tensor {
                unary(stringify!($name), Pw::$row, $float, self)
            })*
        }
    };
}

unary_methods! {
    /// −x.
    neg = Neg false;
    /// |x|.
    abs = Abs false;
    /// −1, 0 or 1; NaN stays.
    sign = Sign false;
    /// √x.
    sqrt = Sqrt true;
    /// 1 / √x.
    rsqrt = Rsqrt true;
    /// 1 / x.
    reciprocal = Reciprocal true;
    /// x².
    square = Square false;
    /// eˣ.
    exp = Exp true;
    /// 2ˣ.
    exp2 = Exp2 true;
    /// eˣ − 1.
    expm1 = Expm1 true;
    /// Natural logarithm.
    log = Log true;
    /// Logarithm to base 2.
    log2 = Log2 true;
    /// Logarithm to base 10.
    log10 = Log10 true;
    /// log(1 + x).
    log1p = Log1p true;
    /// Sine.
    sin = Sin true;
    /// Cosine.
    cos = Cos true;
    /// Tangent.
    tan = Tan true;
    /// Inverse sine.
    asin = Asin true;
    /// Inverse cosine.
    acos = Acos true;
    /// Inverse tangent.
    atan = Atan true;
    /// Hyperbolic sine.
    sinh = Sinh true;
    /// Hyperbolic cosine.
    cosh = Cosh true;
    /// Hyperbolic tangent.
    tanh = Tanh true;
    /// Inverse hyperbolic sine.
    asinh = Asinh true;
    /// Inverse hyperbolic cosine.
    acosh = Acosh true;
    /// Inverse hyperbolic tangent.
    atanh = Atanh true;
    /// The error function.
    erf = Erf true;
    /// 1 − erf(x), without cancellation.
    erfc = Erfc true;
    /// The inverse of the error function: ±∞ at ±1, NaN outside.
    erfinv = ErfInv true;
    /// The logarithm of the standard normal distribution function.
    log_ndtr = LogNdtr true;
    /// The quantile of the standard normal distribution.
    ndtri = Ndtri true;
    /// The logarithm of |Γ(x)|.
    lgamma = Lgamma true;
    /// The derivative of log Γ.
    digamma = Digamma true;
    /// The modified Bessel function of the first kind and order 0.
    i0 = I0 true;
    /// e^(−|x|) · I₀(x).
    i0e = I0e true;
    /// The modified Bessel function of the first kind and order 1.
    i1 = I1 true;
    /// e^(−|x|) · I₁(x).
    i1e = I1e true;
    /// Largest integer not above x.
    floor = Floor false;
    /// Smallest integer not below x.
    ceil = Ceil false;
    /// Nearest integer, halves to even.
    round = Round false;
    /// Integer part.
    trunc = Trunc false;
    /// 1 / (1 + e⁻ˣ).
    sigmoid = Sigmoid true;
    /// log(sigmoid(x)).
    logsigmoid = LogSigmoid false;
    /// max(x, 0).
    relu = Relu false;
    /// min(max(x, 0), 6).
    relu6 = Relu6 false;
    /// x · Φ(x) with the error function.
    gelu = Gelu false;
    /// x · Φ(x) with the tanh approximation.
    gelu_tanh = GeluTanh false;
    /// x · sigmoid(x).
    silu = Silu false;
    /// log(1 + eˣ).
    softplus = Softplus false;
    /// x / (1 + |x|).
    softsign = Softsign true;
    /// x · tanh(softplus(x)).
    mish = Mish false;
    /// x > 0 ? x : eˣ − 1.
    elu = Elu false;
    /// The self-normalising ELU.
    selu = Selu false;
    /// min(max(x + 3, 0), 6) / 6.
    hardsigmoid = Hardsigmoid false;
    /// x · hardsigmoid(x).
    hardswish = Hardswish false;
    /// Logical not of bool, bitwise not of integers.
    bitwise_not = Not false;
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident = $row:ident $rule:ident;)*) => {
        #[on_cells]
        impl Tensor {
            $($(#[$doc])*
            pub fn $name<'a>(&self, other: impl Into<Other<'a>>) -> Tensor {
                binary(stringify!($name), on_bool(Pw::$row, self, &other), Rule::$rule, self, other)
            })*
        }
    };
}

binary_methods! {
    /// a + b.
    add = Add Plain;
    /// a − b.
    sub = Sub Plain;
    /// a · b.
    mul = Mul Plain;
    /// a / b, always a float.
    div = Div Float;
    /// a / b rounded down.
    floor_divide = FloorDivide Plain;
    /// The remainder with the dividend's sign.
    fmod = Fmod Plain;
    /// The remainder with the divisor's sign.
    remainder = Remainder Plain;
    /// aᵇ.
    pow = Pow Plain;
    /// The angle of (b, a).
    atan2 = Atan2 Float;
    /// The larger; NaN if either is NaN.
    maximum = Maximum Plain;
    /// The smaller; NaN if either is NaN.
    minimum = Minimum Plain;
    /// The larger; of a number and NaN, the number.
    fmax = Fmax Plain;
    /// The smaller; of a number and NaN, the number.
    fmin = Fmin Plain;
    /// √(a² + b²) of floats, without intermediate overflow.
    hypot = Hypot Plain;
    /// log(eᵃ + eᵇ) of floats, without intermediate overflow.
    logaddexp = LogAddExp Plain;
    /// log₂(2ᵃ + 2ᵇ) of floats, without intermediate overflow.
    logaddexp2 = LogAddExp2 Plain;
    /// a · log(b); 0 for a = 0 unless b is NaN.
    xlogy = Xlogy Float;
    /// a · log(1 + b); 0 for a = 0 unless b is NaN.
    xlog1py = Xlog1py Float;
    /// The Hurwitz zeta function: the sum of (b + k)^(−a) over k ≥ 0.
    zeta = Zeta Float;
    /// The greatest common divisor of integers.
    gcd = Gcd Plain;
    /// The least common multiple of integers.
    lcm = Lcm Plain;
    /// a = b.
    eq = Eq Plain;
    /// a ≠ b.
    ne = Ne Plain;
    /// a < b.
    lt = Lt Ordered;
    /// a ≤ b.
    le = Le Ordered;
    /// a > b.
    gt = Gt Ordered;
    /// a ≥ b.
    ge = Ge Ordered;
    /// Logical and of bool, bitwise and of integers.
    bitwise_and = And Plain;
    /// Logical or of bool, bitwise or of integers.
    bitwise_or = Or Plain;
    /// Exclusive or.
    bitwise_xor = Xor Plain;
    /// a · 2ᵇ.
    bitwise_left_shift = Shl Plain;
    /// a / 2ᵇ rounded down.
    bitwise_right_shift = Shr Plain;
}

#[on_cells]
impl Tensor {
    /// The values converted to another dtype.
    pub fn to_dtype(&self, dtype: DType) -> Tensor {
        compose("to_dtype", &[self], |b| b.cast(self, dtype))
    }

    /// `condition ? self : other`, broadcast; the condition is bool.
    pub fn where_cond<'a>(&self, condition: impl AsTensor, other: impl Into<Other<'a>>) -> Tensor {
        let mut operands = other.operands_with(self);
        operands.push(condition);
        compose("where", &operands, |b| {
            let (x, y) = other.promoted(b, self)?;
            b.pointwise(Pw::Select, &[condition.clone(), x, y])
        })
    }
}

/// A binary operation with a number on the left.
#[track_caller]
pub(super) fn reversed(row: Pw, number: Scalar, t: &Tensor) -> Tensor {
    let cast = autocast::begin(row.name(), &[t]).map(|cast| cast.apply(t));
    let t = cast.as_ref().unwrap_or(t);
    compose(row.name(), &[t], |b| {
        let (x, n) = Other::Number(number).promote_by(b, t, |dtype| match row {
            Pw::Div => promote::float_dtype(dtype),
            _ => dtype,
        })?;
        b.pointwise(row, &[n, x])
    })
}
