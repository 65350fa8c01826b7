//! The pointwise table: one row an op.
//!
//! A row is the whole definition of a pointwise op: its name, the dtypes it takes, what it means on
//! floats and on integers (the reference), and its expression in [`kiln_base::prim`] primitives (from
//! which every kernel is printed). Adding a row adds the op to inference, the reference evaluation,
//! the text form and every engine.

use crate::{Fact, OpError, ensure};
use kiln_base::prim::{Binary, DivisionByZero, ScalarBuilder, Unary, erf, int_pow};
use kiln_base::{DType, Kind};
use serde::{Deserialize, Serialize};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// What operands a row takes. All operands have one dtype, but for the bool mask of `select`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Floats.
    Float,
    /// Integers and floats.
    Number,
    /// Integers and bool.
    IntOrBool,
    /// Integers.
    Int,
    /// Bool.
    Bool,
    /// Anything that computes.
    Any,
    /// A bool mask, then two of anything that computes.
    MaskThenAny,
}

/// The result's dtype.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Gives {
    /// That of the operands.
    Same,
    /// Bool.
    Bool,
}

/// A row of the table.
pub struct Row {
    /// The name in the text form.
    pub name: &'static str,
    /// Number of operands.
    pub arity: usize,
    /// What operands it takes.
    pub takes: Takes,
    /// The result's dtype.
    pub gives: Gives,
    /// The meaning on floats; bool results and masks are 0 and 1.
    pub float: fn(&[f64]) -> f64,
    /// The meaning on integers and bool (as 0 and 1), before wrapping to the dtype. Rows that take
    /// floats only never call it.
    pub int: fn(&[i64]) -> Result<i64, DivisionByZero>,
    /// The meaning as an expression of primitives.
    pub expr: fn(&mut dyn ScalarBuilder, &[u32]) -> u32,
}

