//! Elementary functions on f32, branch-free so that loops of them vectorise.
//!
//! Range reductions and minimax polynomials follow Cephes (Moshier, `expf`, `logf`, `tanhf`, `sinf`). `erf` follows N.
//! Juffa's single-precision `erff`, or uses a table of Taylor series on machines that look up 32 numbers at once. Each
//! is within 4 units in the last place.

use std::f32::consts::{LN_2, LOG2_E};
use std::f64::consts::FRAC_2_PI;

/// Evaluates a polynomial, highest coefficient first.
#[inline(always)]
fn poly<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut y = c[0];
    let mut i = 1;
    while i < N {
        y = fma(y, x, c[i]);
        i += 1;
    }
    y
}

/// `a · b + c`, rounded once.
#[inline(always)]
fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

/// A branch-free `if`.
#[inline(always)]
fn select(c: bool, a: f32, b: f32) -> f32 {
    if c { a } else { b }
}

/// Adding this constant rounds a small float to an integer, which is then in the low bits.
pub const ROUND: f32 = 12_582_912.0;

/// Returns the nearest integer as float and as integer, for |x| < 2^21.
#[inline(always)]
fn nearest(x: f32) -> (f32, i32) {
    let t = x + ROUND;
    (
        t - ROUND,
        (t.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32),
    )
}

/// `x · 2^n` for n in -252..=254, in two steps that are exact except for the last rounding.
#[inline(always)]
fn scale(x: f32, n: i32) -> f32 {
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    x * power(half) * power(n.wrapping_sub(half))
}

/// `x` clamped to `low..=high`; NaN is preserved.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = select(x < low, low, x);
    select(x > high, high, x)
}

/// `(e^r - 1 - r) / r²` for |r| <= ln 2 / 2, highest coefficient first.
pub const EXP_TAIL: [f32; 6] = [
    1.987_569_1e-4,
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    5e-1,
];

#[inline(always)]
fn exp_tail(r: f32) -> f32 {
    poly(r, EXP_TAIL)
}

/// -ln 2 in two parts; the first has few significant bits.
pub const MINUS_LN_2: (f32, f32) = (-0.693_359_4, 2.121_944_4e-4);

/// `x = n ln 2 + r`.
#[inline(always)]
fn reduce_exp(x: f32) -> (f32, i32) {
    let (n, i) = nearest(x * LOG2_E);
    let r = fma(n, MINUS_LN_2.0, x);
    (fma(n, MINUS_LN_2.1, r), i)
}

/// The limits beyond which e^x is 0 or infinite.
pub const EXP_LIMITS: (f32, f32) = (-104.5, 89.0);

/// e^x.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let x = clamp(x, EXP_LIMITS.0, EXP_LIMITS.1);
    let rounded = fma(x, LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = fma(n, MINUS_LN_2.1, fma(n, MINUS_LN_2.0, x));
    let p = fma(fma(exp_tail(r), r, 1.0), r, 1.0);
    scale(
        p,
        (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32),
    )
}

/// 2^x.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let x = clamp(x, -151.0, 129.0);
    let (n, i) = nearest(x);
    let r = (x - n) * LN_2;
    let p = fma(exp_tail(r), r * r, r) + 1.0;
    scale(p, i)
}

/// e^x - 1.
#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    let (r, n) = reduce_exp(clamp(x, -20.0, 80.0));
    let p = fma(exp_tail(r), r * r, r); // e^r - 1
    let power = f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let y = fma(p, power, power - 1.0);
    let y = select(x > 20.0, exp(x), y);
    select(x.abs() < 1e-7, x, y)
}

/// `x = 2^e · (1 + f)` with 1 + f in [√½, √2), for x > 0.
#[inline(always)]
fn reduce_log(x: f32) -> (f32, f32) {
    let tiny = x < f32::MIN_POSITIVE;
    let x = select(tiny, x * 8_388_608.0, x);
    let shifted = x.to_bits().wrapping_sub(0x3f35_04f3) as i32;
    let e = (shifted >> 23) as f32 - select(tiny, 23.0, 0.0);
    let m = f32::from_bits(((shifted & 0x007f_ffff) + 0x3f35_04f3) as u32);
    (m - 1.0, e)
}

/// The coefficients of the cubic and higher terms of `ln(1 + f)`, divided by `f³`.
pub const LOG_TAIL: [f32; 9] = [
    7.037_683_6e-2,
    -1.151_461e-1,
    1.167_699_9e-1,
    -1.242_014_1e-1,
    1.424_932_3e-1,
    -1.666_805_8e-1,
    2.000_071_5e-1,
    -2.499_999_4e-1,
    3.333_333e-1,
];

