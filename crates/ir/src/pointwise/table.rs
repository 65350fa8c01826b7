//! The rows.

use super::expr::*;
use super::{Gives, Row, Takes};
use kiln_base::prim::{Binary, DivisionByZero, Unary, gcd, int_pow, lcm};
use kiln_base::special;
use serde::{Deserialize, Serialize};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

macro_rules! rows {
    ($($(#[$doc:meta])* $id:ident $name:literal $arity:literal $takes:ident $gives:ident
        float $float:expr; int $int:expr; expr $expr:expr;)*) => {
        /// A pointwise op: a row of the table.
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Pw { $($(#[$doc])* $id),* }

        pub(super) const ROWS: &[Row] = &[$(Row {
            name: $name,
            arity: $arity,
            takes: Takes::$takes,
            gives: Gives::$gives,
            float: $float,
            int: $int,
            expr: $expr,
        }),*];

        impl Pw {
            /// Every row, in table order.
            pub const ALL: &'static [Pw] = &[$(Pw::$id),*];
        }
    };
}

const NO_INT: fn(&[i64]) -> Result<i64, DivisionByZero> = |_| Err(DivisionByZero);

rows! {
    /// −x.
    Neg "neg" 1 Number Same float |x| -x[0]; int |x| Ok(x[0].wrapping_neg()); expr |b, x| unary(b, Unary::Neg, x[0]);
    /// |x|.
    Abs "abs" 1 Number Same float |x| x[0].abs(); int |x| Ok(x[0].wrapping_abs()); expr |b, x| unary(b, Unary::Abs, x[0]);
    /// −1, 0 or 1; NaN stays.
    Sign "sign" 1 Number Same
        float |x| if x[0].is_nan() { x[0] } else { indicator(x[0] > 0.0) - indicator(x[0] < 0.0) };
        int |x| Ok(x[0].signum());
        expr |b, x| {
            let zero = b.constant(0.0, x[0]);
            let one = b.constant(1.0, x[0]);
            let minus = b.constant(-1.0, x[0]);
            let above = b.binary(Binary::Gt, x[0], zero);
            let below = b.binary(Binary::Lt, x[0], zero);
            let nan = b.binary(Binary::Ne, x[0], x[0]);
            let rest = b.select(nan, x[0], zero);
            let low = b.select(below, minus, rest);
            b.select(above, one, low)
        };
    /// √x.
    Sqrt "sqrt" 1 Float Same float |x| x[0].sqrt(); int NO_INT; expr |b, x| unary(b, Unary::Sqrt, x[0]);
    /// 1 / √x.
    Rsqrt "rsqrt" 1 Float Same float |x| 1.0 / x[0].sqrt(); int NO_INT; expr |b, x| unary(b, Unary::Rsqrt, x[0]);
    /// 1 / x.
    Reciprocal "reciprocal" 1 Float Same float |x| 1.0 / x[0]; int NO_INT; expr |b, x| unary(b, Unary::Recip, x[0]);
    /// x².
    Square "square" 1 Number Same float |x| x[0] * x[0]; int |x| Ok(x[0].wrapping_mul(x[0])); expr |b, x| binary(b, Binary::Mul, x[0], x[0]);
    /// eˣ.
    Exp "exp" 1 Float Same float |x| x[0].exp(); int NO_INT; expr |b, x| unary(b, Unary::Exp, x[0]);
    /// 2ˣ.
    Exp2 "exp2" 1 Float Same float |x| x[0].exp2(); int NO_INT; expr |b, x| unary(b, Unary::Exp2, x[0]);
    /// eˣ − 1.
    Expm1 "expm1" 1 Float Same float |x| x[0].exp_m1(); int NO_INT; expr |b, x| unary(b, Unary::Expm1, x[0]);
    /// Natural logarithm.
    Log "log" 1 Float Same float |x| x[0].ln(); int NO_INT; expr |b, x| unary(b, Unary::Log, x[0]);
    /// Logarithm to base 2.
    Log2 "log2" 1 Float Same float |x| x[0].log2(); int NO_INT; expr |b, x| unary(b, Unary::Log2, x[0]);
    /// Logarithm to base 10.
    Log10 "log10" 1 Float Same float |x| x[0].log10(); int NO_INT; expr |b, x| unary(b, Unary::Log10, x[0]);
    /// log(1 + x).
    Log1p "log1p" 1 Float Same float |x| x[0].ln_1p(); int NO_INT; expr |b, x| unary(b, Unary::Log1p, x[0]);
    /// Sine.
    Sin "sin" 1 Float Same float |x| x[0].sin(); int NO_INT; expr |b, x| unary(b, Unary::Sin, x[0]);
    /// Cosine.
    Cos "cos" 1 Float Same float |x| x[0].cos(); int NO_INT; expr |b, x| unary(b, Unary::Cos, x[0]);
    /// Tangent.
    Tan "tan" 1 Float Same float |x| x[0].tan(); int NO_INT; expr |b, x| unary(b, Unary::Tan, x[0]);
    /// Inverse sine.
    Asin "asin" 1 Float Same float |x| x[0].asin(); int NO_INT; expr |b, x| unary(b, Unary::Asin, x[0]);
    /// Inverse cosine.
    Acos "acos" 1 Float Same float |x| x[0].acos(); int NO_INT; expr |b, x| unary(b, Unary::Acos, x[0]);
    /// Inverse tangent.
    Atan "atan" 1 Float Same float |x| x[0].atan(); int NO_INT; expr |b, x| unary(b, Unary::Atan, x[0]);
    /// Hyperbolic sine.
    Sinh "sinh" 1 Float Same float |x| x[0].sinh(); int NO_INT; expr |b, x| unary(b, Unary::Sinh, x[0]);
    /// Hyperbolic cosine.
    Cosh "cosh" 1 Float Same float |x| x[0].cosh(); int NO_INT; expr |b, x| unary(b, Unary::Cosh, x[0]);
    /// Hyperbolic tangent.
    Tanh "tanh" 1 Float Same float |x| x[0].tanh(); int NO_INT; expr |b, x| unary(b, Unary::Tanh, x[0]);
    /// Inverse hyperbolic sine.
    Asinh "asinh" 1 Float Same float |x| x[0].asinh(); int NO_INT; expr |b, x| unary(b, Unary::Asinh, x[0]);
    /// Inverse hyperbolic cosine.
    Acosh "acosh" 1 Float Same float |x| x[0].acosh(); int NO_INT; expr |b, x| unary(b, Unary::Acosh, x[0]);
    /// Inverse hyperbolic tangent.
    Atanh "atanh" 1 Float Same float |x| x[0].atanh(); int NO_INT; expr |b, x| unary(b, Unary::Atanh, x[0]);
    /// The error function.
    Erf "erf" 1 Float Same float |x| special::erf(x[0]); int NO_INT; expr |b, x| unary(b, Unary::Erf, x[0]);
    /// 1 − erf(x), without cancellation.
    Erfc "erfc" 1 Float Same float |x| special::erfc(x[0]); int NO_INT; expr |b, x| unary(b, Unary::Erfc, x[0]);
    /// The inverse of the error function.
    ErfInv "erfinv" 1 Float Same float |x| special::erfinv(x[0]); int NO_INT; expr |b, x| unary(b, Unary::ErfInv, x[0]);
    /// The logarithm of the standard normal distribution function.
    LogNdtr "log_ndtr" 1 Float Same float |x| special::log_ndtr(x[0]); int NO_INT; expr |b, x| unary(b, Unary::LogNdtr, x[0]);
    /// The quantile of the standard normal distribution.
    Ndtri "ndtri" 1 Float Same float |x| special::ndtri(x[0]); int NO_INT; expr |b, x| unary(b, Unary::Ndtri, x[0]);
    /// The logarithm of |Γ(x)|.
    Lgamma "lgamma" 1 Float Same float |x| special::lgamma(x[0]); int NO_INT; expr |b, x| unary(b, Unary::Lgamma, x[0]);
    /// The derivative of log Γ.
    Digamma "digamma" 1 Float Same float |x| special::digamma(x[0]); int NO_INT; expr |b, x| unary(b, Unary::Digamma, x[0]);
    /// The modified Bessel function of the first kind and order 0.
    I0 "i0" 1 Float Same float |x| special::i0(x[0]); int NO_INT; expr |b, x| unary(b, Unary::I0, x[0]);
    /// e^(−|x|) · I₀(x).
    I0e "i0e" 1 Float Same float |x| special::i0e(x[0]); int NO_INT; expr |b, x| unary(b, Unary::I0e, x[0]);
    /// The modified Bessel function of the first kind and order 1.
    I1 "i1" 1 Float Same float |x| special::i1(x[0]); int NO_INT; expr |b, x| unary(b, Unary::I1, x[0]);
    /// e^(−|x|) · I₁(x).
    I1e "i1e" 1 Float Same float |x| special::i1e(x[0]); int NO_INT; expr |b, x| unary(b, Unary::I1e, x[0]);
    /// Largest integer not above x.
    Floor "floor" 1 Number Same float |x| x[0].floor(); int |x| Ok(x[0]); expr |b, x| unary(b, Unary::Floor, x[0]);
    /// Smallest integer not below x.
    Ceil "ceil" 1 Number Same float |x| x[0].ceil(); int |x| Ok(x[0]); expr |b, x| unary(b, Unary::Ceil, x[0]);
    /// Nearest integer, halves to even.
    Round "round" 1 Number Same float |x| x[0].round_ties_even(); int |x| Ok(x[0]); expr |b, x| unary(b, Unary::Round, x[0]);
    /// Integer part.
    Trunc "trunc" 1 Number Same float |x| x[0].trunc(); int |x| Ok(x[0]); expr |b, x| unary(b, Unary::Trunc, x[0]);
    /// 1 / (1 + e⁻ˣ).
    Sigmoid "sigmoid" 1 Float Same float |x| 1.0 / (1.0 + (-x[0]).exp()); int NO_INT; expr |b, x| unary(b, Unary::Sigmoid, x[0]);
    /// log(sigmoid(x)).
    LogSigmoid "log_sigmoid" 1 Float Same
        float |x| -softplus_f64(-x[0]); int NO_INT;
        expr |b, x| { let n = unary(b, Unary::Neg, x[0]); let s = softplus(b, n); unary(b, Unary::Neg, s) };
    /// max(x, 0); NaN stays.
    Relu "relu" 1 Number Same
        float |x| Binary::Max.eval_f64(x[0], 0.0); int |x| Ok(x[0].max(0));
        expr |b, x| with_constant(b, Binary::Max, x[0], 0.0);
    /// min(max(x, 0), 6).
    Relu6 "relu6" 1 Number Same
        float |x| clamp_f64(x[0], 0.0, 6.0); int |x| Ok(x[0].clamp(0, 6));
        expr |b, x| clamp(b, x[0], 0.0, 6.0);
    /// x · Φ(x) with the error function.
    Gelu "gelu" 1 Float Same
        float |x| 0.5 * x[0] * (1.0 + special::erf(x[0] * FRAC_1_SQRT_2)); int NO_INT;
        expr |b, x| {
            let s = with_constant(b, Binary::Mul, x[0], FRAC_1_SQRT_2);
            let e = unary(b, Unary::Erf, s);
            let half = with_constant(b, Binary::Mul, x[0], 0.5);
            let one = with_constant(b, Binary::Add, e, 1.0);
            binary(b, Binary::Mul, half, one)
        };
    /// x · Φ(x) with the tanh approximation (Hendrycks and Gimpel, 2016).
    GeluTanh "gelu_tanh" 1 Float Same
        float |x| {
            let k = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
            0.5 * x[0] * (1.0 + (k * (x[0] + 0.044715 * x[0] * x[0] * x[0])).tanh())
        };
        int NO_INT;
        expr |b, x| {
            let square = binary(b, Binary::Mul, x[0], x[0]);
            let cubic = with_constant(b, Binary::Mul, square, 0.044715);
            let factor = with_constant(b, Binary::Add, cubic, 1.0);
            let sum = binary(b, Binary::Mul, x[0], factor);
            let inner = with_constant(b, Binary::Mul, sum, FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
            let t = unary(b, Unary::Tanh, inner);
            let half = with_constant(b, Binary::Mul, x[0], 0.5);
            let one = with_constant(b, Binary::Add, t, 1.0);
            binary(b, Binary::Mul, half, one)
        };
    /// x · sigmoid(x).
    Silu "silu" 1 Float Same
        float |x| x[0] / (1.0 + (-x[0]).exp()); int NO_INT;
        expr |b, x| {
            let n = unary(b, Unary::Neg, x[0]);
            let e = unary(b, Unary::Exp, n);
            let d = with_constant(b, Binary::Add, e, 1.0);
            binary(b, Binary::Div, x[0], d)
        };
    /// log(1 + eˣ), exact for large x.
    Softplus "softplus" 1 Float Same float |x| softplus_f64(x[0]); int NO_INT; expr |b, x| softplus(b, x[0]);
    /// x / (1 + |x|).
    Softsign "softsign" 1 Float Same
        float |x| x[0] / (1.0 + x[0].abs()); int NO_INT;
        expr |b, x| { let a = unary(b, Unary::Abs, x[0]); let d = with_constant(b, Binary::Add, a, 1.0); binary(b, Binary::Div, x[0], d) };
    /// x · tanh(softplus(x)).
    Mish "mish" 1 Float Same
        float |x| x[0] * softplus_f64(x[0]).tanh(); int NO_INT;
        expr |b, x| { let s = softplus(b, x[0]); let t = unary(b, Unary::Tanh, s); binary(b, Binary::Mul, x[0], t) };
    /// x > 0 ? x : eˣ − 1.
    Elu "elu" 1 Float Same float |x| elu_f64(x[0], 1.0, 1.0); int NO_INT; expr |b, x| elu(b, x[0], 1.0, 1.0);
    /// The self-normalising ELU (Klambauer et al., 2017).
    Selu "selu" 1 Float Same float |x| elu_f64(x[0], SELU_SCALE, SELU_ALPHA); int NO_INT; expr |b, x| elu(b, x[0], SELU_SCALE, SELU_ALPHA);
    /// min(max(x + 3, 0), 6) / 6.
    Hardsigmoid "hardsigmoid" 1 Float Same
        float |x| clamp_f64(x[0] + 3.0, 0.0, 6.0) / 6.0; int NO_INT;
        expr |b, x| { let s = with_constant(b, Binary::Add, x[0], 3.0); let c = clamp(b, s, 0.0, 6.0); with_constant(b, Binary::Div, c, 6.0) };
    /// x · hardsigmoid(x).
    Hardswish "hardswish" 1 Float Same
        float |x| x[0] * clamp_f64(x[0] + 3.0, 0.0, 6.0) / 6.0; int NO_INT;
        expr |b, x| {
            let s = with_constant(b, Binary::Add, x[0], 3.0);
            let c = clamp(b, s, 0.0, 6.0);
            let p = binary(b, Binary::Mul, x[0], c);
            with_constant(b, Binary::Div, p, 6.0)
        };
    /// True if x is NaN.
    IsNan "isnan" 1 Number Bool float |x| indicator(x[0].is_nan()); int |_| Ok(0); expr |b, x| unary(b, Unary::IsNan, x[0]);
    /// True if x is infinite.
    IsInf "isinf" 1 Number Bool float |x| indicator(x[0].is_infinite()); int |_| Ok(0); expr |b, x| unary(b, Unary::IsInf, x[0]);
    /// True if the sign is negative, also that of −0 and of NaN.
    SignBit "signbit" 1 Number Bool
        float |x| indicator(x[0].is_sign_negative()); int |x| Ok((x[0] < 0) as i64);
        expr |b, x| if b.is_float(x[0]) { unary(b, Unary::SignBit, x[0]) } else { with_constant(b, Binary::Lt, x[0], 0.0) };
    /// Logical not of bool, bitwise not of integers.
    Not "not" 1 IntOrBool Same
        float |x| indicator(x[0] == 0.0); int |x| Ok(!x[0]);
        expr |b, x| unary(b, Unary::Not, x[0]);

    /// a + b.
    Add "add" 2 Number Same float |x| x[0] + x[1]; int |x| Ok(x[0].wrapping_add(x[1])); expr |b, x| binary(b, Binary::Add, x[0], x[1]);
    /// a − b.
    Sub "sub" 2 Number Same float |x| x[0] - x[1]; int |x| Ok(x[0].wrapping_sub(x[1])); expr |b, x| binary(b, Binary::Sub, x[0], x[1]);
    /// a · b.
    Mul "mul" 2 Number Same float |x| x[0] * x[1]; int |x| Ok(x[0].wrapping_mul(x[1])); expr |b, x| binary(b, Binary::Mul, x[0], x[1]);
    /// a / b; integers truncate.
    Div "div" 2 Number Same
        float |x| x[0] / x[1]; int |x| Binary::Div.eval_i64(x[0], x[1]);
        expr |b, x| binary(b, Binary::Div, x[0], x[1]);
    /// a / b rounded down, as Python's `//` on floats: `(a − a mod b) / b`, to the nearest integer.
    FloorDivide "floor_divide" 2 Number Same
        float |x| floor_divide_f64(x[0], x[1]); int |x| Binary::FloorDiv.eval_i64(x[0], x[1]);
        expr |b, x| if b.is_float(x[0]) { floor_divide(b, x[0], x[1]) } else { binary(b, Binary::FloorDiv, x[0], x[1]) };
    /// The remainder with the dividend's sign.
    Fmod "fmod" 2 Number Same
        float |x| x[0] % x[1]; int |x| Binary::Rem.eval_i64(x[0], x[1]);
        expr |b, x| binary(b, Binary::Rem, x[0], x[1]);
    /// The remainder with the divisor's sign.
    Remainder "remainder" 2 Number Same
        float |x| Binary::FloorMod.eval_f64(x[0], x[1]); int |x| Binary::FloorMod.eval_i64(x[0], x[1]);
        expr |b, x| binary(b, Binary::FloorMod, x[0], x[1]);
    /// aᵇ; integers wrap, and a negative exponent gives 0 unless a is ±1.
    Pow "pow" 2 Number Same float |x| x[0].powf(x[1]); int |x| Ok(int_pow(x[0], x[1])); expr |b, x| binary(b, Binary::Pow, x[0], x[1]);
    /// The angle of (b, a).
    Atan2 "atan2" 2 Float Same float |x| x[0].atan2(x[1]); int NO_INT; expr |b, x| binary(b, Binary::Atan2, x[0], x[1]);
    /// The larger, the first of equal ones; NaN wins.
    Maximum "maximum" 2 Any Same float |x| Binary::Max.eval_f64(x[0], x[1]); int |x| Ok(x[0].max(x[1])); expr |b, x| binary(b, Binary::Max, x[0], x[1]);
    /// The smaller, the first of equal ones; NaN wins.
    Minimum "minimum" 2 Any Same float |x| Binary::Min.eval_f64(x[0], x[1]); int |x| Ok(x[0].min(x[1])); expr |b, x| binary(b, Binary::Min, x[0], x[1]);
    /// The larger; of a number and NaN, the number.
    Fmax "fmax" 2 Any Same float |x| if x[1] > x[0] || x[0].is_nan() { x[1] } else { x[0] }; int |x| Ok(x[0].max(x[1])); expr |b, x| ignoring_nan(b, Binary::Max, x[0], x[1]);
    /// The smaller; of a number and NaN, the number.
    Fmin "fmin" 2 Any Same float |x| if x[1] < x[0] || x[0].is_nan() { x[1] } else { x[0] }; int |x| Ok(x[0].min(x[1])); expr |b, x| ignoring_nan(b, Binary::Min, x[0], x[1]);
    /// √(a² + b²) without intermediate overflow.
    Hypot "hypot" 2 Float Same float |x| x[0].hypot(x[1]); int NO_INT; expr |b, x| binary(b, Binary::Hypot, x[0], x[1]);
    /// log(eᵃ + eᵇ).
    LogAddExp "logaddexp" 2 Float Same
        float |x| log_add_exp_f64(x[0], x[1], false); int NO_INT;
        expr |b, x| log_add_exp(b, x[0], x[1], false);
    /// log₂(2ᵃ + 2ᵇ).
    LogAddExp2 "logaddexp2" 2 Float Same
        float |x| log_add_exp_f64(x[0], x[1], true); int NO_INT;
        expr |b, x| log_add_exp(b, x[0], x[1], true);
    /// a · log(b); 0 for a = 0 unless b is NaN.
    Xlogy "xlogy" 2 Float Same
        float |x| xlogy_f64(x[0], x[1], x[1].ln()); int NO_INT;
        expr |b, x| xlogy(b, x[0], x[1], Unary::Log);
    /// a · log(1 + b); 0 for a = 0 unless b is NaN.
    Xlog1py "xlog1py" 2 Float Same
        float |x| xlogy_f64(x[0], x[1], x[1].ln_1p()); int NO_INT;
        expr |b, x| xlogy(b, x[0], x[1], Unary::Log1p);
    /// The Hurwitz zeta function: the sum of (b + k)^(−a) over k ≥ 0.
    Zeta "zeta" 2 Float Same float |x| special::zeta(x[0], x[1]); int NO_INT; expr |b, x| binary(b, Binary::Zeta, x[0], x[1]);
    /// The greatest common divisor, not negative.
    Gcd "gcd" 2 Int Same float |_| f64::NAN; int |x| Ok(gcd(x[0], x[1])); expr |b, x| binary(b, Binary::Gcd, x[0], x[1]);
    /// The least common multiple, not negative but where it wraps.
    Lcm "lcm" 2 Int Same float |_| f64::NAN; int |x| Ok(lcm(x[0], x[1])); expr |b, x| binary(b, Binary::Lcm, x[0], x[1]);
    /// a = b.
    Eq "eq" 2 Stored Bool float |x| indicator(x[0] == x[1]); int |x| Ok((x[0] == x[1]) as i64); expr |b, x| binary(b, Binary::Eq, x[0], x[1]);
    /// a ≠ b.
    Ne "ne" 2 Stored Bool float |x| indicator(x[0] != x[1]); int |x| Ok((x[0] != x[1]) as i64); expr |b, x| binary(b, Binary::Ne, x[0], x[1]);
    /// a < b.
    Lt "lt" 2 Number Bool float |x| indicator(x[0] < x[1]); int |x| Ok((x[0] < x[1]) as i64); expr |b, x| binary(b, Binary::Lt, x[0], x[1]);
    /// a ≤ b.
    Le "le" 2 Number Bool float |x| indicator(x[0] <= x[1]); int |x| Ok((x[0] <= x[1]) as i64); expr |b, x| binary(b, Binary::Le, x[0], x[1]);
    /// a > b.
    Gt "gt" 2 Number Bool float |x| indicator(x[0] > x[1]); int |x| Ok((x[0] > x[1]) as i64); expr |b, x| binary(b, Binary::Gt, x[0], x[1]);
    /// a ≥ b.
    Ge "ge" 2 Number Bool float |x| indicator(x[0] >= x[1]); int |x| Ok((x[0] >= x[1]) as i64); expr |b, x| binary(b, Binary::Ge, x[0], x[1]);
    /// Logical and of bool, bitwise and of integers.
    And "and" 2 IntOrBool Same float |x| Binary::And.eval_f64(x[0], x[1]); int |x| Ok(x[0] & x[1]); expr |b, x| binary(b, Binary::And, x[0], x[1]);
    /// Logical or of bool, bitwise or of integers.
    Or "or" 2 IntOrBool Same float |x| Binary::Or.eval_f64(x[0], x[1]); int |x| Ok(x[0] | x[1]); expr |b, x| binary(b, Binary::Or, x[0], x[1]);
    /// Exclusive or, logical or bitwise.
    Xor "xor" 2 IntOrBool Same float |x| Binary::Xor.eval_f64(x[0], x[1]); int |x| Ok(x[0] ^ x[1]); expr |b, x| binary(b, Binary::Xor, x[0], x[1]);
    /// a · 2ᵇ; a shift by the width or more, or a negative one, gives 0.
    Shl "shl" 2 Int Same float |_| f64::NAN; int |x| Binary::Shl.eval_i64(x[0], x[1]); expr |b, x| binary(b, Binary::Shl, x[0], x[1]);
    /// a / 2ᵇ rounded down; a shift by the width or more, or a negative one, gives 0 or −1.
    Shr "shr" 2 Int Same float |_| f64::NAN; int |x| Binary::Shr.eval_i64(x[0], x[1]); expr |b, x| binary(b, Binary::Shr, x[0], x[1]);
    /// a, treated as computed from b too: b has a gradient, of zeros.
    First "first" 2 Any Same float |x| x[0]; int |x| Ok(x[0]); expr |_, x| x[0];
    /// mask ? a : b.
    Select "select" 3 MaskThenAny Same
        float |x| if x[0] != 0.0 { x[1] } else { x[2] };
        int |x| Ok(if x[0] != 0 { x[1] } else { x[2] });
        expr |b, x| b.select(x[0], x[1], x[2]);
    /// min(max(x, low), high); NaN in x or a bound stays.
    Clamp "clamp" 3 Number Same
        float |x| Binary::Min.eval_f64(Binary::Max.eval_f64(x[0], x[1]), x[2]); int |x| Ok(x[0].max(x[1]).min(x[2]));
        expr |b, x| { let m = binary(b, Binary::Max, x[0], x[1]); binary(b, Binary::Min, m, x[2]) };
    /// Clamp to numbers: min(max(x, low), high). No gradient flows to x at or beyond a bound, nor to the bounds.
    Clip "clip" 3 Number Same
        float |x| Binary::Min.eval_f64(Binary::Max.eval_f64(x[0], x[1]), x[2]); int |x| Ok(x[0].max(x[1]).min(x[2]));
        expr |b, x| { let m = binary(b, Binary::Max, x[0], x[1]); binary(b, Binary::Min, m, x[2]) };
    /// a + t · (b − a), the form by which PyTorch keeps both ends exact.
    Lerp "lerp" 3 Float Same
        float |x| if x[2].abs() < 0.5 { x[0] + x[2] * (x[1] - x[0]) } else { x[1] - (x[1] - x[0]) * (1.0 - x[2]) };
        int NO_INT;
        expr |b, x| {
            let d = binary(b, Binary::Sub, x[1], x[0]);
            let near = binary(b, Binary::Mul, x[2], d);
            let low = binary(b, Binary::Add, x[0], near);
            let one = b.constant(1.0, x[2]);
            let rest = binary(b, Binary::Sub, one, x[2]);
            let far = binary(b, Binary::Mul, d, rest);
            let high = binary(b, Binary::Sub, x[1], far);
            let size = unary(b, Unary::Abs, x[2]);
            let half = b.constant(0.5, x[2]);
            let first = binary(b, Binary::Lt, size, half);
            b.select(first, low, high)
        };
    /// sin(πx) / (πx), and 1 at 0.
    Sinc "sinc" 1 Float Same
        float |x| { let a = PI * x[0]; if a == 0.0 { 1.0 } else { a.sin() / a } }; int NO_INT;
        expr |b, x| {
            let a = with_constant(b, Binary::Mul, x[0], PI);
            let (sine, one) = (unary(b, Unary::Sin, a), b.constant(1.0, a));
            let quotient = binary(b, Binary::Div, sine, a);
            let zero = with_constant(b, Binary::Eq, a, 0.0);
            b.select(zero, one, quotient)
        };
    /// −(b · log(a) + (1 − b) · log(1 − a)) with logarithms of at least −100, whose derivatives are not clamped.
    BinaryCrossEntropy "binary_cross_entropy" 2 Float Same
        float |x| {
            let log = |p: f64| Binary::Max.eval_f64(p.ln(), -100.0);
            (x[1] - 1.0) * log(1.0 - x[0]) - x[1] * log(x[0])
        };
        int NO_INT;
        expr |b, x| {
            let one = b.constant(1.0, x[0]);
            let no = binary(b, Binary::Sub, one, x[0]);
            let [yes, no] = [x[0], no].map(|p| { let log = unary(b, Unary::Log, p); with_constant(b, Binary::Max, log, -100.0) });
            let rest = binary(b, Binary::Sub, x[1], one);
            let (no, yes) = (binary(b, Binary::Mul, rest, no), binary(b, Binary::Mul, x[1], yes));
            binary(b, Binary::Sub, no, yes)
        };
    /// a, whose derivative is that of b.
    Surrogate "surrogate" 2 Float Same float |x| x[0]; int NO_INT; expr |_, x| x[0];
}
