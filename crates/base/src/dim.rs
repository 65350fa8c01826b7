//! Sizes that may be symbolic.
//!
//! A [`Dim`] is a polynomial with integer coefficients. Its variables are symbols, and quotients `d // n` of dims by
//! numbers, rounded down as in Python. It is in a normal form: equal polynomials are equal values. Numbers beyond an
//! `i64` saturate, and no size there is legal ([`addressable`]), so that nothing wraps around to a legal size. So do
//! expressions of more than [`MAX_PARTS`] parts. A symbol stands for a size of at least 2, so it never equals 0 or 1,
//! and broadcasting is decided while recording.

mod quotient;
mod text;

use quotient::Quotient;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::ops::{Add, Mul, Sub};
use std::sync::Arc;
pub use text::NotADim;

/// The maximum number of parts of an expression: its terms and their factors, those of quotients included. A short
/// product of sums multiplies out to any number of them.
pub const MAX_PARTS: usize = 2048;

/// The dim to which numbers and expressions that are too large saturate.
const TOO_LARGE: Dim = Dim::Const(i64::MAX);

/// A symbol: an index into the values that a plan is bound with.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sym(pub u32);

/// The values of the symbols of one binding, indexed by [`Sym`].
pub type SymbolValues = [i64];

/// A size, offset or stride, in elements.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    /// A known number.
    Const(i64),
    /// A polynomial that is not constant.
    Expr(Arc<Poly>),
}

/// A polynomial: monomials in descending order, none with coefficient 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Poly(Vec<Monomial>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
struct Monomial {
    /// The factors in ascending order, with repetition.
    factors: Vec<Factor>,
    coefficient: i64,
}

impl Monomial {
    fn parts(&self) -> usize {
        let parts_of = |f: &Factor| match f {
            Factor::Symbol(_) => 1,
            Factor::Quotient(q) => 1 + q.of.parts(),
        };
        1 + self.factors.iter().map(parts_of).sum::<usize>()
    }
}

/// An irreducible factor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
enum Factor {
    Symbol(Sym),
    Quotient(Arc<Quotient>),
}

/// A factor of a term of a dim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimFactor {
    /// A symbol.
    Symbol(Sym),
    /// A quotient, rounded down. The dividend is never negative.
    Quotient(Dim, i64),
}

/// A symbolic division that has no exact result.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0} is not known to be a multiple of {1}")]
pub struct NotDivisible(pub Dim, pub Dim);

impl Dim {
    /// Zero.
    pub const ZERO: Dim = Dim::Const(0);
    /// One.
    pub const ONE: Dim = Dim::Const(1);

    /// Returns the symbol `s` itself.
    pub fn symbol(s: Sym) -> Dim {
        Factor::Symbol(s).into()
    }

    /// Returns the number, if it is known.
    pub fn as_const(&self) -> Option<i64> {
        match self {
            Dim::Const(c) => Some(*c),
            Dim::Expr(_) => None,
        }
    }

    /// True if this is the known number `n`.
    pub fn is(&self, n: i64) -> bool {
        self.as_const() == Some(n)
    }

    /// Returns the value under a binding of the symbols.
    ///
    /// # Panics
    /// If a symbol has no value; a plan checks that when it is bound.
    pub fn eval(&self, values: &SymbolValues) -> i64 {
        match self {
            Dim::Const(c) => *c,
            Dim::Expr(p) => {
                let value = |f: &Factor| match f {
                    Factor::Symbol(s) => values[s.0 as usize],
                    Factor::Quotient(q) => q.of.eval(values).div_euclid(q.by),
                };
                let term = |m: &Monomial| m.factors.iter().fold(m.coefficient, |a, f| a * value(f));
                p.0.iter().map(term).sum()
            }
        }
    }

    /// Returns the value under a binding, or `None` if a symbol has no value or a number overflows.
    pub fn eval_checked(&self, values: &SymbolValues) -> Option<i64> {
        let p = match self {
            Dim::Const(c) => return Some(*c),
            Dim::Expr(p) => p,
        };
        let value = |f: &Factor| match f {
            Factor::Symbol(s) => values.get(s.0 as usize).copied(),
            Factor::Quotient(q) => Some(q.of.eval_checked(values)?.div_euclid(q.by)),
        };
        p.0.iter().try_fold(0i64, |sum, m| {
            let mut factors = m.factors.iter();
            let term = factors.try_fold(m.coefficient, |a, f| a.checked_mul(value(f)?))?;
            sum.checked_add(term)
        })
    }

