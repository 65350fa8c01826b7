//! Expressions that are long or that several rows share, and their meanings in f64 (`_f64`).

use kiln_base::prim::{Binary, ScalarBuilder, Unary};
use std::f64::consts::{LN_2, LOG2_E};

/// `op x`, as a function that the table's rows call.
pub(super) fn unary(b: &mut dyn ScalarBuilder, op: Unary, x: u32) -> u32 {
    b.unary(op, x)
}

/// `x op y`, as a function that the table's rows call.
pub(super) fn binary(b: &mut dyn ScalarBuilder, op: Binary, x: u32, y: u32) -> u32 {
    b.binary(op, x, y)
}

/// `x op c`.
pub(super) fn with_constant(b: &mut dyn ScalarBuilder, op: Binary, x: u32, c: f64) -> u32 {
    let c = b.constant(c, x);
    b.binary(op, x, c)
}

pub(super) fn clamp(b: &mut dyn ScalarBuilder, x: u32, low: f64, high: f64) -> u32 {
    let x = with_constant(b, Binary::Max, x, low);
    with_constant(b, Binary::Min, x, high)
}

/// `max(x, 0) + log1p(exp(-|x|))`: softplus without overflow.
pub(super) fn softplus(b: &mut dyn ScalarBuilder, x: u32) -> u32 {
    let a = unary(b, Unary::Abs, x);
    let n = unary(b, Unary::Neg, a);
    let e = unary(b, Unary::Exp, n);
    let l = unary(b, Unary::Log1p, e);
    let p = with_constant(b, Binary::Max, x, 0.0);
    binary(b, Binary::Add, p, l)
}

pub(super) fn softplus_f64(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else {
        x.max(0.0) + (-x.abs()).exp().ln_1p()
    }
}

pub(super) fn clamp_f64(x: f64, low: f64, high: f64) -> f64 {
    Binary::Min.eval_f64(Binary::Max.eval_f64(x, low), high)
}

/// 1 if `c` is true, else 0.
pub(super) fn indicator(c: bool) -> f64 {
    c as i64 as f64
}

/// `max(x, y) + log(1 + base^(−|x − y|)) / log(base)`, where the base is 2 if `base_two` is set, else e.
pub(super) fn log_add_exp(b: &mut dyn ScalarBuilder, x: u32, y: u32, base_two: bool) -> u32 {
    let larger = binary(b, Binary::Max, x, y);
    let difference = binary(b, Binary::Sub, x, y);
    let distance = unary(b, Unary::Abs, difference);
    let minus = unary(b, Unary::Neg, distance);
    let power = unary(b, if base_two { Unary::Exp2 } else { Unary::Exp }, minus);
    let mut log = unary(b, Unary::Log1p, power);
    if base_two {
        log = with_constant(b, Binary::Mul, log, LOG2_E);
    }
    let sum = binary(b, Binary::Add, larger, log);
    // The difference of two equal infinities is NaN.
    let equal = binary(b, Binary::Eq, x, y);
    let doubled = with_constant(b, Binary::Add, x, if base_two { 1.0 } else { LN_2 });
    b.select(equal, doubled, sum)
}

pub(super) fn log_add_exp_f64(x: f64, y: f64, base_two: bool) -> f64 {
    let minus = -(x - y).abs();
    if x == y {
        x + if base_two { 1.0 } else { LN_2 }
    } else if base_two {
        Binary::Max.eval_f64(x, y) + minus.exp2().ln_1p() * LOG2_E
    } else {
        Binary::Max.eval_f64(x, y) + minus.exp().ln_1p()
    }
}

/// `x · log(y)`, but 0 for x = 0 unless y is NaN. `log` is the logarithm to use.
pub(super) fn xlogy(b: &mut dyn ScalarBuilder, x: u32, y: u32, log: Unary) -> u32 {
    let log = unary(b, log, y);
    let product = binary(b, Binary::Mul, x, log);
    let zero = b.constant(0.0, x);
    let is_zero = binary(b, Binary::Eq, x, zero);
    let product = b.select(is_zero, zero, product);
    let nan = unary(b, Unary::IsNan, y);
    b.select(nan, y, product)
}

pub(super) fn xlogy_f64(x: f64, y: f64, log: f64) -> f64 {
    if y.is_nan() {
        y
    } else if x == 0.0 {
        0.0
    } else {
        x * log
    }
}

/// `fmin` or `fmax`: the operand that `op` chooses, or the other one if one is NaN.
pub(super) fn ignoring_nan(b: &mut dyn ScalarBuilder, op: Binary, x: u32, y: u32) -> u32 {
    let chosen = binary(b, op, x, y);
    if !b.is_float(x) {
        return chosen;
    }
    let (x_is_nan, y_is_nan) = (unary(b, Unary::IsNan, x), unary(b, Unary::IsNan, y));
    let chosen = b.select(y_is_nan, x, chosen);
    b.select(x_is_nan, y, chosen)
}

pub(super) const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
pub(super) const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;

/// `scale * (x > 0 ? x : alpha * expm1(x))`.
pub(super) fn elu(b: &mut dyn ScalarBuilder, x: u32, scale: f64, alpha: f64) -> u32 {
    let zero = b.constant(0.0, x);
    let positive = b.binary(Binary::Gt, x, zero);
    let e = unary(b, Unary::Expm1, x);
    let low = with_constant(b, Binary::Mul, e, scale * alpha);
    let high = with_constant(b, Binary::Mul, x, scale);
    b.select(positive, high, low)
}

pub(super) fn elu_f64(x: f64, scale: f64, alpha: f64) -> f64 {
    scale * if x > 0.0 { x } else { alpha * x.exp_m1() }
}

/// CPython's float floor division, which PyTorch follows: exact where `floor(a / b)` would round up.
pub(super) fn floor_divide_f64(a: f64, b: f64) -> f64 {
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

pub(super) fn floor_divide(b: &mut dyn ScalarBuilder, x: u32, y: u32) -> u32 {
    let zero = b.constant(0.0, x);
    let one = b.constant(1.0, x);
    let quotient = b.binary(Binary::Div, x, y);
    let by_zero = b.binary(Binary::Eq, y, zero);
    let r = b.binary(Binary::Rem, x, y);
    let difference = b.binary(Binary::Sub, x, r);
    let q = b.binary(Binary::Div, difference, y);
    let inexact = b.binary(Binary::Ne, r, zero);
    let negative_y = b.binary(Binary::Lt, y, zero);
    let negative_r = b.binary(Binary::Lt, r, zero);
    let differ_in_sign = b.binary(Binary::Ne, negative_y, negative_r);
    let step_down = b.binary(Binary::And, inexact, differ_in_sign);
    let lower = b.binary(Binary::Sub, q, one);
    let q = b.select(step_down, lower, q);
    let floor = b.unary(Unary::Floor, q);
    let gap = b.binary(Binary::Sub, q, floor);
    let half = b.constant(0.5, x);
    let rounds_up = b.binary(Binary::Gt, gap, half);
    let higher = b.binary(Binary::Add, floor, one);
    let rounded = b.select(rounds_up, higher, floor);
    // A zero takes the sign of the quotient.
    let is_zero = b.binary(Binary::Eq, q, zero);
    let signed_zero = b.binary(Binary::Mul, quotient, zero);
    let finite_zero = b.select(is_zero, signed_zero, rounded);
    b.select(by_zero, quotient, finite_zero)
}
