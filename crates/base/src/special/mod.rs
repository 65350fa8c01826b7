//! Special functions on f64, each accurate to a few units in the last place, except near zeros that
//! have no dedicated code, such as that of digamma near 1.4616.

mod bessel;
mod erf;
mod gamma;
#[cfg(test)]
mod tests;

pub use bessel::{i0, i0e, i1, i1e};
pub use erf::{erf, erfc, erfinv, log_ndtr, ndtri};
pub use gamma::{digamma, lgamma, zeta};

/// `c[0] + c[1] x + c[2] x² + …`.
fn polynomial(x: f64, c: &[f64]) -> f64 {
    c.iter().rev().fold(0.0, |y, c| y * x + c)
}
