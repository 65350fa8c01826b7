//! Elementary functions on f32: the same operations in the same order as [`kiln_kernel::simd::math`], for bitwise equal
//! results.

use super::ir::{Cmp, Ir, Src, Virt};
use super::native;
use super::value::Value;
use kiln_base::Compute;
use kiln_base::prim::Unary;
use kiln_kernel::simd::erf::ErfTable;
use kiln_kernel::simd::math::{
    COSINE, ERF_LARGE, ERF_SMALL, EXP_LIMITS, EXP_TAIL, LOG_TAIL, MINUS_LN_2, QUARTER, ROUND,
    ROUND_F64, SINE, TANH_SMALL, TRIG_LIMIT,
};
use kiln_x86::op;
use std::f32::consts::{LN_2, LOG2_E};
use std::f64::consts::FRAC_2_PI;

/// Adds a function on f32, or returns `None` if it has no vector form.
pub(super) fn unary(ir: &mut Ir, prim: Unary, x: Virt) -> Option<Virt> {
    Some(match prim {
        Unary::Exp => exp(ir, x),
        Unary::Exp2 => exp2(ir, x),
        Unary::Expm1 => expm1(ir, x),
        Unary::Log => log(ir, x),
        Unary::Log2 => log2(ir, x),
        Unary::Log10 => log10(ir, x),
        Unary::Log1p => log1p(ir, x),
        Unary::Tanh => tanh(ir, x),
        Unary::Sigmoid => sigmoid(ir, x),
        Unary::Erf if ir.target.evex => erf_by_table(ir, x),
        Unary::Erf => erf(ir, x),
        Unary::Sin | Unary::Cos => sin_cos(ir, prim, x),
        _ => return None,
    })
}

fn add(ir: &mut Ir, a: impl Into<Src>, b: impl Into<Src>) -> Virt {
    ir.commutative(op::VADDPS, a, b)
}

fn sub(ir: &mut Ir, a: impl Into<Src>, b: impl Into<Src>) -> Virt {
    ir.op2(op::VSUBPS, a, b)
}

fn mul(ir: &mut Ir, a: impl Into<Src>, b: impl Into<Src>) -> Virt {
    ir.commutative(op::VMULPS, a, b)
}

fn shift_left(ir: &mut Ir, a: Virt, n: u8) -> Virt {
    let width = ir.width();
    ir.op1_with(op::VPSLLD, width, Some(n), a)
}

fn shift_right(ir: &mut Ir, a: Virt, n: u8) -> Virt {
    let width = ir.width();
    ir.op1_with(op::VPSRAD, width, Some(n), a)
}

/// Evaluates a polynomial, highest coefficient first.
fn poly(ir: &mut Ir, x: Virt, c: &[f32]) -> Virt {
    let (first, second) = (ir.f32(c[0]), ir.f32(c[1]));
    let mut y = ir.fma(first, x, second);
    for c in &c[2..] {
        let c = ir.f32(*c);
        y = ir.fma(y, x, c);
    }
    y
}

fn abs(ir: &mut Ir, x: Virt) -> Virt {
    let bits = ir.i32(i32::MAX);
    ir.op2(op::VANDPS, x, bits)
}

fn neg(ir: &mut Ir, x: Virt) -> Virt {
    let sign = ir.f32(-0.0);
    ir.op2(op::VXORPS, x, sign)
}

/// Returns `a` with the sign of `b`.
fn copysign(ir: &mut Ir, a: Virt, b: Virt) -> Virt {
    let (sign, magnitude) = (ir.f32(-0.0), ir.i32(i32::MAX));
    let sign = ir.op2(op::VANDPS, b, sign);
    let magnitude = ir.op2(op::VANDPS, a, magnitude);
    ir.op2(op::VORPS, magnitude, sign)
}

/// Clamps `x` to `low..=high`. NaN stays, because it is the second operand.
fn clamp(ir: &mut Ir, x: Virt, low: f32, high: f32) -> Virt {
    let (low, high) = (ir.f32(low), ir.f32(high));
    let x = ir.op2(op::VMAXPS, low, x);
    ir.op2(op::VMINPS, high, x)
}

