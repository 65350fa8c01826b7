//! Sums over axes in a normal form, in which sums that are zero for any data are recognised.
//!
//! A value that is constant along the summed axes is a *row*: a polynomial whose atoms are opaque rows and sums of
//! values that change along the axes. Equal terms are collected:
//!
//! ```text
//! Σ (a · x + b) = a · Σx + n · b        for rows a and b, and n summed elements
//! ```

use crate::{PatchBuilder, View};
use kiln_base::numel;
use kiln_base::prim::Reduction;
use kiln_ir::ops::Numel;
use kiln_ir::{Builder, DType, Dim, Op, OpError, Pw, Value};

/// The maximum number of terms of a polynomial; sums with a longer one are given up.
const MAX_TERMS: usize = 32;
/// The depth of operations to which a sum is followed.
const DEPTH: usize = 24;

/// A factor of a term.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Atom {
    /// A row.
    Row(Value),
    /// The sum of a value that changes along the axes.
    Sum(Value),
    /// The number of elements of a sum, where that is not known yet.
    Count,
}

/// A number times powers of atoms, ascending.
#[derive(Clone, Debug)]
struct Term {
    number: f64,
    atoms: Vec<(Atom, i32)>,
}

/// A sum of terms.
#[derive(Clone, Debug, Default)]
struct Polynomial(Vec<Term>);

/// Σ rows · value, where a missing value is 1.
type Linear = Vec<(Polynomial, Option<Value>)>;

/// Sums over some axes of values of one shape.
pub(crate) struct Sums<'a> {
    view: View<'a>,
    shape: &'a [Dim],
    axes: &'a [usize],
    /// The summed extents.
    extents: Vec<Dim>,
}

