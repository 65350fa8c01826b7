//! Quotients, rounded down, and bounds of sizes without their symbols' values.

use super::{Dim, Factor, Monomial, TOO_LARGE};
use crate::prim::gcd;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use std::cell::Cell;
use std::sync::Arc;

/// `of // by`, rounded down, where it can't be simplified: `by` is at least 2, coefficients of `of` are between 0 and
/// `by`, share no divisor with it, and no monomial of `of` is a quotient by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub(super) struct Quotient {
    pub(super) of: Dim,
    pub(super) by: i64,
}

/// The maximum nesting depth of quotients. Functions on dims recurse for each level.
pub(super) const MAX_DEPTH: usize = 16;

impl Dim {
    /// Returns `self // by`, rounded down, in a normal form: integer parts are extracted, common divisors cancelled,
    /// and nested quotients merged. Quotients nested more than 16 deep, which only contrived programs have, saturate
    /// as sizes that are too large.
    ///
    /// # Panics
    /// If `by` is not positive.
    ///
    /// ```
    /// use kiln_base::{Dim, Sym};
    /// let h = Dim::symbol(Sym(0));
    /// let half = (&h + &Dim::ONE).div_floor(2);
    /// assert_eq!(half.to_string(), "(s0+1)//2");
    /// assert_eq!(half.eval(&[7]), 4);
    /// assert_eq!(h.div_floor(2).div_floor(3), h.div_floor(6));
    /// assert_eq!((&h * &Dim::Const(4)).div_floor(2).to_string(), "2*s0");
    /// ```
    pub fn div_floor(&self, by: i64) -> Dim {
        assert!(by > 0, "sizes are divided by positive numbers, not {by}");
        if *self == TOO_LARGE {
            return TOO_LARGE;
        }
        let map_coefficients = |f: fn(i64, i64) -> i64| {
            let terms = self.monomials().into_iter().map(|m| Monomial {
                coefficient: f(m.coefficient, by),
                ..m
            });
            Dim::from_monomials(terms.collect())
        };
        let integer = map_coefficients(i64::div_euclid);
        let remainder = map_coefficients(i64::rem_euclid);
        &integer + &remainder.proper_quotient(by)
    }

    /// Returns the quotient by `by` of a dim whose coefficients are below `by`.
    fn proper_quotient(self, by: i64) -> Dim {
        if self.as_const().is_some() {
            return Dim::ZERO;
        }
        let terms = self.monomials();
        let symbolic = terms.iter().filter(|m| !m.factors.is_empty());
        let divisor = symbolic.fold(by, |a, m| gcd(a, m.coefficient));
        let by = by / divisor;
        let terms = terms.into_iter().map(|m| Monomial {
            coefficient: m.coefficient / divisor,
            ..m
        });
        let dividend = Dim::from_monomials(terms.collect());
        // (p // m + q) // n is (p + m·q) // (m·n), for integers.
        for m in dividend.monomials() {
            if let (1, [Factor::Quotient(nested)]) = (m.coefficient, &m.factors[..])
                && let Some(merged) = by.checked_mul(nested.by)
            {
                let q = &dividend - &Dim::from(m.factors[0].clone());
                return (&nested.of + &(&q * &Dim::Const(nested.by))).div_floor(merged);
            }
        }
        match dividend.depth() < MAX_DEPTH {
            true => Factor::Quotient(Arc::new(Quotient { of: dividend, by })).into(),
            false => TOO_LARGE,
        }
    }

    /// Returns the nesting depth of quotients.
    fn depth(&self) -> usize {
        let Dim::Expr(p) = self else { return 0 };
        let factors = p.0.iter().flat_map(|m| &m.factors);
        let depth = factors.map(|f| match f {
            Factor::Symbol(_) => 0,
            Factor::Quotient(q) => 1 + q.of.depth(),
        });
        depth.max().unwrap_or(0)
    }