/// Rounds to the nearest integer, as float and as integer.
fn nearest(ir: &mut Ir, x: Virt) -> (Virt, Virt) {
    let (round, bits) = (ir.f32(ROUND), ir.i32(ROUND.to_bits() as i32));
    let shifted = add(ir, x, round);
    (sub(ir, shifted, round), ir.op2(op::VPSUBD, shifted, bits))
}

/// Returns `2^n`, a normal number.
fn power_of_two(ir: &mut Ir, n: Virt) -> Virt {
    let bias = ir.i32(127);
    let n = ir.op2(op::VPADDD, n, bias);
    shift_left(ir, n, 23)
}

/// Returns `x · 2^n`.
fn scale(ir: &mut Ir, x: Virt, n: Virt) -> Virt {
    let half = shift_right(ir, n, 1);
    let rest = ir.op2(op::VPSUBD, n, half);
    let half_power = power_of_two(ir, half);
    let x = mul(ir, x, half_power);
    let rest_power = power_of_two(ir, rest);
    mul(ir, x, rest_power)
}

/// Returns `x - n · ln 2` and the integer `n` nearest to `x / ln 2`.
fn reduce_exp(ir: &mut Ir, x: Virt) -> (Virt, Virt) {
    let (log2_e, high, low) = (ir.f32(LOG2_E), ir.f32(MINUS_LN_2.0), ir.f32(MINUS_LN_2.1));
    let quotient = mul(ir, x, log2_e);
    let (n, i) = nearest(ir, quotient);
    let r = ir.fma(n, high, x);
    (ir.fma(n, low, r), i)
}

/// Returns `e^r - 1`.
fn exp_less_one(ir: &mut Ir, r: Virt) -> Virt {
    let tail = poly(ir, r, &EXP_TAIL);
    let square = mul(ir, r, r);
    ir.fma(tail, square, r)
}

fn exp(ir: &mut Ir, x: Virt) -> Virt {
    let x = clamp(ir, x, EXP_LIMITS.0, EXP_LIMITS.1);
    let (log2_e, round, one) = (ir.f32(LOG2_E), ir.f32(ROUND), ir.f32(1.0));
    let (high, low) = (ir.f32(MINUS_LN_2.0), ir.f32(MINUS_LN_2.1));
    // The rounding constant is used twice, so it pays to keep it in a register.
    let shifted = ir.fma(x, log2_e, round);
    let n = sub(ir, shifted, round);
    let r = ir.fma(n, high, x);
    let r = ir.fma(n, low, r);
    let p = poly(ir, r, &EXP_TAIL);
    let p = ir.fma(p, r, one);
    let p = ir.fma(p, r, one);
    if ir.target.evex {
        return ir.op2(op::VSCALEFPS, p, n);
    }
    let bits = ir.i32(ROUND.to_bits() as i32);
    let n = ir.op2(op::VPSUBD, shifted, bits);
    scale(ir, p, n)
}

fn exp2(ir: &mut Ir, x: Virt) -> Virt {
    let x = clamp(ir, x, -151.0, 129.0);
    let (n, i) = nearest(ir, x);
    let (ln_2, one) = (ir.f32(LN_2), ir.f32(1.0));
    let r = sub(ir, x, n);
    let r = mul(ir, r, ln_2);
    let p = exp_less_one(ir, r);
    let p = add(ir, p, one);
    scale(ir, p, i)
}

fn expm1(ir: &mut Ir, x: Virt) -> Virt {
    let inner = clamp(ir, x, -20.0, 80.0);
    let (r, n) = reduce_exp(ir, inner);
    let p = exp_less_one(ir, r);
    let power_of_two = power_of_two(ir, n);
    let one = ir.f32(1.0);
    let scale_less_one = sub(ir, power_of_two, one);
    let y = ir.fma(p, power_of_two, scale_less_one);
    let limit = ir.f32(20.0);
    let is_large = ir.compare(false, Cmp::Gt, x, limit);
    let e = exp(ir, x);
    let y = ir.select(false, is_large, e, y);
    let tiny = ir.f32(1e-7);
    let a = abs(ir, x);
    let is_small = ir.compare(false, Cmp::Lt, a, tiny);
    ir.select(false, is_small, x, y)
}

