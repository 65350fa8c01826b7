//! Modified Bessel functions of the first kind of orders 0 and 1, and their products with `e^(−|x|)`.
//!
//! Up to 20, the power series (Abramowitz and Stegun 9.6.10), whose terms all have one sign. Beyond, the asymptotic
//! series (9.7.1), whose smallest term is then below the precision.

use std::f64::consts::TAU;

/// The argument from which on the asymptotic series is used.
const FAR: f64 = 20.0;

/// `Σ (x²/4)^k / (k! (k + order)!)`.
fn series(x: f64, order: f64) -> f64 {
    let square = 0.25 * x * x;
    let (mut term, mut sum, mut k) = (1.0, 1.0, 0.0);
    while term > 1e-17 * sum {
        k += 1.0;
        term *= square / (k * (k + order));
        sum += term;
    }
    sum
}

/// `e^(−x) I(x)` of an order by the asymptotic series, for large x.
fn asymptotic(x: f64, order: f64) -> f64 {
    let (mut term, mut sum, mut k) = (1.0, 1.0, 0.0);
    while f64::abs(term) > 1e-17 && k < 40.0 {
        k += 1.0;
        let odd = 2.0 * k - 1.0;
        term *= (odd * odd - 4.0 * order * order) / (8.0 * k * x);
        sum += term;
    }
    sum / (TAU * x).sqrt()
}

/// `y e^x` without intermediate overflow.
fn times_exp(y: f64, x: f64) -> f64 {
    let half = (0.5 * x).exp();
    if half.is_infinite() {
        half
    } else {
        y * half * half
    }
}

/// I₀(x).
pub fn i0(x: f64) -> f64 {
    let a = x.abs();
    if a < FAR {
        series(a, 0.0)
    } else {
        times_exp(asymptotic(a, 0.0), a)
    }
}

/// `e^(−|x|) I₀(x)`.
pub fn i0e(x: f64) -> f64 {
    let a = x.abs();
    if a < FAR {
        series(a, 0.0) * (-a).exp()
    } else {
        asymptotic(a, 0.0)
    }
}

/// I₁(x).
pub fn i1(x: f64) -> f64 {
    let a = x.abs();
    if a < FAR {
        0.5 * x * series(a, 1.0)
    } else {
        times_exp(asymptotic(a, 1.0), a).copysign(x)
    }
}

/// `e^(−|x|) I₁(x)`.
pub fn i1e(x: f64) -> f64 {
    let a = x.abs();
    if a < FAR {
        0.5 * x * series(a, 1.0) * (-a).exp()
    } else {
        asymptotic(a, 1.0).copysign(x)
    }
}