    /// Returns a lower bound over all values of the symbols (at least 2 each), if one is found.
    ///
    /// ```
    /// use kiln_base::{Dim, Sym};
    /// let h = Dim::symbol(Sym(0));
    /// let even = &h.div_floor(2) * &Dim::Const(2);
    /// assert_eq!((&h - &even).lower_bound(), Some(0));
    /// assert_eq!(even.lower_bound(), Some(2));
    /// assert_eq!((&h - &Dim::Const(3)).lower_bound(), Some(-1));
    /// assert_eq!((&Dim::Const(9) - &h).lower_bound(), None);
    /// ```
    pub fn lower_bound(&self) -> Option<i64> {
        self.bound_by_terms().max(self.bound_unrounded())
    }

    /// Returns the sum of the lower bounds of its monomials.
    fn bound_by_terms(&self) -> Option<i64> {
        self.monomials().iter().try_fold(0i64, |sum, m| {
            let start = Some(m.coefficient).filter(|c| *c >= 0 || m.factors.is_empty());
            let term = m.factors.iter().try_fold(start?, |product, f| {
                let lower = match f {
                    Factor::Symbol(_) => 2,
                    Factor::Quotient(q) => q.of.lower_bound()?.div_euclid(q.by),
                };
                product.checked_mul(Some(lower).filter(|n| *n >= 0)?)
            });
            sum.checked_add(term?)
        })
    }

    /// Returns a lower bound in which `p // n`, where it is a term by itself, is bounded by `(p − n + 1) / n` and
    /// `p / n`. These may cancel with terms of `p`.
    fn bound_unrounded(&self) -> Option<i64> {
        /// Products of two numbers up to this can't overflow.
        const MAX_FACTOR: i64 = 1 << 30;
        // scale · self is at least sum.
        let (mut sum, mut scale) = (self.clone(), 1i64);
        loop {
            let terms = sum.monomials();
            if scale > MAX_FACTOR
                || terms
                    .iter()
                    .any(|m| m.coefficient.saturating_abs() > MAX_FACTOR)
            {
                return None;
            }
            let quotient = terms.iter().find_map(|m| match &m.factors[..] {
                [Factor::Quotient(q)] => Some((q, m)),
                _ => None,
            });
            let Some((q, m)) = quotient else {
                let lower = sum.bound_by_terms()?;
                // It is rounded up, because it is an integer.
                return Some(-(-lower).div_euclid(scale));
            };
            let other_terms = &sum - &Dim::from_monomials(vec![m.clone()]);
            let bound = match m.coefficient > 0 {
                true => &q.of - &Dim::Const(q.by - 1),
                false => q.of.clone(),
            };
            sum = &(&other_terms * &Dim::Const(q.by)) + &(&bound * &Dim::Const(m.coefficient));
            scale *= q.by;
        }
    }
}