    /// Returns the dim with every symbol replaced by its value.
    pub fn bind(&self, values: &SymbolValues) -> Dim {
        Dim::Const(self.eval(values))
    }

    /// Returns the dim with every symbol replaced by another dim; symbols beyond `values` stay.
    pub fn substitute(&self, values: &[Dim]) -> Dim {
        let substituted = |f: &Factor| match f {
            Factor::Symbol(s) => values.get(s.0 as usize).cloned().unwrap_or(Dim::symbol(*s)),
            Factor::Quotient(q) => q.of.substitute(values).div_floor(q.by),
        };
        let term = |m: &Monomial| {
            let start = Dim::Const(m.coefficient);
            m.factors.iter().fold(start, |a, f| &a * &substituted(f))
        };
        match self {
            Dim::Const(_) => self.clone(),
            Dim::Expr(p) => p.0.iter().fold(Dim::ZERO, |sum, m| &sum + &term(m)),
        }
    }

    /// Returns the symbols used, some more than once.
    pub fn symbols(&self) -> impl Iterator<Item = Sym> + use<> {
        let mut symbols = SmallVec::<[Sym; 4]>::new();
        self.each_symbol(&mut |s| symbols.push(s));
        symbols.into_iter()
    }

    fn each_symbol(&self, f: &mut dyn FnMut(Sym)) {
        let Dim::Expr(p) = self else { return };
        for factor in p.0.iter().flat_map(|m| &m.factors) {
            match factor {
                Factor::Symbol(s) => f(*s),
                Factor::Quotient(q) => q.of.each_symbol(f),
            }
        }
    }

    /// Returns the terms of the polynomial, each as a coefficient and its factors.
    pub fn sum_of(&self) -> Vec<(i64, Vec<DimFactor>)> {
        let factor = |f: Factor| match f {
            Factor::Symbol(s) => DimFactor::Symbol(s),
            Factor::Quotient(q) => DimFactor::Quotient(q.of.clone(), q.by),
        };
        let terms = self.monomials().into_iter();
        terms
            .map(|m| (m.coefficient, m.factors.into_iter().map(factor).collect()))
            .collect()
    }

    /// Returns the largest symbol index used, if any.
    pub fn max_symbol(&self) -> Option<Sym> {
        self.symbols().max()
    }

    /// Divides exactly, or returns an error.
    pub fn div_exact(&self, other: &Dim) -> Result<Dim, NotDivisible> {
        let fail = || NotDivisible(self.clone(), other.clone());
        match (self, other) {
            (_, Dim::Const(1)) => Ok(self.clone()),
            (_, Dim::Const(0)) => Err(fail()),
            (d, _) if *d == TOO_LARGE => Err(fail()),
            (Dim::Const(a), Dim::Const(b)) if a.checked_rem(*b) == Some(0) => Ok(Dim::Const(a / b)),
            (Dim::Const(0), _) => Ok(Dim::ZERO),
            (Dim::Const(_), _) => Err(fail()),
            (Dim::Expr(_), _) => {
                // Long division by the leading monomial.
                let divisor = other.monomials();
                let lead = &divisor[0];
                let mut remainder = self.clone();
                let mut quotient = Dim::ZERO;
                while !remainder.is(0) {
                    let m = &remainder.monomials()[0];
                    let factors = without(&m.factors, &lead.factors).ok_or_else(fail)?;
                    if m.coefficient.checked_rem(lead.coefficient) != Some(0) {
                        return Err(fail());
                    }
                    let term = Dim::from_monomials(vec![Monomial {
                        factors,
                        coefficient: m.coefficient / lead.coefficient,
                    }]);
                    remainder = &remainder - &(&term * other);
                    quotient = &quotient + &term;
                }
                Ok(quotient)
            }
        }
    }