/// `ln(1 + f) - f` in two parts, whose sum is the value: the cubic and higher terms, and -f²/2.
#[inline(always)]
fn log_tail(f: f32) -> (f32, f32) {
    let z = f * f;
    (poly(f, LOG_TAIL) * z * f, -0.5 * z)
}

/// Replaces the values of a logarithm at its special arguments.
#[inline(always)]
fn log_special(x: f32, y: f32) -> f32 {
    let y = select(x == 0.0, f32::NEG_INFINITY, y);
    let y = select(x < 0.0, f32::NAN, y);
    select(x < f32::INFINITY || x < 0.0, y, x) // +inf and NaN give themselves
}

/// The natural logarithm.
#[inline(always)]
pub fn log(x: f32) -> f32 {
    let (f, e) = reduce_log(x);
    let (high, square) = log_tail(f);
    let y = fma(e, -2.121_944_4e-4, high) + square;
    log_special(x, fma(e, 0.693_359_4, f + y))
}

/// The logarithm to base 2.
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    const TAIL: f32 = LOG2_E - 1.0;
    let (f, e) = reduce_log(x);
    let (high, square) = log_tail(f);
    let y = high + square;
    let z = fma(f, TAIL, y * TAIL);
    log_special(x, z + y + f + e)
}

/// The logarithm to base 10.
#[inline(always)]
pub fn log10(x: f32) -> f32 {
    let (f, e) = reduce_log(x);
    let (high, square) = log_tail(f);
    let y = high + square;
    // Both log10 e and log10 2 are split: the larger part multiplies exactly.
    let z = fma(f + y, 7.007_319e-4, y * 0.433_593_75);
    let z = fma(e, 2.487_456_6e-4, z);
    let z = fma(f, 0.433_593_75, z);
    log_special(x, fma(e, 0.300_781_25, z))
}

/// ln(1 + x).
#[inline(always)]
pub fn log1p(x: f32) -> f32 {
    let u = 1.0 + x;
    // The rounding error of `u`, relative to `u`.
    let error = select(x < 1.0, x - (u - 1.0), 1.0 - (u - x)) / u;
    let y = log(u);
    let y = select(u > 0.0 && u < f32::INFINITY, y + error, y);
    select(x.abs() < 1e-8, x, y)
}

/// `(tanh x - x) / x³`, of `x²`.
pub const TANH_SMALL: [f32; 5] = [
    -5.704_988_7e-3,
    2.063_909e-2,
    -5.373_971_6e-2,
    1.333_144_2e-1,
    -3.333_328e-1,
];

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let small = fma(poly(z, TANH_SMALL) * z, x, x);
    let large = 1.0 - 2.0 / (exp(2.0 * clamp(a, 0.0, 10.0)) + 1.0);
    select(a < 0.625, small, large).copysign(x)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    select(x < 0.0, e, 1.0) / (1.0 + e)
}

/// `erf x / x - 1`, of `x²`, for small x.
pub const ERF_SMALL: [f32; 6] = [
    -5.967_617e-4,
    4.991_194e-3,
    -2.676_813_5e-2,
    1.128_199_25e-1,
    -3.761_253_4e-1,
    1.283_791_7e-1,
];

/// `ln(1 - erf x) / x + 1` for other x.
pub const ERF_LARGE: [f32; 7] = [
    -1.728_534_7e-5,
    3.831_972e-4,
    -3.883_964_4e-3,
    2.425_462_2e-2,
    -1.067_778_8e-1,
    -6.348_468_7e-1,
    -1.287_175_1e-1,
];

/// The error function.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let t = x.abs();
    let s = x * x;
    let small = poly(s, ERF_SMALL);
    let small = fma(small, x, x);
    // Between -16.6 and 0 where it is used, so the power of 2 is a normal number.
    let t = clamp(t, 0.0, 4.0);
    let (r, n) = reduce_exp(fma(poly(t, ERF_LARGE), t, -t));
    let p = fma(exp_tail(r), r * r, r) + 1.0;
    let power = f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let large = fma(-p, power, 1.0);
    select(x.abs() < 0.927_734_4, small, large.copysign(x))
}

/// The limit beyond which [`sin`] and [`cos`] are those of the standard library.
pub const TRIG_LIMIT: f32 = 1e5;

/// As [`ROUND`], for f64.
pub const ROUND_F64: f64 = 6_755_399_441_055_744.0;
/// π/2 in two parts; the first has 33 significant bits.
pub const QUARTER: (f64, f64) = (1.570_796_326_734_125_6, 6.077_100_506_506_192e-11);
/// `(sin x - x) / x³` and `(cos x - 1 + x²/2) / x⁴`, of `x²`.
pub const SINE: [f32; 3] = [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1];
pub const COSINE: [f32; 3] = [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2];

