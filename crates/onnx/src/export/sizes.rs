//! Sizes that are computed when the model runs.

use super::attributes::int;
use super::writer::{Name, Value, Writer};
use kiln_base::{Dim, DimFactor};
use kiln_ir::{DType, Fact};

impl Writer<'_> {
    /// Returns a shape, as a vector of i64.
    pub fn sizes(&mut self, dims: &[Dim]) -> Name {
        let mut terms: Vec<Name> = Vec::new();
        let mut known: Vec<i64> = Vec::new();
        for d in dims {
            match d.as_const() {
                Some(n) => known.push(n),
                None => {
                    if !known.is_empty() {
                        terms.push(self.ints(&known));
                        known.clear();
                    }
                    terms.push(self.size(d));
                }
            }
        }
        if !known.is_empty() || terms.is_empty() {
            terms.push(self.ints(&known));
        }
        match &terms[..] {
            [one] => one.clone(),
            _ => self
                .node("Concat", &terms, 1, vec![int("axis", 0)])
                .swap_remove(0),
        }
    }

    /// Returns a size, as an i64 of rank 0.
    pub fn size_scalar(&mut self, d: &Dim) -> Value {
        let fact = Fact::new(DType::I64, [0i64; 0]);
        match d.as_const() {
            Some(n) => self.scalar(n, DType::I64),
            None => {
                let vector = self.size(d);
                self.single("Squeeze", &[vector], vec![], fact)
            }
        }
    }

    /// Returns a size, as a vector of one i64.
    pub fn size(&mut self, d: &Dim) -> Name {
        if let Some(n) = d.as_const() {
            return self.ints(&[n]);
        }
        if let Some(name) = self.seen.sizes.get(d) {
            return name.clone();
        }
        let mut sum: Option<Name> = None;
        for (coefficient, factors) in d.sum_of() {
            let mut term: Option<Name> = match coefficient {
                1 if !factors.is_empty() => None,
                n => Some(self.ints(&[n])),
            };
            for factor in factors {
                let factor = match factor {
                    DimFactor::Symbol(s) if Dim::symbol(s) != *d => self.size(&Dim::symbol(s)),
                    // Every symbol is a size of an argument.
                    DimFactor::Symbol(s) => {
                        let source = self.sources.get(&s).cloned();
                        let (input, axis) = source.unwrap_or(("".into(), 0));
                        let range = vec![int("start", axis as i64), int("end", axis as i64 + 1)];
                        self.node("Shape", &[input], 1, range).swap_remove(0)
                    }
                    DimFactor::Quotient(of, by) => {
                        let operands = [self.size(&of), self.ints(&[by])];
                        self.node("Div", &operands, 1, vec![]).swap_remove(0)
                    }
                };
                term = Some(self.binary_or_right("Mul", term, factor));
            }
            if let Some(term) = term {
                sum = Some(self.binary_or_right("Add", sum, term));
            }
        }
        let name = sum.unwrap_or_else(|| self.ints(&[0]));
        self.seen.sizes.insert(d.clone(), name.clone());
        name
    }

    /// Writes a binary operator, unless there is no first operand yet.
    fn binary_or_right(&mut self, op: &str, a: Option<Name>, b: Name) -> Name {
        match a {
            Some(a) => self.node(op, &[a, b], 1, vec![]).swap_remove(0),
            None => b,
        }
    }
}