macro_rules! rows {
    ($($(#[$doc:meta])* $id:ident $name:literal $arity:literal $takes:ident $gives:ident
        float $float:expr; int $int:expr; expr $expr:expr;)*) => {
        /// A pointwise op: a row of the table.
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Pw { $($(#[$doc])* $id),* }

        const ROWS: &[Row] = &[$(Row {
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

fn u(b: &mut dyn ScalarBuilder, op: Unary, x: u32) -> u32 {
    b.unary(op, x)
}

fn bin(b: &mut dyn ScalarBuilder, op: Binary, x: u32, y: u32) -> u32 {
    b.binary(op, x, y)
}

/// `x op c`.
fn with(b: &mut dyn ScalarBuilder, op: Binary, x: u32, c: f64) -> u32 {
    let c = b.constant(c, x);
    b.binary(op, x, c)
}

fn clamp(b: &mut dyn ScalarBuilder, x: u32, low: f64, high: f64) -> u32 {
    let x = with(b, Binary::Max, x, low);
    with(b, Binary::Min, x, high)
}

/// `max(x, 0) + log1p(exp(-|x|))`: softplus without overflow.
fn softplus(b: &mut dyn ScalarBuilder, x: u32) -> u32 {
    let a = u(b, Unary::Abs, x);
    let n = u(b, Unary::Neg, a);
    let e = u(b, Unary::Exp, n);
    let l = u(b, Unary::Log1p, e);
    let p = with(b, Binary::Max, x, 0.0);
    bin(b, Binary::Add, p, l)
}

fn softplus_f64(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else {
        x.max(0.0) + (-x.abs()).exp().ln_1p()
    }
}

fn clamp_f64(x: f64, low: f64, high: f64) -> f64 {
    if x.is_nan() { x } else { x.max(low).min(high) }
}

fn bit(c: bool) -> f64 {
    c as i64 as f64
}

const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;

/// `scale * (x > 0 ? x : alpha * expm1(x))`.
fn elu(b: &mut dyn ScalarBuilder, x: u32, scale: f64, alpha: f64) -> u32 {
    let zero = b.constant(0.0, x);
    let positive = b.binary(Binary::Gt, x, zero);
    let e = u(b, Unary::Expm1, x);
    let low = with(b, Binary::Mul, e, scale * alpha);
    let high = with(b, Binary::Mul, x, scale);
    b.select(positive, high, low)
}

fn elu_f64(x: f64, scale: f64, alpha: f64) -> f64 {
    scale * if x > 0.0 { x } else { alpha * x.exp_m1() }
}

rows! {
    /// −x.
    Neg "neg" 1 Number Same float |x| -x[0]; int |x| Ok(x[0].wrapping_neg()); expr |b, x| u(b, Unary::Neg, x[0]);
    /// |x|.
    Abs "abs" 1 Number Same float |x| x[0].abs(); int |x| Ok(x[0].wrapping_abs()); expr |b, x| u(b, Unary::Abs, x[0]);
    /// −1, 0 or 1; NaN stays.
    Sign "sign" 1 Number Same
        float |x| if x[0].is_nan() { x[0] } else { bit(x[0] > 0.0) - bit(x[0] < 0.0) };
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
    Sqrt "sqrt" 1 Float Same float |x| x[0].sqrt(); int NO_INT; expr |b, x| u(b, Unary::Sqrt, x[0]);
    /// 1 / √x.
    Rsqrt "rsqrt" 1 Float Same float |x| 1.0 / x[0].sqrt(); int NO_INT; expr |b, x| u(b, Unary::Rsqrt, x[0]);
    /// 1 / x.
    Reciprocal "reciprocal" 1 Float Same float |x| 1.0 / x[0]; int NO_INT; expr |b, x| u(b, Unary::Recip, x[0]);
    /// x².
    Square "square" 1 Number Same float |x| x[0] * x[0]; int |x| Ok(x[0].wrapping_mul(x[0])); expr |b, x| bin(b, Binary::Mul, x[0], x[0]);
    /// eˣ.
    Exp "exp" 1 Float Same float |x| x[0].exp(); int NO_INT; expr |b, x| u(b, Unary::Exp, x[0]);
    /// 2ˣ.
    Exp2 "exp2" 1 Float Same float |x| x[0].exp2(); int NO_INT; expr |b, x| u(b, Unary::Exp2, x[0]);
    /// eˣ − 1.
    Expm1 "expm1" 1 Float Same float |x| x[0].exp_m1(); int NO_INT; expr |b, x| u(b, Unary::Expm1, x[0]);
    /// Natural logarithm.
    Log "log" 1 Float Same float |x| x[0].ln(); int NO_INT; expr |b, x| u(b, Unary::Log, x[0]);
    /// Logarithm to base 2.
    Log2 "log2" 1 Float Same float |x| x[0].log2(); int NO_INT; expr |b, x| u(b, Unary::Log2, x[0]);
    /// Logarithm to base 10.
    Log10 "log10" 1 Float Same float |x| x[0].log10(); int NO_INT; expr |b, x| u(b, Unary::Log10, x[0]);
    /// log(1 + x).
    Log1p "log1p" 1 Float Same float |x| x[0].ln_1p(); int NO_INT; expr |b, x| u(b, Unary::Log1p, x[0]);
    /// Sine.
    Sin "sin" 1 Float Same float |x| x[0].sin(); int NO_INT; expr |b, x| u(b, Unary::Sin, x[0]);
    /// Cosine.
    Cos "cos" 1 Float Same float |x| x[0].cos(); int NO_INT; expr |b, x| u(b, Unary::Cos, x[0]);
    /// Tangent.
    Tan "tan" 1 Float Same float |x| x[0].tan(); int NO_INT; expr |b, x| u(b, Unary::Tan, x[0]);
    /// Inverse sine.
    Asin "asin" 1 Float Same float |x| x[0].asin(); int NO_INT; expr |b, x| u(b, Unary::Asin, x[0]);
    /// Inverse cosine.
    Acos "acos" 1 Float Same float |x| x[0].acos(); int NO_INT; expr |b, x| u(b, Unary::Acos, x[0]);
    /// Inverse tangent.
    Atan "atan" 1 Float Same float |x| x[0].atan(); int NO_INT; expr |b, x| u(b, Unary::Atan, x[0]);
    /// Hyperbolic sine.
    Sinh "sinh" 1 Float Same float |x| x[0].sinh(); int NO_INT; expr |b, x| u(b, Unary::Sinh, x[0]);
    /// Hyperbolic cosine.
    Cosh "cosh" 1 Float Same float |x| x[0].cosh(); int NO_INT; expr |b, x| u(b, Unary::Cosh, x[0]);
    /// Hyperbolic tangent.
    Tanh "tanh" 1 Float Same float |x| x[0].tanh(); int NO_INT; expr |b, x| u(b, Unary::Tanh, x[0]);
    /// Inverse hyperbolic sine.
    Asinh "asinh" 1 Float Same float |x| x[0].asinh(); int NO_INT; expr |b, x| u(b, Unary::Asinh, x[0]);
    /// Inverse hyperbolic cosine.
    Acosh "acosh" 1 Float Same float |x| x[0].acosh(); int NO_INT; expr |b, x| u(b, Unary::Acosh, x[0]);
    /// Inverse hyperbolic tangent.
    Atanh "atanh" 1 Float Same float |x| x[0].atanh(); int NO_INT; expr |b, x| u(b, Unary::Atanh, x[0]);
    /// The error function.
    Erf "erf" 1 Float Same float |x| erf(x[0]); int NO_INT; expr |b, x| u(b, Unary::Erf, x[0]);
    /// Largest integer not above x.
    Floor "floor" 1 Number Same float |x| x[0].floor(); int |x| Ok(x[0]); expr |b, x| u(b, Unary::Floor, x[0]);
    /// Smallest integer not below x.
    Ceil "ceil" 1 Number Same float |x| x[0].ceil(); int |x| Ok(x[0]); expr |b, x| u(b, Unary::Ceil, x[0]);
    /// Nearest integer, halves to even.
    Round "round" 1 Number Same float |x| x[0].round_ties_even(); int |x| Ok(x[0]); expr |b, x| u(b, Unary::Round, x[0]);
    /// Integer part.
    Trunc "trunc" 1 Number Same float |x| x[0].trunc(); int |x| Ok(x[0]); expr |b, x| u(b, Unary::Trunc, x[0]);
    /// 1 / (1 + e⁻ˣ).
    Sigmoid "sigmoid" 1 Float Same float |x| 1.0 / (1.0 + (-x[0]).exp()); int NO_INT; expr |b, x| u(b, Unary::Sigmoid, x[0]);
    /// log(sigmoid(x)).
    LogSigmoid "log_sigmoid" 1 Float Same
        float |x| -softplus_f64(-x[0]); int NO_INT;
        expr |b, x| { let n = u(b, Unary::Neg, x[0]); let s = softplus(b, n); u(b, Unary::Neg, s) };
    /// max(x, 0); NaN stays.
    Relu "relu" 1 Number Same
        float |x| if x[0].is_nan() { x[0] } else { x[0].max(0.0) }; int |x| Ok(x[0].max(0));
        expr |b, x| with(b, Binary::Max, x[0], 0.0);
    /// min(max(x, 0), 6).
    Relu6 "relu6" 1 Number Same
        float |x| clamp_f64(x[0], 0.0, 6.0); int |x| Ok(x[0].clamp(0, 6));
        expr |b, x| clamp(b, x[0], 0.0, 6.0);
    /// x · Φ(x) with the error function.
    Gelu "gelu" 1 Float Same
        float |x| 0.5 * x[0] * (1.0 + erf(x[0] * FRAC_1_SQRT_2)); int NO_INT;
        expr |b, x| {
            let s = with(b, Binary::Mul, x[0], FRAC_1_SQRT_2);
            let e = u(b, Unary::Erf, s);
            let half = with(b, Binary::Mul, x[0], 0.5);
            let one = with(b, Binary::Add, e, 1.0);
            bin(b, Binary::Mul, half, one)
        };
    /// x · Φ(x) with the tanh approximation (Hendrycks and Gimpel, 2016).
    GeluTanh "gelu_tanh" 1 Float Same
        float |x| {
            let k = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
            0.5 * x[0] * (1.0 + (k * (x[0] + 0.044715 * x[0] * x[0] * x[0])).tanh())
        };
        int NO_INT;
        expr |b, x| {
            let square = bin(b, Binary::Mul, x[0], x[0]);
            let cubic = with(b, Binary::Mul, square, 0.044715);
            let factor = with(b, Binary::Add, cubic, 1.0);
            let sum = bin(b, Binary::Mul, x[0], factor);
            let inner = with(b, Binary::Mul, sum, FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
            let t = u(b, Unary::Tanh, inner);
            let half = with(b, Binary::Mul, x[0], 0.5);
            let one = with(b, Binary::Add, t, 1.0);
            bin(b, Binary::Mul, half, one)
        };
    /// x · sigmoid(x).
    Silu "silu" 1 Float Same
        float |x| x[0] / (1.0 + (-x[0]).exp()); int NO_INT;
        expr |b, x| {
            let n = u(b, Unary::Neg, x[0]);
            let e = u(b, Unary::Exp, n);
            let d = with(b, Binary::Add, e, 1.0);
            bin(b, Binary::Div, x[0], d)
        };
    /// log(1 + eˣ), exact for large x.
    Softplus "softplus" 1 Float Same float |x| softplus_f64(x[0]); int NO_INT; expr |b, x| softplus(b, x[0]);
    /// x / (1 + |x|).
    Softsign "softsign" 1 Float Same
        float |x| x[0] / (1.0 + x[0].abs()); int NO_INT;
        expr |b, x| { let a = u(b, Unary::Abs, x[0]); let d = with(b, Binary::Add, a, 1.0); bin(b, Binary::Div, x[0], d) };
    /// x · tanh(softplus(x)).
    Mish "mish" 1 Float Same
        float |x| x[0] * softplus_f64(x[0]).tanh(); int NO_INT;
        expr |b, x| { let s = softplus(b, x[0]); let t = u(b, Unary::Tanh, s); bin(b, Binary::Mul, x[0], t) };
    /// x > 0 ? x : eˣ − 1.
    Elu "elu" 1 Float Same float |x| elu_f64(x[0], 1.0, 1.0); int NO_INT; expr |b, x| elu(b, x[0], 1.0, 1.0);
    /// The self-normalising ELU (Klambauer et al., 2017).
    Selu "selu" 1 Float Same float |x| elu_f64(x[0], SELU_SCALE, SELU_ALPHA); int NO_INT; expr |b, x| elu(b, x[0], SELU_SCALE, SELU_ALPHA);
    /// min(max(x + 3, 0), 6) / 6.
    Hardsigmoid "hardsigmoid" 1 Float Same
        float |x| clamp_f64(x[0] + 3.0, 0.0, 6.0) / 6.0; int NO_INT;
        expr |b, x| { let s = with(b, Binary::Add, x[0], 3.0); let c = clamp(b, s, 0.0, 6.0); with(b, Binary::Div, c, 6.0) };
    /// x · hardsigmoid(x).
    Hardswish "hardswish" 1 Float Same
        float |x| x[0] * clamp_f64(x[0] + 3.0, 0.0, 6.0) / 6.0; int NO_INT;
        expr |b, x| {
            let s = with(b, Binary::Add, x[0], 3.0);
            let c = clamp(b, s, 0.0, 6.0);
            let p = bin(b, Binary::Mul, x[0], c);
            with(b, Binary::Div, p, 6.0)
        };
    /// Whether x is NaN.
    IsNan "isnan" 1 Number Bool float |x| bit(x[0].is_nan()); int |_| Ok(0); expr |b, x| u(b, Unary::IsNan, x[0]);
    /// Whether x is infinite.
    IsInf "isinf" 1 Number Bool float |x| bit(x[0].is_infinite()); int |_| Ok(0); expr |b, x| u(b, Unary::IsInf, x[0]);
    /// Logical not of bool, bitwise not of integers.
    Not "not" 1 IntOrBool Same
        float |x| bit(x[0] == 0.0); int |x| Ok(!x[0]);
        expr |b, x| u(b, Unary::Not, x[0]);

    /// a + b.
    Add "add" 2 Number Same float |x| x[0] + x[1]; int |x| Ok(x[0].wrapping_add(x[1])); expr |b, x| bin(b, Binary::Add, x[0], x[1]);
    /// a − b.
    Sub "sub" 2 Number Same float |x| x[0] - x[1]; int |x| Ok(x[0].wrapping_sub(x[1])); expr |b, x| bin(b, Binary::Sub, x[0], x[1]);
    /// a · b.
    Mul "mul" 2 Number Same float |x| x[0] * x[1]; int |x| Ok(x[0].wrapping_mul(x[1])); expr |b, x| bin(b, Binary::Mul, x[0], x[1]);
    /// a / b; integers truncate.
    Div "div" 2 Number Same
        float |x| x[0] / x[1]; int |x| Binary::Div.eval_i64(x[0], x[1]);
        expr |b, x| bin(b, Binary::Div, x[0], x[1]);
    /// a / b rounded down, as Python's `//` on floats: `(a − a mod b) / b`, to the nearest integer.
    FloorDivide "floor_divide" 2 Number Same
        float |x| floor_divide_f64(x[0], x[1]); int |x| Binary::FloorDiv.eval_i64(x[0], x[1]);
        expr |b, x| if b.is_float(x[0]) { floor_divide(b, x[0], x[1]) } else { bin(b, Binary::FloorDiv, x[0], x[1]) };
    /// The remainder with the dividend's sign.
    Fmod "fmod" 2 Number Same
        float |x| x[0] % x[1]; int |x| Binary::Rem.eval_i64(x[0], x[1]);
        expr |b, x| bin(b, Binary::Rem, x[0], x[1]);
    /// The remainder with the divisor's sign.
    Remainder "remainder" 2 Number Same
        float |x| Binary::FloorMod.eval_f64(x[0], x[1]); int |x| Binary::FloorMod.eval_i64(x[0], x[1]);
        expr |b, x| bin(b, Binary::FloorMod, x[0], x[1]);
    /// aᵇ; integers wrap, and a negative exponent gives 0 unless a is ±1.
    Pow "pow" 2 Number Same float |x| x[0].powf(x[1]); int |x| Ok(int_pow(x[0], x[1])); expr |b, x| bin(b, Binary::Pow, x[0], x[1]);
    /// The angle of (b, a).
    Atan2 "atan2" 2 Float Same float |x| x[0].atan2(x[1]); int NO_INT; expr |b, x| bin(b, Binary::Atan2, x[0], x[1]);
    /// The larger; NaN wins.
    Maximum "maximum" 2 Any Same float |x| Binary::Max.eval_f64(x[0], x[1]); int |x| Ok(x[0].max(x[1])); expr |b, x| bin(b, Binary::Max, x[0], x[1]);
    /// The smaller; NaN wins.
    Minimum "minimum" 2 Any Same float |x| Binary::Min.eval_f64(x[0], x[1]); int |x| Ok(x[0].min(x[1])); expr |b, x| bin(b, Binary::Min, x[0], x[1]);
    /// a = b.
    Eq "eq" 2 Any Bool float |x| bit(x[0] == x[1]); int |x| Ok((x[0] == x[1]) as i64); expr |b, x| bin(b, Binary::Eq, x[0], x[1]);
    /// a ≠ b.
    Ne "ne" 2 Any Bool float |x| bit(x[0] != x[1]); int |x| Ok((x[0] != x[1]) as i64); expr |b, x| bin(b, Binary::Ne, x[0], x[1]);
    /// a < b.
    Lt "lt" 2 Number Bool float |x| bit(x[0] < x[1]); int |x| Ok((x[0] < x[1]) as i64); expr |b, x| bin(b, Binary::Lt, x[0], x[1]);
    /// a ≤ b.
    Le "le" 2 Number Bool float |x| bit(x[0] <= x[1]); int |x| Ok((x[0] <= x[1]) as i64); expr |b, x| bin(b, Binary::Le, x[0], x[1]);
    /// a > b.
    Gt "gt" 2 Number Bool float |x| bit(x[0] > x[1]); int |x| Ok((x[0] > x[1]) as i64); expr |b, x| bin(b, Binary::Gt, x[0], x[1]);
    /// a ≥ b.
    Ge "ge" 2 Number Bool float |x| bit(x[0] >= x[1]); int |x| Ok((x[0] >= x[1]) as i64); expr |b, x| bin(b, Binary::Ge, x[0], x[1]);
    /// Logical and of bool, bitwise and of integers.
    And "and" 2 IntOrBool Same float |x| Binary::And.eval_f64(x[0], x[1]); int |x| Ok(x[0] & x[1]); expr |b, x| bin(b, Binary::And, x[0], x[1]);
    /// Logical or of bool, bitwise or of integers.
    Or "or" 2 IntOrBool Same float |x| Binary::Or.eval_f64(x[0], x[1]); int |x| Ok(x[0] | x[1]); expr |b, x| bin(b, Binary::Or, x[0], x[1]);
    /// Exclusive or, logical or bitwise.
    Xor "xor" 2 IntOrBool Same float |x| Binary::Xor.eval_f64(x[0], x[1]); int |x| Ok(x[0] ^ x[1]); expr |b, x| bin(b, Binary::Xor, x[0], x[1]);
    /// a · 2ᵇ; a shift by the width or more, or a negative one, gives 0.
    Shl "shl" 2 Int Same float |_| f64::NAN; int |x| Binary::Shl.eval_i64(x[0], x[1]); expr |b, x| bin(b, Binary::Shl, x[0], x[1]);
    /// a / 2ᵇ rounded down; a shift by the width or more, or a negative one, gives 0 or −1.
    Shr "shr" 2 Int Same float |_| f64::NAN; int |x| Binary::Shr.eval_i64(x[0], x[1]); expr |b, x| bin(b, Binary::Shr, x[0], x[1]);
    /// mask ? a : b.
    Select "select" 3 MaskThenAny Same
        float |x| if x[0] != 0.0 { x[1] } else { x[2] };
        int |x| Ok(if x[0] != 0 { x[1] } else { x[2] });
        expr |b, x| b.select(x[0], x[1], x[2]);
    /// min(max(x, low), high); NaN in x or a bound stays.
    Clamp "clamp" 3 Number Same
        float |x| Binary::Min.eval_f64(Binary::Max.eval_f64(x[0], x[1]), x[2]); int |x| Ok(x[0].max(x[1]).min(x[2]));
        expr |b, x| { let m = bin(b, Binary::Max, x[0], x[1]); bin(b, Binary::Min, m, x[2]) };
    /// a + t · (b − a), the form by which PyTorch keeps both ends exact.
    Lerp "lerp" 3 Float Same
        float |x| if x[2].abs() < 0.5 { x[0] + x[2] * (x[1] - x[0]) } else { x[1] - (x[1] - x[0]) * (1.0 - x[2]) };
        int NO_INT;
        expr |b, x| {
            let d = bin(b, Binary::Sub, x[1], x[0]);
            let near = bin(b, Binary::Mul, x[2], d);
            let low = bin(b, Binary::Add, x[0], near);
            let one = b.constant(1.0, x[2]);
            let rest = bin(b, Binary::Sub, one, x[2]);
            let far = bin(b, Binary::Mul, d, rest);
            let high = bin(b, Binary::Sub, x[1], far);
            let size = u(b, Unary::Abs, x[2]);
            let half = b.constant(0.5, x[2]);
            let first = bin(b, Binary::Lt, size, half);
            b.select(first, low, high)
        };
}

/// CPython's float floor division, which PyTorch follows: exact where `floor(a / b)` would round up.
fn floor_divide_f64(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let r = a % b;
    let q = (a - r) / b;
    let q = if r != 0.0 && (b < 0.0) != (r < 0.0) {
        q - 1.0
    } else {
        q
    };
    if q == 0.0 {
        return 0f64.copysign(a / b);
    }
    let floor = q.floor();
    if q - floor > 0.5 { floor + 1.0 } else { floor }
}

fn floor_divide(b: &mut dyn ScalarBuilder, x: u32, y: u32) -> u32 {
    let zero = b.constant(0.0, x);
    let one = b.constant(1.0, x);
    let plain = b.binary(Binary::Div, x, y);
    let by_zero = b.binary(Binary::Eq, y, zero);
    let r = b.binary(Binary::Rem, x, y);
    let difference = b.binary(Binary::Sub, x, r);
    let q = b.binary(Binary::Div, difference, y);
    let inexact = b.binary(Binary::Ne, r, zero);
    let negative_y = b.binary(Binary::Lt, y, zero);
    let negative_r = b.binary(Binary::Lt, r, zero);
    let signs = b.binary(Binary::Ne, negative_y, negative_r);
    let step_down = b.binary(Binary::And, inexact, signs);
    let lower = b.binary(Binary::Sub, q, one);
    let q = b.select(step_down, lower, q);
    let floor = b.unary(Unary::Floor, q);
    let gap = b.binary(Binary::Sub, q, floor);
    let half = b.constant(0.5, x);
    let up = b.binary(Binary::Gt, gap, half);
    let higher = b.binary(Binary::Add, floor, one);
    let rounded = b.select(up, higher, floor);
    // A zero takes the sign of the quotient.
    let is_zero = b.binary(Binary::Eq, q, zero);
    let signed_zero = b.binary(Binary::Mul, plain, zero);
    let finite_zero = b.select(is_zero, signed_zero, rounded);
    b.select(by_zero, plain, finite_zero)
}

impl Pw {
    /// The row.
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The row with this name.
    pub fn from_name(name: &str) -> Option<Pw> {
        Pw::ALL.iter().copied().find(|p| p.name() == name)
    }

    /// Whether the row takes operands of this dtype (for `select`, of its two values).
    pub fn takes(self, dtype: DType) -> bool {
        let kind = dtype.kind();
        dtype.computes()
            && match self.row().takes {
                Takes::Float => kind == Kind::Float,
                Takes::Number => kind != Kind::Bool,
                Takes::IntOrBool => kind != Kind::Float,
                Takes::Int => kind == Kind::Int,
                Takes::Bool => kind == Kind::Bool,
                Takes::Any | Takes::MaskThenAny => true,
            }
    }

    /// The result's dtype.
    ///
    /// # Errors
    /// If the row does not take operands of these dtypes.
    pub fn infer_dtype(self, inputs: &[&Fact]) -> Result<DType, OpError> {
        let row = self.row();
        let values = match row.takes {
            Takes::MaskThenAny => {
                ensure!(
                    inputs[0].dtype == DType::Bool,
                    "the condition must be bool, not {}",
                    inputs[0].dtype
                );
                &inputs[1..]
            }
            _ => inputs,
        };
        let dtype = values[0].dtype;
        for f in values {
            ensure!(
                f.dtype == dtype,
                "operands have dtypes {dtype} and {}; cast one of them",
                f.dtype
            );
        }
        ensure!(
            self.takes(dtype),
            "is not defined on {dtype}{}",
            match row.takes {
                _ if !dtype.computes() => ", which can only be stored and cast",
                Takes::Float => ", only on floats",
                Takes::Number => ", only on numbers",
                Takes::IntOrBool => ", only on integers and bool",
                Takes::Int => ", only on integers",
                _ => "",
            }
        );
        Ok(match row.gives {
            Gives::Same => dtype,
            Gives::Bool => DType::Bool,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        assert!(Pw::ALL.len() >= 40);
        for &p in Pw::ALL {
            assert_eq!(Pw::from_name(p.name()), Some(p));
        }
    }

    #[test]
    fn floor_division_is_pythons() {
        assert_eq!(floor_divide_f64(7.0, 2.0), 3.0);
        assert_eq!(floor_divide_f64(-7.0, 2.0), -4.0);
        assert_eq!(floor_divide_f64(1.0, 0.1), 9.0);
        assert_eq!(floor_divide_f64(1.0, 0.0), f64::INFINITY);
    }
}
