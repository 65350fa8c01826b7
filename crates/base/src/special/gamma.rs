//! The gamma function's logarithm and derivatives, and the Hurwitz zeta function.

use super::polynomial;
use std::f64::consts::PI;

/// `1 − γ` with Euler's constant γ.
const ONE_MINUS_EULER: f64 = 0.42278433509846713;

/// `ζ(k) − 1` for k = 2, 3, … with Riemann's zeta function.
#[rustfmt::skip]
const ZETA_MINUS_ONE: [f64; 27] = [
    0.6449340668482264, 0.2020569031595943, 0.08232323371113819,
    0.03692775514336993, 0.01734306198444914, 0.008349277381922827,
    0.00407735619794434, 0.0020083928260822143, 0.0009945751278180853,
    0.0004941886041194645, 0.0002460865533080483, 0.00012271334757848915,
    6.124813505870483e-05, 3.058823630702049e-05, 1.528225940865187e-05,
    7.637197637899763e-06, 3.81729326499984e-06, 1.908212716553939e-06,
    9.539620338727962e-07, 4.769329867878064e-07, 2.38450502727733e-07,
    1.1921992596531106e-07, 5.960818905125948e-08, 2.980350351465228e-08,
    1.4901554828365043e-08, 7.45071178983543e-09, 3.725334024788457e-09,
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

/// The remainder of `x` after the nearest integer.
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
        const HALF_LN_TAU: f64 = 0.9189385332046728;
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

/// The Hurwitz zeta function `Σ (q + k)^(−s)` over k >= 0: ∞ at s = 1 and at q = 0, −1, −2, …; NaN for s < 1, and for q
/// < 0 with an s that is not an integer.
///
/// It sums the first terms, and the others by the Euler–Maclaurin formula.
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
        let fraction = q - q.floor();
        let below = zeta(s, 1.0 - fraction) - zeta(s, 1.0 - q);
        let sign = if s % 2.0 == 0.0 { 1.0 } else { -1.0 };
        return zeta(s, fraction) + sign * below;
    }
    let mut sum = 0.0;
    let mut shifted = q;
    for _ in 0..10 {
        let term = shifted.powf(-s);
        sum += term;
        if term <= 1e-17 * sum {
            return sum;
        }
        shifted += 1.0;
    }
    let power = shifted.powf(-s);
    sum += shifted.powf(1.0 - s) / (s - 1.0) + 0.5 * power;
    // B2k / (2k)! · s (s + 1) … (s + 2k − 2) · w^(−s − 2k + 1)
    let mut factor = power * s / (2.0 * shifted);
    for (k, b) in BERNOULLI.iter().enumerate() {
        let n = 2.0 * k as f64 + 2.0;
        let term = b * factor;
        sum += term;
        if term.abs() <= 1e-17 * sum {
            break;
        }
        factor *= (s + n - 1.0) * (s + n) / (shifted * shifted * (n + 1.0) * (n + 2.0));
    }
    sum
}