/// Returns `f` and `e` with `x = (1 + f) · 2^e`.
fn reduce_log(ir: &mut Ir, x: Virt) -> (Virt, Virt) {
    let min_normal = ir.f32(f32::MIN_POSITIVE);
    let is_subnormal = ir.compare(false, Cmp::Lt, x, min_normal);
    let factor = ir.f32(8_388_608.0);
    let scaled = mul(ir, x, factor);
    let x = ir.select(false, is_subnormal, scaled, x);
    let root = ir.i32(0x3f35_04f3);
    let shifted = ir.op2(op::VPSUBD, x, root);
    let e = shift_right(ir, shifted, 23);
    let e = ir.op1(op::VCVTDQ2PS, e);
    let (exponent_offset, zero, one) = (ir.f32(23.0), ir.f32(0.0), ir.f32(1.0));
    let exponent_offset = ir.select(false, is_subnormal, exponent_offset, zero);
    let e = sub(ir, e, exponent_offset);
    let bits = ir.i32(0x007f_ffff);
    let m = ir.op2(op::VPAND, shifted, bits);
    let m = ir.op2(op::VPADDD, m, root);
    (sub(ir, m, one), e)
}

/// Returns the terms of `log(1 + f) - f`: those from the third power on, and the square.
fn log_tail(ir: &mut Ir, f: Virt) -> (Virt, Virt) {
    let z = mul(ir, f, f);
    let p = poly(ir, f, &LOG_TAIL);
    let p = mul(ir, p, z);
    let p = mul(ir, p, f);
    let half = ir.f32(-0.5);
    (p, mul(ir, z, half))
}

/// Replaces the logarithm `y` of `x` for zero, negative numbers, infinity and NaN.
fn log_special(ir: &mut Ir, x: Virt, y: Virt) -> Virt {
    let zero = ir.f32(0.0);
    let (negative_infinity, nan, infinity) = (
        ir.f32(f32::NEG_INFINITY),
        ir.f32(f32::NAN),
        ir.f32(f32::INFINITY),
    );
    let is_zero = ir.compare(false, Cmp::Eq, x, zero);
    let y = ir.select(false, is_zero, negative_infinity, y);
    let is_negative = ir.compare(false, Cmp::Lt, x, zero);
    let y = ir.select(false, is_negative, nan, y);
    let is_finite = ir.compare(false, Cmp::Lt, x, infinity);
    ir.select(false, is_finite, y, x)
}

fn log(ir: &mut Ir, x: Virt) -> Virt {
    let (f, e) = reduce_log(ir, x);
    let (high, square) = log_tail(ir, f);
    let (low_ln_2, ln_2) = (ir.f32(-2.121_944_4e-4), ir.f32(0.693_359_4));
    let y = ir.fma(e, low_ln_2, high);
    let y = add(ir, y, square);
    let y = add(ir, f, y);
    let y = ir.fma(e, ln_2, y);
    log_special(ir, x, y)
}

fn log2(ir: &mut Ir, x: Virt) -> Virt {
    let tail = ir.f32(LOG2_E - 1.0);
    let (f, e) = reduce_log(ir, x);
    let (high, square) = log_tail(ir, f);
    let y = add(ir, high, square);
    let z = mul(ir, y, tail);
    let z = ir.fma(f, tail, z);
    let z = add(ir, z, y);
    let z = add(ir, z, f);
    let z = add(ir, z, e);
    log_special(ir, x, z)
}

fn log10(ir: &mut Ir, x: Virt) -> Virt {
    let (f, e) = reduce_log(ir, x);
    let (high, square) = log_tail(ir, f);
    let y = add(ir, high, square);
    let (c1, c2) = (ir.f32(7.007_319e-4), ir.f32(0.433_593_75));
    let (c3, c4) = (ir.f32(2.487_456_6e-4), ir.f32(0.300_781_25));
    let sum = add(ir, f, y);
    let z = mul(ir, y, c2);
    let z = ir.fma(sum, c1, z);
    let z = ir.fma(e, c3, z);
    let z = ir.fma(f, c2, z);
    let z = ir.fma(e, c4, z);
    log_special(ir, x, z)
}

