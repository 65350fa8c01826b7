//! Elementary functions on f32, branch-free so that loops of them vectorise.
//!
//! Range reductions and minimax polynomials follow Cephes (Moshier, `expf`, `logf`, `tanhf`, `sinf`);
//! `erf` follows N. Juffa's single-precision `erff`, or a table of Taylor series where the machine
//! looks up 32 numbers at once. Each is within 4 units in the last place.

use super::{Isa, fma32};
use std::f32::consts::{LN_2, LOG2_E};

/// Evaluates a polynomial, highest coefficient first.
#[inline(always)]
fn poly<I: Isa, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut y = c[0];
    let mut i = 1;
    while i < N {
        y = fma32::<I>(y, x, c[i]);
        i += 1;
    }
    y
}

/// `if` as a value: both sides are computed.
#[inline(always)]
fn select(c: bool, a: f32, b: f32) -> f32 {
    if c { a } else { b }
}

/// Adding it rounds a small float to an integer, which then stands in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// The nearest integer as float and as integer, for |x| < 2^21.
#[inline(always)]
fn nearest(x: f32) -> (f32, i32) {
    let t = x + ROUND;
    (
        t - ROUND,
        (t.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32),
    )
}

/// `x · 2^n` for n in -252..=254, in two exact steps but for the last rounding.
#[inline(always)]
fn scale(x: f32, n: i32) -> f32 {
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    x * power(half) * power(n.wrapping_sub(half))
}

/// `x` kept within `low..=high`; NaN stays.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = select(x < low, low, x);
    select(x > high, high, x)
}

/// `(e^r - 1 - r) / r²` for |r| <= ln 2 / 2, highest coefficient first.
pub(crate) const EXP_TAIL: [f32; 6] = [
    1.987_569_1e-4,
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    5e-1,
];

#[inline(always)]
fn exp_tail<I: Isa>(r: f32) -> f32 {
    poly::<I, 6>(r, EXP_TAIL)
}

/// -ln 2 in two parts, the first of which few bits hold.
pub(crate) const MINUS_LN_2: (f32, f32) = (-0.693_359_4, 2.121_944_4e-4);

/// `x = n ln 2 + r`.
#[inline(always)]
fn reduce_exp<I: Isa>(x: f32) -> (f32, i32) {
    let (n, i) = nearest(x * LOG2_E);
    let r = fma32::<I>(n, MINUS_LN_2.0, x);
    (fma32::<I>(n, MINUS_LN_2.1, r), i)
}

/// Beyond these e^x is 0 or infinite.
pub(crate) const EXP_LIMITS: (f32, f32) = (-104.5, 89.0);

/// e^x.
#[inline(always)]
pub(crate) fn exp<I: Isa>(x: f32) -> f32 {
    let (r, n) = reduce_exp::<I>(clamp(x, EXP_LIMITS.0, EXP_LIMITS.1));
    let p = fma32::<I>(exp_tail::<I>(r), r * r, r) + 1.0;
    scale(p, n)
}

/// e^x of 16 numbers, with the machine's scaling by a power of 2.
///
/// # Safety
/// The machine has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn exp16(x: std::arch::x86_64::__m512) -> std::arch::x86_64::__m512 {
    use std::arch::x86_64::*;
    // SAFETY: the machine has these instructions, which touch no memory.
    unsafe {
        let all = |x: f32| _mm512_set1_ps(x);
        // The second operand goes through where one is NaN.
        let x = _mm512_min_ps(all(EXP_LIMITS.1), _mm512_max_ps(all(EXP_LIMITS.0), x));
        let n = _mm512_sub_ps(_mm512_fmadd_ps(x, all(LOG2_E), all(ROUND)), all(ROUND));
        let r = _mm512_fmadd_ps(n, all(MINUS_LN_2.0), x);
        let r = _mm512_fmadd_ps(n, all(MINUS_LN_2.1), r);
        let mut p = all(EXP_TAIL[0]);
        for c in &EXP_TAIL[1..] {
            p = _mm512_fmadd_ps(p, r, all(*c));
        }
        p = _mm512_fmadd_ps(p, r, all(1.0));
        p = _mm512_fmadd_ps(p, r, all(1.0));
        _mm512_scalef_ps(p, n)
    }
}