    fn monomials(&self) -> Vec<Monomial> {
        match self {
            Dim::Const(0) => vec![],
            Dim::Const(c) => vec![Monomial {
                factors: vec![],
                coefficient: *c,
            }],
            Dim::Expr(p) => p.0.clone(),
        }
    }

    fn from_monomials(mut terms: Vec<Monomial>) -> Dim {
        // Higher degrees come first, then the order of factors, so that long division finds its leading term.
        terms.sort_by(|a, b| (b.factors.len(), &a.factors).cmp(&(a.factors.len(), &b.factors)));
        let mut out: Vec<Monomial> = Vec::with_capacity(terms.len());
        for t in terms {
            match out.last_mut() {
                Some(last) if last.factors == t.factors => {
                    last.coefficient = last.coefficient.saturating_add(t.coefficient);
                }
                _ => out.push(t),
            }
        }
        out.retain(|m| m.coefficient != 0);
        match out.as_slice() {
            [] => Dim::Const(0),
            [m] if m.factors.is_empty() => Dim::Const(m.coefficient),
            _ if out.iter().map(Monomial::parts).sum::<usize>() > MAX_PARTS => TOO_LARGE,
            _ => Dim::Expr(Arc::new(Poly(out))),
        }
    }

    /// Returns the number of terms and factors, those of quotients included.
    fn parts(&self) -> usize {
        match self {
            Dim::Const(_) => 1,
            Dim::Expr(p) => p.0.iter().map(Monomial::parts).sum(),
        }
    }

    fn terms(&self) -> usize {
        match self {
            Dim::Const(_) => 1,
            Dim::Expr(p) => p.0.len(),
        }
    }
}

fn without(factors: &[Factor], removed: &[Factor]) -> Option<Vec<Factor>> {
    let mut remaining = factors.to_vec();
    for f in removed {
        let position = remaining.iter().position(|x| x == f)?;
        remaining.remove(position);
    }
    Some(remaining)
}

impl From<Factor> for Dim {
    fn from(factor: Factor) -> Dim {
        Dim::Expr(Arc::new(Poly(vec![Monomial {
            factors: vec![factor],
            coefficient: 1,
        }])))
    }
}

/// Returns `a / b`, rounded up, for `a` of 0 and more; a `b` of 0 counts as 1.
#[inline]
pub fn ceil(a: i64, b: i64) -> i64 {
    (a + b - 1) / b.max(1)
}

/// Returns the product of a shape's dims.
pub fn numel(shape: &[Dim]) -> Dim {
    shape.iter().fold(Dim::ONE, |a, d| &a * d)
}

/// True if the bytes and the strides of a tensor of this shape, with elements of `element_bytes` bytes, do not
/// saturate; symbols count as 1.
pub fn addressable(shape: &[Dim], element_bytes: usize) -> bool {
    let mut known = shape.iter().filter_map(Dim::as_const);
    let bytes = known.try_fold(element_bytes as i64, |n, d| n.checked_mul(d.max(1)));
    bytes.is_some_and(|bytes| bytes < i64::MAX)
}

/// Returns the row-major strides of a shape, in elements.
pub fn contiguous_strides(shape: &[Dim]) -> Vec<Dim> {
    let mut strides = vec![Dim::ONE; shape.len()];
    for i in (0..shape.len().saturating_sub(1)).rev() {
        strides[i] = &strides[i + 1] * &shape[i + 1];
    }
    strides
}

impl Add for &Dim {
    type Output = Dim;
    fn add(self, other: &Dim) -> Dim {
        match (self, other) {
            (Dim::Const(a), Dim::Const(b)) => Dim::Const(a.saturating_add(*b)),
            (Dim::Const(0), d) | (d, Dim::Const(0)) => d.clone(),
            (d, _) | (_, d) if *d == TOO_LARGE => TOO_LARGE,
            _ => {
                let mut terms = self.monomials();
                terms.extend(other.monomials());
                Dim::from_monomials(terms)
            }
        }
    }
}

impl Sub for &Dim {
    type Output = Dim;
    fn sub(self, other: &Dim) -> Dim {
        self + &(other * &Dim::Const(-1))
    }
}

