//! Sizes as text, and as data.

use super::{Dim, Factor, MAX_PARTS, Monomial, Poly, Sym, TOO_LARGE};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;

/// A dim, and the names of its symbols.
struct Named<'a, N>(&'a Dim, N);

impl Dim {
    /// Returns the dim as text, with these names in place of `s0`, `s1`, ….
    pub fn named<'n>(&self, name: impl Fn(Sym) -> Option<&'n str>) -> String {
        Named(self, &name).to_string()
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Named(self, &|_| None).fmt(f)
    }
}

impl<'n, N: Fn(Sym) -> Option<&'n str>> fmt::Display for Named<'_, &N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Named(dim, name) = self;
        let poly = match dim {
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
            if magnitude != 1 || m.factors.is_empty() {
                write!(f, "{magnitude}")?;
                if !m.factors.is_empty() {
                    f.write_str("*")?;
                }
            }
            let is_only_factor = c == 1 && m.factors.len() == 1;
            for (j, factor) in m.factors.iter().enumerate() {
                f.write_str(if j > 0 { "*" } else { "" })?;
                match factor {
                    Factor::Symbol(s) => match name(*s) {
                        Some(name) => f.write_str(name)?,
                        None => write!(f, "s{}", s.0)?,
                    },
                    Factor::Quotient(q) => {
                        let dividend = Named(&q.of, *name);
                        let is_symbol = q.of.symbols().any(|s| q.of == Dim::symbol(s));
                        let dividend = if is_symbol {
                            format!("{dividend}")
                        } else {
                            format!("({dividend})")
                        };
                        match is_only_factor {
                            true => write!(f, "{dividend}//{}", q.by)?,
                            false => write!(f, "({dividend}//{})", q.by)?,
                        }
                    }
                }
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

/// A text or data that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotADim {
    /// A text with another syntax.
    #[error("{0:?} is not a size")]
    Syntax(String),
    /// An expression that is beyond all sizes.
    #[error("a size is above 2^63, or multiplies out to more than {MAX_PARTS} terms and factors")]
    TooLarge,
}

impl Dim {
    /// Parses the output of `Display`, such as `12`, `s0`, `2*s0*s1-3` or `(s0-1)//2+1`, as Python reads it.
    ///
    /// # Errors
    /// If the text has another syntax, or the expression is too large.
    pub fn parse(text: &str) -> Result<Dim, NotADim> {
        let mut p = Parser { text, depth: 0 };
        let sum = p.sum().filter(|_| p.text.trim().is_empty());
        match sum.ok_or_else(|| NotADim::Syntax(text.to_owned()))? {
            // `Display` writes this number for a size that is too large itself.
            d if d == TOO_LARGE && text.trim() != d.to_string() => Err(NotADim::TooLarge),
            d => Ok(d),
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    /// The depth of parentheses.
    depth: usize,
}

impl Parser<'_> {
    fn sum(&mut self) -> Option<Dim> {
        let sign = if self.accept("-") { -1 } else { 1 };
        let mut sum = self.product(Dim::Const(sign))?;
        loop {
            let sign = match (self.accept("+"), self.accept("-")) {
                (true, _) => 1,
                (_, true) => -1,
                _ => return Some(sum),
            };
            let term = self.product(Dim::ONE)?;
            sum = &sum + &(&term * &Dim::Const(sign));
        }
    }

    fn product(&mut self, sign: Dim) -> Option<Dim> {
        let mut product = &sign * &self.factor()?;
        loop {
            if self.accept("*") {
                product = &product * &self.factor()?;
            } else if self.accept("//") {
                product = product.div_floor(self.number().filter(|n| *n > 0)?);
            } else {
                return Some(product);
            }
        }
    }

    fn factor(&mut self) -> Option<Dim> {
        /// Each quotient has at most two.
        const MAX_DEPTH: usize = 2 * super::quotient::MAX_DEPTH;
        if self.accept("s") {
            return Some(Dim::symbol(Sym(self.number()?.try_into().ok()?)));
        }
        if !self.accept("(") {
            return self.number().map(Dim::Const);
        }
        self.depth += 1;
        let sum = (self.depth <= MAX_DEPTH).then(|| self.sum())??;
        self.depth -= 1;
        self.accept(")").then_some(sum)
    }

    fn number(&mut self) -> Option<i64> {
        let rest = self.text.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_digit());
        let (digits, rest) = rest.split_at(end.unwrap_or(rest.len()));
        self.text = rest;
        digits.parse().ok()
    }

    fn accept(&mut self, token: &str) -> bool {
        let stripped = self.text.trim_start().strip_prefix(token);
        self.text = stripped.unwrap_or(self.text);
        stripped.is_some()
    }
}

// Text formats write a number or the expression as text; binary formats write the polynomial.
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
            let mut terms = Poly::deserialize(d)?.0;
            let sort = |m: &mut Monomial| m.factors.sort();
            terms.iter_mut().for_each(sort);
            return match terms.iter().map(Monomial::parts).sum::<usize>() {
                parts if parts > MAX_PARTS => Err(D::Error::custom(NotADim::TooLarge)),
                _ => Ok(Dim::from_monomials(terms)),
            };
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
                Dim::parse(s).map_err(E::custom)
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

    /// Returns sizes of every form.
    fn forms() -> Vec<Dim> {
        let half = (&s(0) - &Dim::ONE).div_floor(2);
        let deep = (&half * &Dim::Const(2)).div_floor(3);
        vec![
            Dim::Const(-4),
            Dim::ZERO,
            s(0),
            &(&s(0) * &s(1)) - &Dim::Const(7),
            &Dim::Const(0) - &s(2),
            s(1).div_floor(4),
            &Dim::ZERO - &s(1).div_floor(4),
            &half + &Dim::ONE,
            &(&half * &half) - &(&s(1) * &deep),
            deep,
        ]
    }

    #[test]
    fn text_round_trips() {
        for d in forms() {
            assert_eq!(Dim::parse(&d.to_string()), Ok(d));
        }
        assert_eq!(
            Dim::parse("2 * s0 // 3"),
            Ok((&s(0) * &Dim::Const(2)).div_floor(3))
        );
        for wrong in [
            "", "s", "-", "s0//", "s0//0", "(s0", "s0)", "s0/2", "s0 s1", "--1",
        ] {
            let refused = Err(NotADim::Syntax(wrong.to_string()));
            assert_eq!(Dim::parse(wrong), refused, "{wrong}");
        }
        let deep = "(".repeat(100_000);
        assert!(Dim::parse(&deep).is_err());
    }

    #[test]
    fn short_texts_of_large_expressions_are_refused() {
        let sum = (0..12).map(|i| format!("+s{i}")).collect::<String>();
        let product = vec![format!("(1{sum})"); 12].join("*");
        let nested = (0..12).fold("s0".to_string(), |d, _| format!("(({d}//3)*(1{sum}))//5"));
        for text in [&product, &nested] {
            let refused = Dim::parse(text).unwrap_err().to_string();
            assert!(refused.contains("2048 terms"), "{refused}");
        }
        let largest = i64::MAX.to_string();
        assert_eq!(Dim::parse(&largest), Ok(TOO_LARGE));
    }

    #[test]
    fn binary_round_trips() {
        for d in forms() {
            let bytes = postcard::to_allocvec(&d).unwrap();
            assert_eq!(postcard::from_bytes::<Dim>(&bytes).unwrap(), d);
        }
    }
}
