//! The approximate functions of the special-function unit, computed in f64 by polynomials that vectorise. Hardware is
//! allowed an error of a few units in the last place; these are more accurate.

/// Coefficients of e^t.
const EXP: [f64; 12] = inverse_factorials(0, 1, false);
/// Coefficients of artanh(s)/s in s².
const ATANH: [f64; 12] = {
    let mut out = [0.0; 12];
    let mut k = 0;
    while k < 12 {
        out[k] = 1.0 / (2 * k + 1) as f64;
        k += 1;
    }
    out
};
/// Coefficients of sin(r)/r in r².
const SIN: [f64; 12] = inverse_factorials(1, 2, true);
/// Coefficients of cos(r) in r².
const COS: [f64; 12] = inverse_factorials(0, 2, true);

/// 1/first!, 1/(first + step)!, …, with alternating signs if `alternate`.
const fn inverse_factorials(start: usize, step: usize, alternate: bool) -> [f64; 12] {
    let mut out = [0.0; 12];
    let (mut value, mut n, mut k) = (1.0, 1, 0);
    while k < 12 {
        while n <= start + k * step {
            value /= n as f64;
            n += 1;
        }
        out[k] = if alternate && k % 2 == 1 {
            -value
        } else {
            value
        };
        k += 1;
    }
    out
}

/// Σ cₖ xᵏ, written out so that the loop over lanes around it vectorises.
#[inline(always)]
fn polynomial(x: f64, c: &[f64; 12]) -> f64 {
    let [c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11] = *c;
    let high = c6 + x * (c7 + x * (c8 + x * (c9 + x * (c10 + x * c11))));
    c0 + x * (c1 + x * (c2 + x * (c3 + x * (c4 + x * (c5 + x * high)))))
}

/// `2^x`.
#[inline(always)]
pub(crate) fn ex2(x: f32) -> f32 {
    exp2(x as f64) as f32
}

/// `2^x`, accurate to about 1e-12.
#[inline(always)]
fn exp2(x: f64) -> f64 {
    let clamped = x.clamp(-1000.0, 1000.0);
    let integral = clamped.round_ties_even();
    let t = (clamped - integral) * std::f64::consts::LN_2;
    // e^t by Taylor; |t| <= ln 2 / 2.
    let sum = polynomial(t, &EXP);
    // `integral` is in the exponent's range, so that adding it to the exponent scales exactly.
    let exponent = (integral + 1023.0 + 4503599627370496.0).to_bits() << 52;
    let value = sum * f64::from_bits(exponent);
    if x.is_nan() { x } else { value }
}

/// `log2 x`.
#[inline(always)]
pub(crate) fn lg2(x: f32) -> f32 {
    let wide = x as f64; // f32's subnormals are normal here
    let bits = wide.to_bits();
    // The mantissa in [√½, √2), so that the series below converges fast and is exact at 1.
    let shifted = bits.wrapping_sub(0x3fe6_a09e_667f_3bcd);
    let exponent = ((shifted as i64) >> 52) as f64;
    let mantissa =
        f64::from_bits((shifted & 0x000f_ffff_ffff_ffff).wrapping_add(0x3fe6_a09e_667f_3bcd));
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let sum = polynomial(square, &ATANH);
    let value = exponent + 2.0 * s * sum * std::f64::consts::LOG2_E;
    if wide > 0.0 && wide < f64::INFINITY {
        value as f32
    } else if wide == 0.0 {
        f32::NEG_INFINITY
    } else if wide > 0.0 {
        f32::INFINITY
    } else {
        f32::NAN
    }
}

/// `sin x`, for arguments that f64 reduces accurately.
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    sine_of_quarter(x, 0)
}

/// `cos x`, for arguments that f64 reduces accurately.
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    sine_of_quarter(x, 1)
}

/// The sine of `x` plus `quarter_turns` quarter turns.
#[inline(always)]
fn sine_of_quarter(x: f32, quarter_turns: u64) -> f32 {
    let x = x as f64;
    let quarters = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = x - quarters * std::f64::consts::FRAC_PI_2 - quarters * 6.123233995736766e-17;
    // The low bits of the integer `quarters`, also of a negative one.
    let quadrant = (quarters + 6755399441055744.0)
        .to_bits()
        .wrapping_add(quarter_turns);
    let square = r * r;
    let (sine, cosine) = (polynomial(square, &SIN), polynomial(square, &COS));
    let value = if quadrant & 1 == 0 { sine * r } else { cosine };
    let value = if quadrant & 2 == 0 { value } else { -value };
    if x.is_finite() {
        value as f32
    } else {
        f32::NAN
    }
}

/// `tanh x`.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let wide = x as f64;
    let e = exp2(wide.abs() * 2.0 * std::f64::consts::LOG2_E);
    // Near zero the quotient would lose digits, so a series replaces it.
    let square = wide * wide;
    let series = wide * (1.0 - square / 3.0 * (1.0 - square * 0.4));
    let quotient = (1.0 - 2.0 / (e + 1.0)).copysign(wide);
    let value = if wide.abs() < 1e-3 { series } else { quotient };
    if x.is_nan() { x } else { value as f32 }
}

/// `1 / √x`.
#[inline(always)]
pub(crate) fn rsqrt(x: f32) -> f32 {
    (1.0 / (x as f64).sqrt()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that `f` is within 1 ulp of `exact` (or of `floor` absolutely) on a sweep of `range`.
    fn check(name: &str, f: fn(f32) -> f32, exact: fn(f64) -> f64, range: (f32, f32), floor: f64) {
        for i in 0..20_000 {
            let x = range.0 + (range.1 - range.0) * i as f32 / 20_000.0;
            let (ours, want) = (f(x) as f64, exact(x as f64));
            let ulp = (want.abs() * 1.2e-7).max(floor);
            assert!(
                (ours - want).abs() <= ulp,
                "{name}({x}) = {ours}, not {want}"
            );
        }
    }

    #[test]
    fn approximations_are_near_the_functions() {
        check("ex2", ex2, f64::exp2, (-160.0, 127.9), 1.5e-45);
        check("lg2", lg2, f64::log2, (1e-3, 1e3), 1e-12);
        check("sin", sin, f64::sin, (-1e4, 1e4), 1e-9);
        check("cos", cos, f64::cos, (-1e4, 1e4), 1e-9);
        check("tanh", tanh, f64::tanh, (-12.0, 12.0), 1e-12);
        check("rsqrt", rsqrt, |x| 1.0 / x.sqrt(), (1e-6, 1e6), 0.0);
    }

    #[test]
    fn special_values_are_kept() {
        assert_eq!(
            (ex2(f32::INFINITY), ex2(f32::NEG_INFINITY)),
            (f32::INFINITY, 0.0)
        );
        assert_eq!((ex2(0.0), ex2(10.0)), (1.0, 1024.0));
        assert_eq!(
            (lg2(0.0), lg2(1.0), lg2(8.0)),
            (f32::NEG_INFINITY, 0.0, 3.0)
        );
        assert_eq!(lg2(f32::INFINITY), f32::INFINITY);
        assert!(lg2(-1.0).is_nan() && ex2(f32::NAN).is_nan() && sin(f32::INFINITY).is_nan());
        assert_eq!((tanh(f32::INFINITY), tanh(-100.0)), (1.0, -1.0));
    }
}