impl<'de> Deserialize<'de> for Quotient {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Quotient, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            of: Dim,
            by: i64,
        }
        thread_local! {
            static DEPTH: Cell<usize> = const { Cell::new(0) };
        }
        // Input bytes must not control the depth of recursion.
        if DEPTH.get() >= MAX_DEPTH {
            return Err(D::Error::custom("too many quotients in each other"));
        }
        DEPTH.set(DEPTH.get() + 1);
        let fields = Fields::deserialize(from);
        DEPTH.set(DEPTH.get() - 1);
        let Fields { of, by } = fields?;
        let normal_form = (by > 0).then(|| of.div_floor(by));
        let quotient = Quotient { of, by };
        // This crate did not write a dim with another normal form.
        match normal_form == Some(Factor::Quotient(Arc::new(quotient.clone())).into()) {
            true => Ok(quotient),
            false => Err(D::Error::custom("a quotient that is not in normal form")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sym;

    fn s(i: u32) -> Dim {
        Dim::symbol(Sym(i))
    }

    fn c(n: i64) -> Dim {
        Dim::Const(n)
    }

    /// Returns a size as layers compute it from two symbols, with choices given by a number.
    fn made(mut choices: u64) -> Dim {
        let mut next = |n: u64| {
            choices = choices
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (choices >> 33) % n
        };
        let mut d = s(next(2) as u32);
        for _ in 0..1 + next(5) {
            d = match next(5) {
                0 => &d * &c(1 + next(3) as i64),
                1 => &d + &c(next(9) as i64 - 4),
                2 => &d + &s(next(2) as u32),
                3 => &d - &d.div_floor(1 + next(4) as i64),
                _ => d.div_floor(1 + next(4) as i64),
            };
        }
        d
    }

    #[test]
    fn quotients_are_rounded_down_and_bounds_hold() {
        for choices in 0..3000 {
            let d = made(choices);
            for by in [1, 2, 3, 7] {
                let q = d.div_floor(by);
                let bound = q.lower_bound();
                for (a, b) in [(2, 2), (3, 2), (2, 5), (7, 4), (12, 13), (31, 2), (97, 101)] {
                    let value = d.eval(&[a, b]).div_euclid(by);
                    assert_eq!(q.eval(&[a, b]), value, "{d} by {by} at {a}, {b}");
                    assert_eq!(q.eval_checked(&[a, b]), Some(value));
                    assert!(bound.is_none_or(|least| least <= value), "{q} at {a}, {b}");
                    let replaced = q.substitute(&[c(a), c(b)]);
                    assert_eq!(replaced, c(value), "{q} at {a}, {b}");
                }
                assert_eq!(q.substitute(&[s(0), s(1)]), q, "{d} by {by}");
            }
        }
    }

    #[test]
    fn layers_behind_each_other_are_one_quotient() {
        // Windows of 3 with padding 1 and stride 2, five times.
        let mut h = s(0);
        for _ in 0..5 {
            h = &(&h - &Dim::ONE).div_floor(2) + &Dim::ONE;
        }
        assert_eq!(h.to_string(), "(s0+31)//32");
        assert_eq!(h.lower_bound(), Some(1));
        let doubled = (&h * &c(2)).div_floor(2);
        assert_eq!(doubled, h);
        assert_eq!(
            (&(&s(0) * &c(3)) + &c(1)).div_floor(2).to_string(),
            "s0+(s0+1)//2"
        );
    }

    #[test]
    fn what_windows_leave_is_known() {
        for (kernel, stride) in [(3, 2), (2, 2), (5, 3), (1, 4)] {
            let windows = &(&s(0) - &c(kernel)).div_floor(stride) + &Dim::ONE;
            let used = &(&(&windows - &Dim::ONE) * &c(stride)) + &c(kernel);
            assert_eq!((&s(0) - &used).lower_bound(), Some(0), "{used}");
            assert_eq!((&used - &s(0)).lower_bound(), Some(1 - stride), "{used}");
        }
        let area = &s(0).div_floor(2) * &s(1).div_floor(2);
        assert_eq!(area.lower_bound(), Some(1));
    }

    #[test]
    fn depth_is_limited() {
        let (mut d, mut deepest) = (s(0), 0);
        while d.as_const().is_none() {
            deepest = d.depth();
            d = (&d * &c(2)).div_floor(3);
        }
        assert_eq!(deepest, MAX_DEPTH);
        assert!(!crate::addressable(&[d], 1));
    }

    #[test]
    fn quotients_that_are_none_are_refused() {
        let half = s(0).div_floor(2);
        let bytes = postcard::to_allocvec(&half).unwrap();
        assert_eq!(postcard::from_bytes::<Dim>(&bytes).unwrap(), half);
        let mut refused = 0;
        for at in 0..bytes.len() {
            for byte in 0..=u8::MAX {
                let mut bytes = bytes.clone();
                bytes[at] = byte;
                let Ok(d) = postcard::from_bytes::<Dim>(&bytes) else {
                    refused += 1;
                    continue;
                };
                // Every dim that is read must be usable.
                let _ = (d.eval_checked(&[5, 7]), d.lower_bound(), d.to_string());
            }
        }
        assert!(refused > 0);
    }
}