/// Returns sin and cos of `x - q · π/2`, and the low bits of `q`, the nearest integer to `2x/π`.
#[inline(always)]
fn reduce_and_evaluate(x: f32) -> (f32, f32, i32) {
    // The reduction is done in f64, where 33 bits of π/2 times a quadrant number are exact.
    let x = x as f64;
    let t = x * FRAC_2_PI + ROUND_F64;
    let n = t - ROUND_F64;
    let r = x - n * QUARTER.0 - n * QUARTER.1;
    let r = r as f32;
    let z = r * r;
    let s = poly(z, SINE);
    let c = poly(z, COSINE);
    let sin = fma(s * z, r, r).copysign(r);
    let cos = fma(c * z, z, fma(-0.5, z, 1.0));
    (sin, cos, t.to_bits() as i32)
}

/// The sine.
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    let (s, c, q) = reduce_and_evaluate(x);
    let y = select(q & 1 == 0, s, c);
    let y = f32::from_bits(y.to_bits() ^ ((q as u32 & 2) << 30));
    if x.abs() > TRIG_LIMIT { x.sin() } else { y }
}

/// The cosine.
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    let (s, c, q) = reduce_and_evaluate(x);
    let y = select(q & 1 == 0, c, s);
    let y = f32::from_bits(y.to_bits() ^ ((q.wrapping_add(1) as u32 & 2) << 30));
    if x.abs() > TRIG_LIMIT { x.cos() } else { y }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::erf::ErfTable;
    use kiln_base::prim::Unary;
    use kiln_base::special;

    /// Returns the distance in units of the last place of an f32 near `expected`.
    fn ulps(actual: f32, expected: f64) -> f64 {
        let rounded = expected as f32;
        if actual.is_nan() || rounded.is_nan() || rounded.is_infinite() || actual.is_infinite() {
            let equal = actual.is_nan() && rounded.is_nan() || actual == rounded;
            // Rounding to infinity may differ right at the edge.
            let edge = expected.abs() > 3.402_82e38 && actual.abs() > 3.402_82e38;
            return if equal || edge { 0.0 } else { f64::INFINITY };
        }
        let magnitude = rounded.abs().max(f32::MIN_POSITIVE);
        let ulp = (f32::from_bits(magnitude.to_bits() + 1) - magnitude) as f64;
        (actual as f64 - expected).abs() / ulp
    }

    fn check(op: Unary, f: fn(f32) -> f32) {
        let mut xs: Vec<f32> = vec![0.0, -0.0, 1.0, -1.0, f32::MAX, f32::MIN, f32::EPSILON];
        xs.extend([
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            1e-45,
            -1e-45,
            1e-39,
        ]);
        xs.extend((0..4_000_000u32).map(|i| f32::from_bits(i.wrapping_mul(1073))));
        xs.extend((0..400_000).map(|i| (i as f32 - 200_000.0) * 6e-4));
        xs.extend((0..200_000).map(|i| (i as f32 - 100_000.0) * 2e-5));
        let mut worst = (0.0, 0.0, 0.0);
        for x in xs {
            let y = f(x);
            let u = ulps(y, op.eval_f64(x as f64));
            if u > worst.0 {
                worst = (u, x, y);
            }
            let odd = !matches!(op, Unary::Cos | Unary::Exp | Unary::Exp2 | Unary::Sigmoid);
            if x == 0.0 && odd && !matches!(op, Unary::Log | Unary::Log2 | Unary::Log10) {
                assert_eq!(y.to_bits(), x.to_bits(), "{op:?}({x})");
            }
        }
        println!("{op:?}: {:.2} ulp at {:e}", worst.0, worst.1);
        assert!(worst.0 <= 4.0, "{op:?}: {worst:?}");
    }

    /// gelu of a negative number is a difference of two numbers near 1.
    #[test]
    fn erf_is_nearly_rounded_where_it_is_close_to_one() {
        for x in (0..400_000).map(|i| 1.8 + i as f32 * 1e-5) {
            for y in [erf(x), ErfTable::get().eval(x)] {
                let error = (y as f64 - special::erf(x as f64)).abs() / (f32::EPSILON as f64 / 2.0);
                assert!(y <= 1.0, "erf({x}) = {y}");
                assert!(error <= 1.0, "erf({x}): {error}");
            }
        }
    }

    #[test]
    fn functions_are_within_four_ulp_of_f64() {
        check(Unary::Exp, exp);
        check(Unary::Exp2, exp2);
        check(Unary::Expm1, expm1);
        check(Unary::Log, log);
        check(Unary::Log2, log2);
        check(Unary::Log10, log10);
        check(Unary::Log1p, log1p);
        check(Unary::Tanh, tanh);
        check(Unary::Sigmoid, sigmoid);
        check(Unary::Erf, erf);
        check(Unary::Erf, |x| ErfTable::get().eval(x));
        check(Unary::Sin, sin);
        check(Unary::Cos, cos);
    }
}