impl<'a> Sums<'a> {
    /// Sums of values of the shape of `like` over `axes`; `None` for empty sums, and for dtypes that round or wrap
    /// intermediate results.
    pub fn new(view: View<'a>, like: Value, axes: &'a [usize]) -> Option<Sums<'a>> {
        let fact = view.fact(like);
        let extents: Vec<Dim> = axes.iter().map(|a| fact.shape[*a].clone()).collect();
        let float = matches!(fact.dtype, DType::F32 | DType::F64);
        (float && !numel(&extents).is(0)).then_some(Sums {
            view,
            shape: &fact.shape,
            axes,
            extents,
        })
    }

    /// The number of elements of a sum, as a value of one element.
    pub fn count(&self, b: &mut PatchBuilder<'_>, dtype: DType) -> Result<Value, OpError> {
        if let Some(n) = numel(&self.extents).as_const() {
            return b.full(n as f64, dtype, &[]);
        }
        let shape = self.extents.iter().cloned().collect();
        let count = b.op(Numel { shape }, &[])?;
        b.cast(&count, dtype)
    }

    /// [`Sums::count`] as a polynomial.
    fn elements(&self) -> Polynomial {
        match numel(&self.extents).as_const() {
            Some(n) => Polynomial::number(n as f64),
            None => Polynomial::atom(Atom::Count),
        }
    }

    /// True if a value is the result of [`Sums::count`].
    fn is_count(&self, v: Value) -> bool {
        let node = self.view.producer(v);
        let count = match node.op {
            Op::Cast(_) => self.view.producer(node.inputs[0]),
            _ => node,
        };
        matches!(&count.op, Op::Numel(op) if numel(&op.shape) == numel(&self.extents))
    }

    /// True if `v` sums to zero for all finite data, as `x − mean(x)` does. False where each element is zero, as in
    /// `x − x` and `0 · x`: a program may compute these for their NaN.
    pub fn is_zero(&self, v: Value) -> bool {
        let prove_zero = || {
            let linear = self.linear(v, DEPTH)?;
            let mut factors: Vec<(Value, Polynomial)> = Vec::new();
            for (rows, value) in &linear {
                let Some(x) = value else { continue };
                match factors.iter().position(|(value, _)| value == x) {
                    None => factors.push((*x, rows.clone())),
                    Some(i) => {
                        let (_, factor) = factors.swap_remove(i);
                        factors.push((*x, factor.plus(rows.clone())?));
                    }
                }
            }
            let varies = !factors.is_empty() && factors.iter().all(|(_, f)| !f.0.is_empty());
            Some(varies && self.total(linear)?.0.is_empty())
        };
        prove_zero().unwrap_or(false)
    }

    /// True if `v`, with one number per row, is the sum of `x` divided by the number of elements.
    pub fn is_mean(&self, v: Value, x: Value) -> bool {
        let difference = || {
            let mean = self.sum(x, DEPTH)?.times(&self.elements().inverse()?)?;
            self.row(v, DEPTH)?.plus(mean.scaled(-1.0))
        };
        difference().is_some_and(|d| d.0.is_empty())
    }

    /// Returns the source that is broadcast to `v`, if `v` is constant along the axes, and so has one number per row.
    pub fn row_of(&self, v: Value) -> Option<Value> {
        let producer = self.view.producer(v);
        if !matches!(producer.op, Op::Broadcast(_)) || self.view.fact(v).shape[..] != *self.shape {
            return None;
        }
        let source = producer.inputs[0];
        let from = &self.view.fact(source).shape;
        let extra = self.shape.len() - from.len();
        let is_constant = |axis: &usize| *axis < extra || from[axis - extra].is(1);
        let is_full = |axis: usize| axis >= extra && from[axis - extra] == self.shape[axis];
        let other_axes = (0..self.shape.len()).filter(|a| !self.axes.contains(a));
        (self.axes.iter().all(is_constant) && other_axes.clone().all(is_full)).then_some(source)
    }

    /// The number that `v` holds everywhere, if it is finite.
    fn number(&self, v: Value) -> Option<f64> {
        let number = self.view.as_full(v)?.value.as_f64();
        number.is_finite().then_some(number)
    }

    fn sum(&self, v: Value, depth: usize) -> Option<Polynomial> {
        self.total(self.linear(v, depth)?)
    }

    fn total(&self, linear: Linear) -> Option<Polynomial> {
        let mut sum = Polynomial::default();
        for (rows, value) in linear {
            let factor = match value {
                Some(x) => Polynomial::atom(Atom::Sum(x)),
                None => self.elements(),
            };
            sum = sum.plus(rows.times(&factor)?)?;
        }
        Some(sum)
    }

    /// Returns the normal form of a value of the full shape.
    fn linear(&self, v: Value, depth: usize) -> Option<Linear> {
        let depth = depth.checked_sub(1)?;
        let opaque = || Some(vec![(Polynomial::number(1.0), Some(v))]);
        if let Some(number) = self.number(v) {
            return Some(vec![(Polynomial::number(number), None)]);
        }
        if let Some(source) = self.row_of(v) {
            return Some(vec![(self.row(source, depth)?, None)]);
        }
        let node = self.view.producer(v);
        let Op::Pointwise(p) = &node.op else {
            return opaque();
        };
        let operand = |i: usize| self.linear(node.inputs[i], depth);
        let scale = |linear: Linear, factor: &Polynomial| -> Option<Linear> {
            (linear.into_iter())
                .map(|(as_rows, x)| Some((as_rows.times(factor)?, x)))
                .collect()
        };
        let as_rows = |linear: &Linear| match &linear[..] {
            [(as_rows, None)] => Some(as_rows.clone()),
            _ => None,
        };
        match p.0 {
            Pw::Neg => scale(operand(0)?, &Polynomial::number(-1.0)),
            Pw::Add | Pw::Sub => {
                let sign = if p.0 == Pw::Add { 1.0 } else { -1.0 };
                let mut sum = operand(0)?;
                sum.extend(scale(operand(1)?, &Polynomial::number(sign))?);
                (sum.len() <= MAX_TERMS).then_some(sum)
            }
            Pw::Mul => {
                let (a, b) = (operand(0)?, operand(1)?);
                match (as_rows(&a), as_rows(&b)) {
                    (_, Some(factor)) => scale(a, &factor),
                    (Some(factor), None) => scale(b, &factor),
                    (None, None) => opaque(),
                }
            }
            Pw::Div => match as_rows(&operand(1)?).and_then(|factor| factor.inverse()) {
                Some(factor) => scale(operand(0)?, &factor),
                None => opaque(),
            },
            _ => opaque(),
        }
    }

    /// Returns the polynomial of a value with one number per row, in any shape.
    fn row(&self, v: Value, depth: usize) -> Option<Polynomial> {
        let depth = depth.checked_sub(1)?;
        if let Some(number) = self.number(v) {
            return Some(Polynomial::number(number));
        }
        if self.is_count(v) {
            return Some(self.elements());
        }
        let node = self.view.producer(v);
        let operand = |i: usize| self.row(node.inputs[i], depth);
        let opaque = || Some(Polynomial::atom(Atom::Row(v)));
        match &node.op {
            // One number for all rows.
            Op::Broadcast(_) if self.view.fact(node.inputs[0]).numel().is(1) => operand(0),
            // Rows keep their order in every shape.
            Op::Reshape(_) => operand(0),
            Op::Reduce(r) if r.kind == Reduction::Sum && r.axes[..] == *self.axes => {
                match self.view.fact(node.inputs[0]).shape[..] == *self.shape {
                    true => self.sum(node.inputs[0], depth),
                    false => opaque(),
                }
            }
            Op::Pointwise(p) => match p.0 {
                Pw::Neg => Some(operand(0)?.scaled(-1.0)),
                Pw::Add => operand(0)?.plus(operand(1)?),
                Pw::Sub => operand(0)?.plus(operand(1)?.scaled(-1.0)),
                Pw::Mul => operand(0)?.times(&operand(1)?),
                Pw::Div => match operand(1)?.inverse() {
                    Some(inverse) => operand(0)?.times(&inverse),
                    None => opaque(),
                },
                _ => opaque(),
            },
            _ => opaque(),
        }
    }
}