fn log1p(ir: &mut Ir, x: Virt) -> Virt {
    let (one, zero, infinity) = (ir.f32(1.0), ir.f32(0.0), ir.f32(f32::INFINITY));
    let u = add(ir, x, one);
    let error_small = sub(ir, u, one);
    let error_small = sub(ir, x, error_small);
    let error_large = sub(ir, u, x);
    let error_large = sub(ir, one, error_large);
    let is_small = ir.compare(false, Cmp::Lt, x, one);
    let error = ir.select(false, is_small, error_small, error_large);
    let error = ir.op2(op::VDIVPS, error, u);
    let y = log(ir, u);
    let corrected = add(ir, y, error);
    let is_positive = ir.compare(false, Cmp::Gt, u, zero);
    let y1 = ir.select(false, is_positive, corrected, y);
    let is_finite = ir.compare(false, Cmp::Lt, u, infinity);
    let y = ir.select(false, is_finite, y1, y);
    let tiny = ir.f32(1e-8);
    let a = abs(ir, x);
    let tiny = ir.compare(false, Cmp::Lt, a, tiny);
    ir.select(false, tiny, x, y)
}

fn tanh(ir: &mut Ir, x: Virt) -> Virt {
    let a = abs(ir, x);
    let z = mul(ir, x, x);
    let p = poly(ir, z, &TANH_SMALL);
    let p = mul(ir, p, z);
    let small = ir.fma(p, x, x);
    let (one, two) = (ir.f32(1.0), ir.f32(2.0));
    let inner = clamp(ir, a, 0.0, 10.0);
    let inner = mul(ir, inner, two);
    let e = exp(ir, inner);
    let e = add(ir, e, one);
    let q = ir.op2(op::VDIVPS, two, e);
    let large = sub(ir, one, q);
    let limit = ir.f32(0.625);
    let is_small = ir.compare(false, Cmp::Lt, a, limit);
    let y = ir.select(false, is_small, small, large);
    copysign(ir, y, x)
}

fn sigmoid(ir: &mut Ir, x: Virt) -> Virt {
    let a = abs(ir, x);
    let a = neg(ir, a);
    let e = exp(ir, a);
    let (one, zero) = (ir.f32(1.0), ir.f32(0.0));
    let is_negative = ir.compare(false, Cmp::Lt, x, zero);
    let numerator = ir.select(false, is_negative, e, one);
    let denominator = add(ir, e, one);
    ir.op2(op::VDIVPS, numerator, denominator)
}

fn erf(ir: &mut Ir, x: Virt) -> Virt {
    let a = abs(ir, x);
    let s = mul(ir, x, x);
    let p = poly(ir, s, &ERF_SMALL);
    let small = ir.fma(p, x, x);
    let t = clamp(ir, a, 0.0, 4.0);
    let p = poly(ir, t, &ERF_LARGE);
    let negated = neg(ir, t);
    let inner = ir.fma(p, t, negated);
    let (r, n) = reduce_exp(ir, inner);
    let p = exp_less_one(ir, r);
    let one = ir.f32(1.0);
    let p = add(ir, p, one);
    let power_of_two = power_of_two(ir, n);
    let p = neg(ir, p);
    let large = ir.fma(p, power_of_two, one);
    let large = copysign(ir, large, x);
    let limit = ir.f32(0.927_734_4);
    let is_small = ir.compare(false, Cmp::Lt, a, limit);
    ir.select(false, is_small, small, large)
}

