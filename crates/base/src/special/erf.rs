//! The error function and its relatives.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI, SQRT_2};

/// The error function: a Taylor series near zero and the continued fraction of `erfc` outside,
/// both to full double precision (Abramowitz and Stegun 7.1.6 and 7.1.14).
pub fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let a = x.abs();
    let value = if a < 2.5 {
        // erf x = 2/sqrt(pi) * exp(-x^2) * sum 2^n x^(2n+1) / (1*3*..*(2n+1))
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term > sum * 1e-17 {
            n += 1.0;
            term *= 2.0 * a * a / (2.0 * n + 1.0);
            sum += term;
        }
        FRAC_2_SQRT_PI * (-a * a).exp() * sum
    } else if a < 6.0 {
        let mut f = a;
        for n in (1..=60).rev() {
            f = a + (n as f64 / 2.0) / f;
        }
        1.0 - (-a * a).exp() / (f * PI.sqrt())
    } else {
        1.0
    };
    value.copysign(x)
}

/// `1 − erf x`.
pub fn erfc(x: f64) -> f64 {
    if x < 0.5 {
        1.0 - erf(x)
    } else if x < 27.3 {
        gauss(x, 1.0) * erfcx(x)
    } else {
        if x.is_nan() { x } else { 0.0 }
    }
}

/// `e^(−factor x²)` for a power of 2, corrected for the rounding error of x².
fn gauss(x: f64, factor: f64) -> f64 {
    let square = x * x;
    let lost = x.mul_add(x, -square);
    (-factor * square).exp() * (1.0 - factor * lost)
}

/// Chebyshev coefficients of `(1 + 2x) e^(x²) erfc x` in `(x − 3.75) / (x + 3.75)`, the variables of
/// Shepherd and Laframboise (1981); the numbers were computed with 60 digits.
#[rustfmt::skip]
const ERFCX: [f64; 27] = [
    1.1775789345674017, -0.004590054580646478, -0.08424913336651792,
    0.05920993999819189, -0.026658668435305753, 0.009074997670705265,
    -0.002413163540417608, 0.0004907758365258086, -6.916973302501207e-05,
    4.13902798607301e-06, 7.74038306619849e-07, -2.1886401049234397e-07,
    1.076499946567091e-08, 4.521959811218287e-09, -7.754400208831351e-10,
    -6.318088340886684e-11, 2.86879501093067e-11, 1.9455868545777347e-13,
    -9.65469674843344e-13, 3.25254814814874e-14, 3.3478119482868056e-14,
    -1.864562880419313e-15, -1.2507950530688648e-15, 7.418235256624044e-17,
    5.068148904796111e-17, -2.2370566594359995e-18, -2.187342944303018e-18,
];

/// `e^(x²) erfc x` for x >= 0, by Clenshaw's recurrence.
fn erfcx(x: f64) -> f64 {
    let t = if x < 1e30 {
        (x - 3.75) / (x + 3.75)
    } else {
        1.0
    };
    let (mut b1, mut b2) = (0.0, 0.0);
    for c in ERFCX[1..].iter().rev() {
        (b1, b2) = (2.0 * t * b1 - b2 + c, b1);
    }
    (t * b1 - b2 + ERFCX[0]) / (1.0 + 2.0 * x)
}

/// The inverse of [`erf`]; ±∞ at ±1, NaN outside.
pub fn erfinv(y: f64) -> f64 {
    let a = y.abs();
    if a > 0.5 {
        return if a <= 1.0 {
            erfc_inverse(1.0 - a).copysign(y)
        } else {
            f64::NAN
        };
    }
    // Halley's method on erf(x) − y.
    let mut x = start(-((1.0 - y) * (1.0 + y)).ln()) * y;
    for _ in 0..2 {
        let step = (erf(x) - y) / (FRAC_2_SQRT_PI * (-x * x).exp());
        x -= step / (1.0 + x * step);
    }
    if y == 0.0 { y } else { x }
}

/// The x with `erfc x = y`, for y in [0, 1].
fn erfc_inverse(y: f64) -> f64 {
    if y == 0.0 {
        return f64::INFINITY;
    }
    let log = y.ln();
    let w = -log - (2.0 - y).ln();
    let mut x = if w < 16.0 {
        start(w) * (1.0 - y)
    } else {
        // erfc x is about e^(-x²) / (x sqrt(pi)).
        (-log - 0.5 * (-PI * log).ln()).sqrt()
    };
    // Newton's method on ln erfc(x) − ln y, which is nearly a parabola.
    for _ in 0..4 {
        let scaled = erfcx(x);
        x += (scaled.ln() - x * x - log) * scaled / FRAC_2_SQRT_PI;
    }
    x
}

/// `erfinv(y) / y` to single precision for `w = −ln(1 − y²)` (M. Giles, Approximating the erfinv
/// function, 2010).
fn start(w: f64) -> f64 {
    #[rustfmt::skip]
    const CENTRE: [f64; 9] = [
        1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087,
        -4.39150654e-06, -3.5233877e-06, 3.43273939e-07, 2.81022636e-08,
    ];
    #[rustfmt::skip]
    const TAIL: [f64; 9] = [
        2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773,
        -0.00367342844, 0.00134934322, 0.000100950558, -0.000200214257,
    ];
    if w < 5.0 {
        super::polynomial(w - 2.5, &CENTRE)
    } else {
        super::polynomial(w.sqrt() - 3.0, &TAIL)
    }
}

/// The quantile of the standard normal distribution: the x below which the probability is p. −∞ and
/// ∞ at 0 and 1, NaN outside.
pub fn ndtri(p: f64) -> f64 {
    if !(0.0..=1.0).contains(&p) {
        f64::NAN
    } else if p < 0.25 {
        -SQRT_2 * erfc_inverse(2.0 * p)
    } else if p > 0.75 {
        SQRT_2 * erfc_inverse(2.0 * (1.0 - p))
    } else {
        SQRT_2 * erfinv(2.0 * p - 1.0)
    }
}

/// The logarithm of the standard normal distribution function, `ln(erfc(−x / √2) / 2)`.
pub fn log_ndtr(x: f64) -> f64 {
    if x < -1.0 {
        (0.5 * erfcx(-x * FRAC_1_SQRT_2)).ln() - 0.5 * x * x
    } else if x < 1.0 {
        (-0.5 * erfc(x * FRAC_1_SQRT_2)).ln_1p()
    } else if x < 40.0 {
        (-0.5 * gauss(x, 0.5) * erfcx(x * FRAC_1_SQRT_2)).ln_1p()
    } else {
        if x.is_nan() { x } else { -0.0 }
    }
}
