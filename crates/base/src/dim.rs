//! Sizes that may be symbolic.
//!
//! A [`Dim`] is a polynomial with integer coefficients over symbols, in a normal form: equal
//! polynomials are equal values. Numbers beyond an `i64` stay at its ends, where no size is legal
//! ([`addressable`]), so that nothing wraps around to a size that is. A symbol stands for a size of at least 2, so a symbolic size never
//! equals 0 or 1 and broadcasting is decided while recording.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::{Add, Mul, Sub};
use std::sync::Arc;

/// A symbol: an index into the values a plan is bound with.
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
    /// Symbols with repetition, ascending.
    symbols: Vec<Sym>,
    coefficient: i64,
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

    /// The symbol `s` itself.
    pub fn symbol(s: Sym) -> Dim {
        Dim::Expr(Arc::new(Poly(vec![Monomial {
            symbols: vec![s],
            coefficient: 1,
        }])))
    }

    /// The number, where it is known.
    pub fn as_const(&self) -> Option<i64> {
        match self {
            Dim::Const(c) => Some(*c),
            Dim::Expr(_) => None,
        }
    }

    /// Whether this is the known number `n`.
    pub fn is(&self, n: i64) -> bool {
        self.as_const() == Some(n)
    }

    /// The value under a binding of the symbols.
    ///
    /// # Panics
    /// If a symbol has no value; a plan checks that when it is bound.
    pub fn eval(&self, values: &SymbolValues) -> i64 {
        match self {
            Dim::Const(c) => *c,
            Dim::Expr(p) => {
                p.0.iter()
                    .map(|m| {
                        m.symbols
                            .iter()
                            .fold(m.coefficient, |a, s| a * values[s.0 as usize])
                    })
                    .sum()
            }
        }
    }

    /// The value under a binding, or `None` where a symbol has no value or a number overflows.
    pub fn eval_checked(&self, values: &SymbolValues) -> Option<i64> {
        let p = match self {
            Dim::Const(c) => return Some(*c),
            Dim::Expr(p) => p,
        };
        p.0.iter().try_fold(0i64, |sum, m| {
            let term = m.symbols.iter().try_fold(m.coefficient, |a, s| {
                a.checked_mul(*values.get(s.0 as usize)?)
            })?;
            sum.checked_add(term)
        })
    }

    /// The dim with every symbol replaced by its value.
    pub fn bind(&self, values: &SymbolValues) -> Dim {
        Dim::Const(self.eval(values))
    }

    /// The dim with every symbol replaced by another dim; symbols beyond those given stay.
    pub fn substitute(&self, by: &[Dim]) -> Dim {
        let replaced = |s: &Sym| by.get(s.0 as usize).cloned().unwrap_or(Dim::symbol(*s));
        let term = |m: &Monomial| {
            let start = Dim::Const(m.coefficient);
            m.symbols.iter().fold(start, |a, s| &a * &replaced(s))
        };
        match self {
            Dim::Const(_) => self.clone(),
            Dim::Expr(p) => p.0.iter().fold(Dim::ZERO, |sum, m| &sum + &term(m)),
        }
    }

    /// The symbols used, some more than once.
    pub fn symbols(&self) -> impl Iterator<Item = Sym> + '_ {
        let terms = match self {
            Dim::Const(_) => &[][..],
            Dim::Expr(p) => &p.0,
        };
        terms.iter().flat_map(|m| m.symbols.iter().copied())
    }

    /// The largest symbol index used, if any.
    pub fn max_symbol(&self) -> Option<Sym> {
        self.symbols().max()
    }

    /// Exact division.
    pub fn div_exact(&self, by: &Dim) -> Result<Dim, NotDivisible> {
        let fail = || NotDivisible(self.clone(), by.clone());
        match (self, by) {
            (_, Dim::Const(1)) => Ok(self.clone()),
            (_, Dim::Const(0)) => Err(fail()),
            (Dim::Const(a), Dim::Const(b)) if a % b == 0 => Ok(Dim::Const(a / b)),
            (Dim::Const(0), _) => Ok(Dim::ZERO),
            (Dim::Const(_), _) => Err(fail()),
            (Dim::Expr(_), _) => {
                // Long division by the leading monomial; exact or nothing.
                let divisor = by.monomials();
                let lead = &divisor[0];
                let mut rest = self.clone();
                let mut quotient = Dim::ZERO;
                while !rest.is(0) {
                    let m = &rest.monomials()[0];
                    let symbols = remove_symbols(&m.symbols, &lead.symbols).ok_or_else(fail)?;
                    if m.coefficient % lead.coefficient != 0 {
                        return Err(fail());
                    }
                    let term = Dim::from_monomials(vec![Monomial {
                        symbols,
                        coefficient: m.coefficient / lead.coefficient,
                    }]);
                    rest = &rest - &(&term * by);
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
                symbols: vec![],
                coefficient: *c,
            }],
            Dim::Expr(p) => p.0.clone(),
        }
    }

    fn from_monomials(mut terms: Vec<Monomial>) -> Dim {
        // Higher degree first, then by symbols, so that long division meets its leading term.
        terms.sort_by(|a, b| (b.symbols.len(), &a.symbols).cmp(&(a.symbols.len(), &b.symbols)));
        let mut out: Vec<Monomial> = Vec::with_capacity(terms.len());
        for t in terms {
            match out.last_mut() {
                Some(last) if last.symbols == t.symbols => {
                    last.coefficient = last.coefficient.saturating_add(t.coefficient);
                }
                _ => out.push(t),
            }
        }
        out.retain(|m| m.coefficient != 0);
        match out.as_slice() {
            [] => Dim::Const(0),
            [m] if m.symbols.is_empty() => Dim::Const(m.coefficient),
            _ => Dim::Expr(Arc::new(Poly(out))),
        }
    }

    /// Parses what `Display` prints, such as `12`, `s0` or `2*s0*s1-3`.
    pub fn parse(text: &str) -> Option<Dim> {
        let mut sum = Dim::ZERO;
        let mut rest = text.trim();
        let mut sign = 1;
        if let Some(r) = rest.strip_prefix('-') {
            (rest, sign) = (r, -1);
        }
        loop {
            let end = rest.find(['+', '-']).unwrap_or(rest.len());
            let mut product = Dim::Const(sign);
            for factor in rest[..end].split('*') {
                let factor = factor.trim();
                let f = match factor.strip_prefix('s') {
                    Some(n) => Dim::symbol(Sym(n.parse().ok()?)),
                    None => Dim::Const(factor.parse().ok()?),
                };
                product = &product * &f;
            }
            sum = &sum + &product;
            if end == rest.len() {
                return Some(sum);
            }
            sign = if rest.as_bytes()[end] == b'-' { -1 } else { 1 };
            rest = &rest[end + 1..];
        }
    }
}

