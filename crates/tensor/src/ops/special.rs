//! Special functions.

use super::arith::{Rule, binary};
use super::short::wide;
use crate::Int;
use crate::operand::Other;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Scalar, Tensor, promote};
use kiln_derive::on_cells;
use kiln_ir::{Builder, Pw, ensure};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// A function of floats, computed wide and rounded once; integers become f32.
#[track_caller]
fn float_function(
    called: &'static str,
    t: &Tensor,
    f: impl FnOnce(&mut Recorder, &Tensor) -> Recorded,
) -> Tensor {
    compose(called, &[t], |b| {
        let dtype = promote::float_dtype(t.dtype());
        let x = b.cast(t, wide(dtype))?;
        let y = f(b, &x)?;
        b.cast(&y, dtype)
    })
}

#[on_cells]
impl Tensor {
    /// The n-th derivative of [`Tensor::digamma`]; n is not negative.
    pub fn polygamma(&self, n: impl Into<Int>) -> Tensor {
        float_function("polygamma", self, |b, x| {
            ensure!(n >= 0, "polygamma has no negative orders ({n})");
            if n == 0 {
                return b.unary(Pw::Digamma, x);
            }
            // (−1)ⁿ⁺¹ n! ζ(n + 1, x)
            let order = b.scalar_like(n as f64 + 1.0, x)?;
            let zeta = b.binary(Pw::Zeta, &order, x)?;
            let factorial = kiln_base::special::lgamma(n as f64 + 1.0).exp();
            let factorial = if n < 21 { factorial.round() } else { factorial };
            let sign = if n % 2 == 1 { 1.0 } else { -1.0 };
            b.with(Pw::Mul, &zeta, sign * factorial)
        })
    }

    /// sin(πx) / (πx), and 1 at 0.
    pub fn sinc(&self) -> Tensor {
        float_function("sinc", self, |b, x| b.unary(Pw::Sinc, x))
    }

    /// The entropy −x · log(x): 0 at 0, −∞ below.
    pub fn entr(&self) -> Tensor {
        float_function("entr", self, |b, x| {
            let product = b.binary(Pw::Xlogy, x, x)?;
            let y = b.unary(Pw::Neg, &product)?;
            let below = b.with(Pw::Lt, x, 0.0)?;
            let y = b.fill_where(&below, f64::NEG_INFINITY, &y)?;
            // At 0 its derivative is infinite like that of the square root.
            let root = b.fill_where(&below, 0.25, x)?;
            let root = b.unary(Pw::Sqrt, &root)?;
            let zero = b.with(Pw::Eq, x, 0.0)?;
            b.select(&zero, &root, &y)
        })
    }

    /// The standard normal distribution function, erfc(−x / √2) / 2.
    pub fn ndtr(&self) -> Tensor {
        float_function("ndtr", self, |b, x| {
            let scaled = b.with(Pw::Mul, x, -FRAC_1_SQRT_2)?;
            let tail = b.unary(Pw::Erfc, &scaled)?;
            b.with(Pw::Mul, &tail, 0.5)
        })
    }

    /// log(x / (1 − x)), the inverse of [`Tensor::sigmoid`]. [`Tensor::logit_with`] clamps x to `eps..=1 − eps`
    /// first.
    pub fn logit(&self) -> Tensor {
        self.logit_with(None)
    }

    /// [`Tensor::logit`] of x clamped to `eps..=1 − eps`.
    pub fn logit_with(&self, eps: impl Into<Option<f64>>) -> Tensor {
        float_function("logit", self, |b, x| {
            let mut x = x.clone();
            if let Some(eps) = eps.filter(|eps| *eps >= 0.0) {
                let (low, high) = (b.scalar_like(eps, &x)?, b.scalar_like(1.0 - eps, &x)?);
                let (below, above) = (b.binary(Pw::Lt, &x, &low)?, b.binary(Pw::Gt, &x, &high)?);
                // For eps above ½ the lower bound takes precedence, as in PyTorch.
                x = b.select(&above, &high, &x)?;
                x = b.select(&below, &low, &x)?;
            }
            let minus = b.unary(Pw::Neg, &x)?;
            let (yes, no) = (b.unary(Pw::Log, &x)?, b.unary(Pw::Log1p, &minus)?);
            b.binary(Pw::Sub, &yes, &no)
        })
    }

    /// The logarithm of the multivariate gamma function of dimension p, for x > (p − 1) / 2:
    /// `p (p − 1) / 4 · log π + Σ log Γ(x − j / 2)` over j < p.
    pub fn mvlgamma(&self, p: impl Into<Int>) -> Tensor {
        float_function("mvlgamma", self, |b, x| {
            ensure!(
                (1..=1024).contains(&p),
                "the dimension must lie in 1..=1024, not {p}"
            );
            let mut sum = b.unary(Pw::Lgamma, x)?;
            for j in 1..p {
                let shifted = b.with(Pw::Sub, x, 0.5 * j as f64)?;
                let term = b.unary(Pw::Lgamma, &shifted)?;
                sum = b.binary(Pw::Add, &sum, &term)?;
            }
            b.with(Pw::Add, &sum, 0.25 * (p * (p - 1)) as f64 * PI.ln())
        })
    }

    /// The power in f64, for any dtypes.
    pub fn float_power<'a>(&self, exponent: impl Into<Other<'a>>) -> Tensor {
        let base = self.to_dtype(DType::F64);
        match exponent {
            Other::Tensor(t) => {
                let t = t.to_dtype(DType::F64);
                binary("float_power", Pw::Pow, Rule::Plain, &base, (&t).into())
            }
            Other::Number(n) => {
                let n = Scalar::Float(n.as_f64());
                binary("float_power", Pw::Pow, Rule::Plain, &base, n.into())
            }
        }
    }
}