/// As [`ErfTable::eval`].
fn erf_by_table(ir: &mut Ir, x: Virt) -> Virt {
    let sign = ir.f32(-0.0);
    let (max, eight, round) = (ir.f32(3.93), ir.f32(8.0), ir.f32(ROUND));
    let a = abs(ir, x);
    let t = ir.op2(op::VMINPS, max, a);
    let interval = ir.fma(t, eight, round);
    let look_up = |ir: &mut Ir, row: usize| {
        let [low, high] = ErfTable::get().row(row).map(|half| ir.vector(half));
        ir.tied(op::VPERMT2PS, low, interval.into(), high)
    };
    let centre = look_up(ir, 0);
    let r = sub(ir, t, centre);
    let mut y = look_up(ir, 6);
    for n in (0..5).rev() {
        let c = look_up(ir, n + 1);
        y = ir.fma(y, r, c);
    }
    let sign = ir.op2(op::VANDPS, x, sign);
    ir.op2(op::VORPS, y, sign)
}

/// Returns the sine or cosine. If any lane exceeds [`TRIG_LIMIT`], a function computes such lanes.
fn sin_cos(ir: &mut Ir, prim: Unary, x: Virt) -> Virt {
    let y = small_sin_cos(ir, prim, x);
    let (a, limit) = (abs(ir, x), ir.f32(TRIG_LIMIT));
    let large = ir.compare(false, Cmp::Gt, a, limit);
    let exact = native::add_unary(ir, prim, Value::new(Compute::F32, x), Some(large));
    ir.select(false, large, exact.parts[0], y)
}

/// Returns the sine or cosine of numbers within [`TRIG_LIMIT`].
fn small_sin_cos(ir: &mut Ir, prim: Unary, x: Virt) -> Virt {
    let upper = ir.upper_half(x);
    let (quarters_per_radian, round) = (ir.f64(FRAC_2_PI), ir.f64(ROUND_F64));
    let (high, low) = (ir.f64(QUARTER.0), ir.f64(QUARTER.1));
    let [(first, q), (second, q_upper)] = [x, upper].map(|x| {
        let x = ir.op1(op::VCVTPS2PD, x);
        let t = ir.op2(op::VMULPD, x, quarters_per_radian);
        let t = ir.op2(op::VADDPD, t, round);
        let n = ir.op2(op::VSUBPD, t, round);
        let by = ir.op2(op::VMULPD, n, high);
        let r = ir.op2(op::VSUBPD, x, by);
        let by = ir.op2(op::VMULPD, n, low);
        let r = ir.op2(op::VSUBPD, r, by);
        (ir.op1(op::VCVTPD2PS, r), t)
    });
    let r = ir.join_halves(first, second);
    let q = ir.truncate64(q, q_upper);
    let z = mul(ir, r, r);
    let s = poly(ir, z, &SINE);
    let s = mul(ir, s, z);
    let s = ir.fma(s, r, r);
    let sine = copysign(ir, s, r);
    let c = poly(ir, z, &COSINE);
    let c = mul(ir, c, z);
    let (half, one, two, zero) = (ir.f32(-0.5), ir.f32(1.0), ir.i32(2), ir.i32(0));
    let cosine_head = ir.fma(z, half, one);
    let cosine = ir.fma(c, z, cosine_head);
    let (even, odd, by) = match prim {
        Unary::Sin => (sine, cosine, 0),
        _ => (cosine, sine, 1),
    };
    let (bit, by) = (ir.i32(1), ir.i32(by));
    let is_odd = ir.op2(op::VPAND, q, bit);
    let is_even = ir.compare_int(false, Cmp::Eq, is_odd.into(), zero);
    let y = ir.select(false, is_even, even, odd);
    let q = ir.op2(op::VPADDD, q, by);
    let sign = ir.op2(op::VPAND, q, two);
    let sign = shift_left(ir, sign, 30);
    ir.op2(op::VXORPS, y, sign)
}

/// Returns `sqrt(-2 ln u) cos(angle)`, for an angle of at most 2π.
pub(super) fn polar(ir: &mut Ir, u: Virt, angle: Virt) -> Virt {
    let (logarithm, factor) = (log(ir, u), ir.f32(-2.0));
    let square = mul(ir, logarithm, factor);
    let radius = ir.op1(op::VSQRTPS, square);
    let cosine = small_sin_cos(ir, Unary::Cos, angle);
    mul(ir, radius, cosine)
}