impl Mul for &Dim {
    type Output = Dim;
    fn mul(self, other: &Dim) -> Dim {
        match (self, other) {
            (Dim::Const(a), Dim::Const(b)) => Dim::Const(a.saturating_mul(*b)),
            (Dim::Const(0), _) | (_, Dim::Const(0)) => Dim::ZERO,
            (Dim::Const(1), d) | (d, Dim::Const(1)) => d.clone(),
            (d, _) | (_, d) if *d == TOO_LARGE => TOO_LARGE,
            (a, b) if a.terms() * b.parts() + b.terms() * a.parts() > 2 * MAX_PARTS => TOO_LARGE,
            _ => {
                let mut terms = Vec::new();
                let right = other.monomials();
                for a in self.monomials() {
                    for b in &right {
                        let mut factors = a.factors.clone();
                        factors.extend_from_slice(&b.factors);
                        factors.sort();
                        terms.push(Monomial {
                            factors,
                            coefficient: a.coefficient.saturating_mul(b.coefficient),
                        });
                    }
                }
                Dim::from_monomials(terms)
            }
        }
    }
}

impl From<i64> for Dim {
    fn from(n: i64) -> Dim {
        Dim::Const(n)
    }
}

impl From<i32> for Dim {
    fn from(n: i32) -> Dim {
        Dim::Const(n as i64)
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim::Const(n as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(i: u32) -> Dim {
        Dim::symbol(Sym(i))
    }

    #[test]
    fn arithmetic_has_a_normal_form() {
        let n = s(0);
        let two = Dim::Const(2);
        assert_eq!(&(&n + &two) - &two, n);
        assert_eq!(&n - &n, Dim::ZERO);
        assert_eq!(&n + &n, &two * &n);
        assert_eq!((&(&n * &two) + &Dim::Const(-3)).to_string(), "2*s0-3");
        assert_eq!((&n * &s(1)).eval(&[3, 5]), 15);
    }

    #[test]
    fn division_is_exact_or_refused() {
        let n = s(0);
        let six_n = &n * &Dim::Const(6);
        assert_eq!(six_n.div_exact(&Dim::Const(3)).unwrap().to_string(), "2*s0");
        assert_eq!(six_n.div_exact(&n).unwrap(), Dim::Const(6));
        assert!(n.div_exact(&Dim::Const(2)).is_err());
        assert!((&n + &Dim::ONE).div_exact(&n).is_err());
        let square = &(&n + &Dim::ONE) * &(&n + &Dim::ONE);
        assert_eq!(square.div_exact(&(&n + &Dim::ONE)).unwrap(), &n + &Dim::ONE);
    }

    #[test]
    fn expressions_stay_small() {
        let sum = |from: u32| (from..from + 12).fold(Dim::ONE, |sum, i| &sum + &s(i));
        let product = (1..200).fold(sum(0), |product, i| &product * &sum(i));
        assert_eq!(product, TOO_LARGE);
        assert!(!addressable(&[&product - &s(0)], 1));
        assert!(!addressable(&[(&product * &s(0)).div_floor(7)], 1));
        assert!(product.div_exact(&Dim::Const(7)).is_err());
        // Quotients that each hold the one before several times.
        let mut d = s(0);
        for _ in 0..14 {
            d = (&d.div_floor(3) * &sum(1)).div_floor(5);
        }
        assert_eq!(d, TOO_LARGE);
        let power = (0..10_000).fold(Dim::ONE, |power, _| &power * &s(0));
        assert_eq!(power, TOO_LARGE);
        let most = (0..MAX_PARTS as u32 / 2).fold(Dim::ZERO, |sum, i| &sum + &s(i));
        assert!(most.as_const().is_none());
        assert_eq!(&most + &Dim::ONE, TOO_LARGE);
    }

    #[test]
    fn symbols_are_replaced() {
        let square = &(&s(0) * &s(0)) + &(&s(1) * &Dim::Const(3));
        assert_eq!(square.substitute(&[Dim::ONE, s(0)]).to_string(), "3*s0+1");
        assert_eq!(
            square.substitute(&[s(1)]),
            &(&s(1) * &s(1)) + &(&s(1) * &Dim::Const(3))
        );
        assert_eq!(
            square.substitute(&[Dim::Const(2), Dim::ZERO]),
            Dim::Const(4)
        );
    }
}