fn remove_symbols(from: &[Sym], what: &[Sym]) -> Option<Vec<Sym>> {
    let mut left = from.to_vec();
    for s in what {
        let at = left.iter().position(|x| x == s)?;
        left.remove(at);
    }
    Some(left)
}

/// The product of a shape's dims.
pub fn numel(shape: &[Dim]) -> Dim {
    shape.iter().fold(Dim::ONE, |a, d| &a * d)
}

/// Whether the bytes and the strides of a tensor of this shape, whose elements take so many bytes, are numbers
/// below those that stand for too large ones; symbols count as 1.
pub fn addressable(shape: &[Dim], element: usize) -> bool {
    let mut known = shape.iter().filter_map(Dim::as_const);
    let bytes = known.try_fold(element as i64, |n, d| n.checked_mul(d.max(1)));
    bytes.is_some_and(|bytes| bytes < i64::MAX)
}

/// Row-major strides of a shape, in elements.
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
            (Dim::Const(1), d) | (d, Dim::Const(1)) => d.clone(),
            _ => {
                let mut terms = Vec::new();
                let right = other.monomials();
                for a in self.monomials() {
                    for b in &right {
                        let mut symbols = a.symbols.clone();
                        symbols.extend(&b.symbols);
                        symbols.sort();
                        terms.push(Monomial {
                            symbols,
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

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let poly = match self {
            Dim::Const(c) => return write!(f, "{c}"),
            Dim::Expr(p) => p,
        };
        for (i, m) in poly.0.iter().enumerate() {
            let c = m.coefficient;
            if c < 0 {
                f.write_str("-")?;
            } else if i > 0 {
                f.write_str("+")?;
            }
            let magnitude = c.unsigned_abs();
            if magnitude != 1 || m.symbols.is_empty() {
                write!(f, "{magnitude}")?;
                if !m.symbols.is_empty() {
                    f.write_str("*")?;
                }
            }
            for (j, s) in m.symbols.iter().enumerate() {
                write!(f, "{}s{}", if j > 0 { "*" } else { "" }, s.0)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// Text formats write a number or the printed expression; binary formats write the polynomial.
impl Serialize for Dim {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Dim::Const(c) if s.is_human_readable() => s.serialize_i64(*c),
            d if s.is_human_readable() => s.collect_str(d),
            d => Poly(d.monomials()).serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Dim, D::Error> {
        if !d.is_human_readable() {
            return Ok(Dim::from_monomials(Poly::deserialize(d)?.0));
        }
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Dim;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or an expression such as \"2*s0\"")
            }
            fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Dim, E> {
                Ok(Dim::Const(n))
            }
            fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<Dim, E> {
                i64::try_from(n).map(Dim::Const).map_err(E::custom)
            }
            fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<Dim, E> {
                Dim::parse(s).ok_or_else(|| E::custom(format!("not a size: {s:?}")))
            }
        }
        d.deserialize_any(Visitor)
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

    #[test]
    fn text_round_trips() {
        for d in [
            Dim::Const(-4),
            s(0),
            &(&s(0) * &s(1)) - &Dim::Const(7),
            &Dim::Const(0) - &s(2),
        ] {
            assert_eq!(Dim::parse(&d.to_string()), Some(d));
        }
        assert_eq!(Dim::parse("s"), None);
        assert_eq!(Dim::parse(""), None);
    }

    #[test]
    fn binary_round_trips() {
        for d in [Dim::Const(5), Dim::ZERO, &s(0) * &Dim::Const(3)] {
            let bytes = postcard::to_allocvec(&d).unwrap();
            assert_eq!(postcard::from_bytes::<Dim>(&bytes).unwrap(), d);
        }
    }
}