impl Polynomial {
    fn number(number: f64) -> Polynomial {
        let atoms = Vec::new();
        Polynomial(match number {
            0.0 => Vec::new(),
            _ => vec![Term { number, atoms }],
        })
    }

    fn atom(atom: Atom) -> Polynomial {
        Polynomial(vec![Term {
            number: 1.0,
            atoms: vec![(atom, 1)],
        }])
    }

    fn scaled(mut self, factor: f64) -> Polynomial {
        self.0.iter_mut().for_each(|t| t.number *= factor);
        self
    }

    /// Adds two polynomials. Terms that cancel up to rounding are dropped.
    fn plus(mut self, other: Polynomial) -> Option<Polynomial> {
        for term in other.0 {
            match self.0.iter().position(|t| t.atoms == term.atoms) {
                None => self.0.push(term),
                Some(i) => {
                    let (a, b) = (self.0[i].number, term.number);
                    self.0[i].number = a + b;
                    if (a + b).abs() <= 1e-14 * (a.abs() + b.abs()) {
                        self.0.swap_remove(i);
                    }
                }
            }
        }
        (self.0.len() <= MAX_TERMS).then_some(self)
    }

    fn times(&self, other: &Polynomial) -> Option<Polynomial> {
        let mut product = Polynomial::default();
        for a in &self.0 {
            for b in &other.0 {
                product = product.plus(Polynomial(vec![a.times(b)]))?;
            }
        }
        Some(product)
    }

    /// The inverse of a polynomial of a single term.
    fn inverse(&self) -> Option<Polynomial> {
        let [term] = &self.0[..] else { return None };
        (term.number != 0.0 && term.number.is_finite()).then(|| {
            Polynomial(vec![Term {
                number: 1.0 / term.number,
                atoms: term.atoms.iter().map(|(a, n)| (*a, -n)).collect(),
            }])
        })
    }
}

impl Term {
    fn times(&self, other: &Term) -> Term {
        let mut atoms = self.atoms.clone();
        for (atom, power) in &other.atoms {
            match atoms.binary_search_by(|(a, _)| a.cmp(atom)) {
                Err(i) => atoms.insert(i, (*atom, *power)),
                Ok(i) => {
                    atoms[i].1 += power;
                    if atoms[i].1 == 0 {
                        atoms.remove(i);
                    }
                }
            }
        }
        Term {
            number: self.number * other.number,
            atoms,
        }
    }
}
