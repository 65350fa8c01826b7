//! The gamma function's logarithm and derivatives, and the Hurwitz zeta function.

use super::polynomial;
use std::f64::consts::PI;

/// `1 − γ` with Euler's constant γ.
const ONE_MINUS_EULER: f64 = 0.42278433509846713939;

/// `ζ(k) − 1` for k = 2, 3, … with Riemann's zeta function.
#[rustfmt::skip]
const ZETA_MINUS_ONE: [f64; 27] = [
    0.64493406684822643647, 0.2020569031595942854, 0.082323233711138191516,
    0.036927755143369926331, 0.017343061984449139715, 0.0083492773819228268398,
    0.0040773561979443393787, 0.0020083928260822144179, 0.00099457512781808533715,
    0.0004941886041194645587, 0.00024608655330804829864, 0.00012271334757848914675,
    0.000061248135058704829259, 0.000030588236307020493552, 0.000015282259408651871733,
    7.6371976378997622736e-6, 3.8172932649998398565e-6, 1.9082127165539389257e-6,
    9.5396203387279611315e-7, 4.7693298678780646312e-7, 2.3845050272773299e-7,
    1.1921992596531107307e-7, 5.9608189051259479612e-8, 2.9803503514652280186e-8,
    1.4901554828365041235e-8, 7.450711789835429492e-9, 3.7253340247884570548e-9,
];

/// Bernoulli's numbers of even index: B2, B4, …
#[rustfmt::skip]
const BERNOULLI: [f64; 11] = [
    1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0, 7.0 / 6.0,
    -3617.0 / 510.0, 43867.0 / 798.0, -174611.0 / 330.0, 854513.0 / 138.0,
];

/// `Σ (−z)^k (ζ(k) − 1) weight(k)` over k >= 2, divided by z², for |z| <= ½.
fn zeta_series(z: f64, weight: fn(f64) -> f64) -> f64 {
    let mut sum = 0.0;
    for (i, c) in ZETA_MINUS_ONE.iter().enumerate().rev() {
        sum = c * weight(i as f64 + 2.0) - z * sum;
    }
    sum
}

/// What is left of `x` after the nearest integer.
fn fraction(x: f64) -> f64 {
    x - x.round_ties_even()
}

/// The logarithm of |Γ(x)|; ∞ at the poles 0, −1, −2, … and at ±∞.
///
/// A series around 2 (Abramowitz and Stegun 6.1.33), the recurrence, Stirling's series (6.1.41) and,
/// for negative numbers, the reflection.
pub fn lgamma(x: f64) -> f64 {
    // ln Γ(2 + z)
    let near_two = |z: f64| z * (ONE_MINUS_EULER + z * zeta_series(z, |k| 1.0 / k));
    if x.is_infinite() || x <= 0.0 && x == x.floor() {
        f64::INFINITY
    } else if x.abs() < 1e-17 {
        -x.abs().ln()
    } else if x < 0.0 {
        (PI / (x * (PI * fraction(x)).sin()).abs()).ln() - lgamma(-x)
    } else if x < 0.5 {
        near_two(x) - x.ln_1p() - x.ln()
    } else if x < 1.5 {
        near_two(x - 1.0) - (x - 1.0).ln_1p()
    } else if x < 8.0 {
        let (mut x, mut product) = (x, 1.0);
        while x >= 2.5 {
            x -= 1.0;
            product *= x;
        }
        product.ln() + near_two(x - 2.0)
    } else {
        const HALF_LN_TAU: f64 = 0.91893853320467274178;
        // B2k / (2k (2k − 1) x^(2k − 1))
        let mut power = x.recip();
        let mut series = 0.0;
        for (k, b) in BERNOULLI.iter().enumerate() {
            let n = 2.0 * k as f64 + 2.0;
            series += b / (n * (n - 1.0)) * power;
            power /= x * x;
        }
        x * (x.ln() - 1.0) - 0.5 * x.ln() + HALF_LN_TAU + series
    }
}

/// The derivative of `ln Γ`; ∓∞ at ±0, NaN at −1, −2, … and −∞.
///
/// A series around 2 (Abramowitz and Stegun 6.3.14), the recurrence, the asymptotic series (6.3.18)
/// and, for negative numbers, the reflection.
pub fn digamma(x: f64) -> f64 {
    // ψ(2 + z)
    let near_two = |z: f64| ONE_MINUS_EULER + z * zeta_series(z, |_| 1.0);
    if x == 0.0 {
        f64::INFINITY.copysign(-x)
    } else if x < 0.0 && x == x.floor() {
        f64::NAN
    } else if x < 0.0 {
        let f = fraction(x);
        let cot = match f.abs() {
            a if a > 0.25 => (PI * (0.5 - a)).tan().copysign(f),
            _ => (PI * f).tan().recip(),
        };
        digamma(1.0 - x) - PI * cot
    } else if x < 0.5 {
        near_two(x) - (1.0 + x).recip() - x.recip()
    } else if x < 1.5 {
        near_two(x - 1.0) - x.recip()
    } else if x < 8.0 {
        let (mut x, mut sum) = (x, 0.0);
        while x >= 2.5 {
            x -= 1.0;
            sum += x.recip();
        }
        sum + near_two(x - 2.0)
    } else {
        // B2k / (2k x^(2k))
        let square = (x * x).recip();
        let mut coefficients = BERNOULLI;
        for (k, c) in coefficients.iter_mut().enumerate() {
            *c /= 2.0 * k as f64 + 2.0;
        }
        x.ln() - 0.5 / x - square * polynomial(square, &coefficients)
    }
}

/// The Hurwitz zeta function `Σ (q + k)^(−s)` over k >= 0: ∞ at s = 1 and at q = 0, −1, −2, …; NaN
/// for s < 1 and for q < 0 with an s that is no integer.
///
/// Terms, then the rest by the Euler–Maclaurin formula.
pub fn zeta(s: f64, q: f64) -> f64 {
    if s.is_nan() || q.is_nan() || s < 1.0 {
        return f64::NAN;
    }
    if s == 1.0 || q <= 0.0 && q == q.floor() {
        return f64::INFINITY;
    }
    if q < 0.0 {
        if s != s.floor() || s.is_infinite() {
            return f64::NAN;
        }
        // The terms below zero are those of 1 − f and on, up to −q, with the sign (−1)^s.
        let f = q - q.floor();
        let below = zeta(s, 1.0 - f) - zeta(s, 1.0 - q);
        let sign = if s % 2.0 == 0.0 { 1.0 } else { -1.0 };
        return zeta(s, f) + sign * below;
    }
    let mut sum = 0.0;
    let mut w = q;
    for _ in 0..10 {
        let term = w.powf(-s);
        sum += term;
        if term <= 1e-17 * sum {
            return sum;
        }
        w += 1.0;
    }
    let power = w.powf(-s);
    sum += w.powf(1.0 - s) / (s - 1.0) + 0.5 * power;
    // B2k / (2k)! · s (s + 1) … (s + 2k − 2) · w^(−s − 2k + 1)
    let mut factor = power * s / (2.0 * w);
    for (k, b) in BERNOULLI.iter().enumerate() {
        let n = 2.0 * k as f64 + 2.0;
        let term = b * factor;
        sum += term;
        if term.abs() <= 1e-17 * sum {
            break;
        }
        factor *= (s + n - 1.0) * (s + n) / (w * w * (n + 1.0) * (n + 2.0));
    }
    sum
}