/// 2^x.
#[inline(always)]
pub(crate) fn exp2<I: Isa>(x: f32) -> f32 {
    let x = clamp(x, -151.0, 129.0);
    let (n, i) = nearest(x);
    let r = (x - n) * LN_2;
    let p = fma32::<I>(exp_tail::<I>(r), r * r, r) + 1.0;
    scale(p, i)
}

/// e^x - 1.
#[inline(always)]
pub(crate) fn expm1<I: Isa>(x: f32) -> f32 {
    let (r, n) = reduce_exp::<I>(clamp(x, -20.0, 80.0));
    let p = fma32::<I>(exp_tail::<I>(r), r * r, r); // e^r - 1
    let power = f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let y = fma32::<I>(p, power, power - 1.0);
    let y = select(x > 20.0, exp::<I>(x), y);
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

/// Those of the cubic and higher terms of `ln(1 + f)`, divided by `f³`.
pub(crate) const LOG_TAIL: [f32; 9] = [
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
fn log_tail<I: Isa>(f: f32) -> (f32, f32) {
    let z = f * f;
    (poly::<I, 9>(f, LOG_TAIL) * z * f, -0.5 * z)
}

/// Puts in the values of a logarithm at its special arguments.
#[inline(always)]
fn log_special(x: f32, y: f32) -> f32 {
    let y = select(x == 0.0, f32::NEG_INFINITY, y);
    let y = select(x < 0.0, f32::NAN, y);
    select(x < f32::INFINITY || x < 0.0, y, x) // +inf and NaN give themselves
}

/// The natural logarithm.
#[inline(always)]
pub(crate) fn log<I: Isa>(x: f32) -> f32 {
    let (f, e) = reduce_log(x);
    let (high, square) = log_tail::<I>(f);
    let y = fma32::<I>(e, -2.121_944_4e-4, high) + square;
    log_special(x, fma32::<I>(e, 0.693_359_4, f + y))
}

/// The logarithm to base 2.
#[inline(always)]
pub(crate) fn log2<I: Isa>(x: f32) -> f32 {
    const TAIL: f32 = LOG2_E - 1.0;
    let (f, e) = reduce_log(x);
    let (high, square) = log_tail::<I>(f);
    let y = high + square;
    let z = fma32::<I>(f, TAIL, y * TAIL);
    log_special(x, z + y + f + e)
}

/// The logarithm to base 10.
#[inline(always)]
pub(crate) fn log10<I: Isa>(x: f32) -> f32 {
    let (f, e) = reduce_log(x);
    let (high, square) = log_tail::<I>(f);
    let y = high + square;
    // Both log10 e and log10 2 are split so that the larger part multiplies exactly.
    let z = fma32::<I>(f + y, 7.007_319e-4, y * 0.433_593_75);
    let z = fma32::<I>(e, 2.487_456_6e-4, z);
    let z = fma32::<I>(f, 0.433_593_75, z);
    log_special(x, fma32::<I>(e, 0.300_781_25, z))
}

/// ln(1 + x).
#[inline(always)]
pub(crate) fn log1p<I: Isa>(x: f32) -> f32 {
    let u = 1.0 + x;
    // What rounding `u` lost, relative to `u`.
    let lost = select(x < 1.0, x - (u - 1.0), 1.0 - (u - x)) / u;
    let y = log::<I>(u);
    let y = select(u > 0.0 && u < f32::INFINITY, y + lost, y);
    select(x.abs() < 1e-8, x, y)
}

/// `(tanh x - x) / x³`, of `x²`.
pub(crate) const TANH_SMALL: [f32; 5] = [
    -5.704_988_7e-3,
    2.063_909e-2,
    -5.373_971_6e-2,
    1.333_144_2e-1,
    -3.333_328e-1,
];

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let small = fma32::<I>(poly::<I, 5>(z, TANH_SMALL) * z, x, x);
    let large = 1.0 - 2.0 / (exp::<I>(2.0 * clamp(a, 0.0, 10.0)) + 1.0);
    select(a < 0.625, small, large).copysign(x)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<I: Isa>(x: f32) -> f32 {
    let e = exp::<I>(-x.abs());
    select(x < 0.0, e, 1.0) / (1.0 + e)
}

/// `erf x / x - 1`, of `x²`, for small x.
pub(crate) const ERF_SMALL: [f32; 6] = [
    -5.967_617e-4,
    4.991_194e-3,
    -2.676_813_5e-2,
    1.128_199_25e-1,
    -3.761_253_4e-1,
    1.283_791_7e-1,
];

/// `ln(1 - erf x) / x + 1` for the others.
pub(crate) const ERF_LARGE: [f32; 7] = [
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
pub(crate) fn erf<I: Isa>(x: f32) -> f32 {
    let t = x.abs();
    let s = x * x;
    let small = poly::<I, 6>(s, ERF_SMALL);
    let small = fma32::<I>(small, x, x);
    // Between -16.6 and 0 where it is used, so that the power of 2 is a normal number.
    let t = clamp(t, 0.0, 4.0);
    let (r, n) = reduce_exp::<I>(fma32::<I>(poly::<I, 7>(t, ERF_LARGE), t, -t));
    let p = fma32::<I>(exp_tail::<I>(r), r * r, r) + 1.0;
    let power = f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let large = fma32::<I>(-p, power, 1.0);
    select(x.abs() < 0.927_734_4, small, large.copysign(x))
}

/// Arguments of [`sin`] and [`cos`] beyond this go to the standard library.
pub(crate) const TRIG_LIMIT: f32 = 1e5;

/// sin and cos of what is left of `x` after `q` quarter turns, and `q`.
#[inline(always)]
fn quarter<I: Isa>(x: f32) -> (f32, f32, i32) {
    // The reduction is done in f64, where 33 bits of π/2 times a quadrant number are exact.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let x = x as f64;
    let t = x * std::f64::consts::FRAC_2_PI + ROUND;
    let n = t - ROUND;
    let r = x - n * 1.570_796_326_734_125_6 - n * 6.077_100_506_506_192e-11;
    let r = r as f32;
    let z = r * r;
    let s = poly::<I, 3>(z, [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]);
    let c = poly::<I, 3>(z, [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]);
    let sin = fma32::<I>(s * z, r, r).copysign(r);
    let cos = fma32::<I>(c * z, z, fma32::<I>(-0.5, z, 1.0));
    (sin, cos, t.to_bits() as i32)
}

/// The sine, for |x| <= [`TRIG_LIMIT`].
#[inline(always)]
pub(crate) fn sin<I: Isa>(x: f32) -> f32 {
    let (s, c, q) = quarter::<I>(x);
    let y = select(q & 1 == 0, s, c);
    f32::from_bits(y.to_bits() ^ ((q as u32 & 2) << 30))
}

/// The cosine, for |x| <= [`TRIG_LIMIT`].
#[inline(always)]
pub(crate) fn cos<I: Isa>(x: f32) -> f32 {
    let (s, c, q) = quarter::<I>(x);
    let y = select(q & 1 == 0, c, s);
    f32::from_bits(y.to_bits() ^ ((q.wrapping_add(1) as u32 & 2) << 30))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::simd::erf::ErfTable;
    use crate::simd::{Kernel, Level, compiled};
    use kiln_base::prim::Unary;
    use kiln_base::special;

    struct F<const N: usize>;
    impl<const N: usize> Kernel<(&[f32], &mut [f32])> for F<N> {
        #[inline(always)]
        unsafe fn run<I: Isa>((a, d): (&[f32], &mut [f32])) {
            for (d, &x) in d.iter_mut().zip(a) {
                *d = match N {
                    0 => exp::<I>(x),
                    1 => exp2::<I>(x),
                    2 => expm1::<I>(x),
                    3 => log::<I>(x),
                    4 => log2::<I>(x),
                    5 => log10::<I>(x),
                    6 => log1p::<I>(x),
                    7 => tanh::<I>(x),
                    8 => sigmoid::<I>(x),
                    9 => erf::<I>(x),
                    12 => erf_looked_up::<I>(x),
                    13 => exp_scaled::<I>(x),
                    10 => sin::<I>(x),
                    _ => cos::<I>(x),
                };
            }
        }
    }

    /// One lane of the lookup, or what stands in for it.
    #[inline(always)]
    fn erf_looked_up<I: Isa>(x: f32) -> f32 {
        #[cfg(target_arch = "x86_64")]
        if I::LEVEL == Level::Avx512 {
            use std::arch::x86_64::*;
            // SAFETY: the level says so.
            return unsafe { _mm512_cvtss_f32(ErfTable::get().of(_mm512_set1_ps(x))) };
        }
        erf::<I>(x)
    }

    /// One lane of the vector function, or what stands in for it.
    #[inline(always)]
    fn exp_scaled<I: Isa>(x: f32) -> f32 {
        #[cfg(target_arch = "x86_64")]
        if I::LEVEL == Level::Avx512 {
            use std::arch::x86_64::*;
            // SAFETY: the level says so.
            return unsafe { _mm512_cvtss_f32(exp16(_mm512_set1_ps(x))) };
        }
        exp::<I>(x)
    }

    /// The distance in units of the last place of an f32 near `want`.
    fn ulps(got: f32, want: f64) -> f64 {
        let rounded = want as f32;
        if got.is_nan() || rounded.is_nan() || rounded.is_infinite() || got.is_infinite() {
            let same = got.is_nan() && rounded.is_nan() || got == rounded;
            // Rounding to infinity may differ right at the edge.
            let edge = want.abs() > 3.402_82e38 && got.abs() > 3.402_82e38;
            return if same || edge { 0.0 } else { f64::INFINITY };
        }
        let magnitude = rounded.abs().max(f32::MIN_POSITIVE);
        let ulp = (f32::from_bits(magnitude.to_bits() + 1) - magnitude) as f64;
        (got as f64 - want).abs() / ulp
    }

    fn check<const N: usize>(op: Unary, limit: f32) {
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
        xs.retain(|x| x.abs() <= limit || limit == f32::INFINITY);
        let mut ys = vec![0.0; xs.len()];
        for level in Level::ALL.into_iter().filter(|l| l.is_supported()) {
            // SAFETY: the machine has the level.
            unsafe { compiled::<F<N>, (&[f32], &mut [f32])>(level)((&xs, &mut ys)) };
            let mut worst = (0.0, 0.0, 0.0);
            for (&x, &y) in xs.iter().zip(&ys) {
                let u = ulps(y, op.eval_f64(x as f64));
                if u > worst.0 {
                    worst = (u, x, y);
                }
                let odd = !matches!(op, Unary::Cos | Unary::Exp | Unary::Exp2 | Unary::Sigmoid);
                if x == 0.0 && odd && !matches!(op, Unary::Log | Unary::Log2 | Unary::Log10) {
                    assert_eq!(y.to_bits(), x.to_bits(), "{op:?}({x})");
                }
            }
            println!("{op:?} {level:?}: {:.2} ulp at {:e}", worst.0, worst.1);
            assert!(worst.0 <= 4.0, "{op:?} {level:?}: {worst:?}");
        }
    }

    /// gelu of a negative number is a difference of two numbers near 1.
    #[test]
    fn erf_is_nearly_rounded_where_it_is_close_to_one() {
        let xs: Vec<f32> = (0..400_000).map(|i| 1.8 + i as f32 * 1e-5).collect();
        let mut ys = vec![0.0; xs.len()];
        for level in Level::ALL.into_iter().filter(|l| l.is_supported()) {
            // SAFETY: the machine has the level.
            unsafe { compiled::<F<12>, (&[f32], &mut [f32])>(level)((&xs, &mut ys)) };
            let mut worst = (0.0, 0.0);
            for (&x, &y) in xs.iter().zip(&ys) {
                let error = (y as f64 - special::erf(x as f64)).abs() / (f32::EPSILON as f64 / 2.0);
                worst = if error > worst.0 { (error, x) } else { worst };
                assert!(y <= 1.0, "{level:?}: erf({x}) = {y}");
            }
            println!("erf {level:?}: {:.2} ulp at {}", worst.0, worst.1);
            assert!(worst.0 <= 1.0, "{level:?}: {worst:?}");
        }
    }

    #[test]
    fn functions_are_within_four_ulp_of_f64() {
        check::<0>(Unary::Exp, f32::INFINITY);
        check::<13>(Unary::Exp, f32::INFINITY);
        check::<1>(Unary::Exp2, f32::INFINITY);
        check::<2>(Unary::Expm1, f32::INFINITY);
        check::<3>(Unary::Log, f32::INFINITY);
        check::<4>(Unary::Log2, f32::INFINITY);
        check::<5>(Unary::Log10, f32::INFINITY);
        check::<6>(Unary::Log1p, f32::INFINITY);
        check::<7>(Unary::Tanh, f32::INFINITY);
        check::<8>(Unary::Sigmoid, f32::INFINITY);
        check::<9>(Unary::Erf, f32::INFINITY);
        check::<12>(Unary::Erf, f32::INFINITY);
        check::<10>(Unary::Sin, TRIG_LIMIT);
        check::<11>(Unary::Cos, TRIG_LIMIT);
    }
}
