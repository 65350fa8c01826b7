//! Cumulative sums and other scans.

use crate::erased::{Erased, Id};
use crate::reduce::{pairs, positions, products_before};
use kiln_base::prim::ScanKind;
use kiln_base::{DType, Dim};
use kiln_ir::ops::Scan;
use kiln_ir::{Builder, OpError, Pw};

pub(crate) fn pullback(
    b: &mut Erased<'_>,
    op: &Scan,
    g: &Id,
    x: &Id,
    y: &Id,
) -> Result<Id, OpError> {
    match op.kind {
        ScanKind::Sum => back(b, op, ScanKind::Sum, g),
        ScanKind::Prod => product(b, op, g, x, y),
        ScanKind::Max | ScanKind::Min => extreme(b, op, g, x, y),
        ScanKind::LogSumExp => log_sum_exp(b, op, g, x, y),
    }
}

/// A scan in the opposite direction.
fn back(b: &mut Erased<'_>, op: &Scan, kind: ScanKind, v: &Id) -> Result<Id, OpError> {
    let op = Scan {
        kind,
        axis: op.axis,
        reverse: !op.reverse,
    };
    b.op(op, std::slice::from_ref(v))
}

/// Before the first zero `Σ g·y / x`, at it the same without that zero in the products, after it 0. Its own
/// derivative is that of [`product_of_pairs`].
fn product(b: &mut Erased<'_>, op: &Scan, g: &Id, x: &Id, y: &Id) -> Result<Id, OpError> {
    let value = product_by_quotient(b, op, g, x, y)?;
    let exact = product_of_pairs(b, op, g, x)?;
    b.pointwise(Pw::Surrogate, &[value, exact])
}

/// `(Π x before j) · Σᵢ gᵢ · (Π x between j and i)`, without a division, so that every derivative is right at zeros
/// too.
fn product_of_pairs(b: &mut Erased<'_>, op: &Scan, g: &Id, x: &Id) -> Result<Id, OpError> {
    let axis = op.axis;
    let [xs, js, is] = pairs(b, x, axis)?;
    let (behind, not_before) = match op.reverse {
        false => (Pw::Gt, Pw::Ge),
        true => (Pw::Lt, Pw::Le),
    };
    let one = b.scalar_like(1.0, &xs)?;
    let is_behind = b.pointwise(behind, &[is.clone(), js.clone()])?;
    let factors = b.pointwise(Pw::Select, &[is_behind, xs, one])?;
    let along = Scan {
        axis: axis + 1,
        ..*op
    };
    let between = b.op(along, &[factors])?;
    let [gs, ..] = pairs(b, g, axis)?;
    let terms = b.pointwise(Pw::Mul, &[gs, between])?;
    let zero = b.scalar_like(0.0, &terms)?;
    let counts = b.pointwise(not_before, &[is, js])?;
    let terms = b.pointwise(Pw::Select, &[counts, terms, zero])?;
    let sums = b.sum(&terms, &[axis + 1])?;
    let before = products_before(b, x, axis, op.reverse)?;
    b.pointwise(Pw::Mul, &[before, sums])
}

fn product_by_quotient(
    b: &mut Erased<'_>,
    op: &Scan,
    g: &Id,
    x: &Id,
    y: &Id,
) -> Result<Id, OpError> {
    let zero = b.full_like(0.0, x)?;
    let is_zero = b.with(Pw::Eq, x, 0.0)?;
    let zeros = b.cast(&is_zero, DType::I64)?;
    let sum = Scan {
        kind: ScanKind::Sum,
        ..*op
    };
    let met = b.op(sum, &[zeros])?;
    let before = b.with(Pw::Eq, &met, 0i64)?;
    let after_one = b.with(Pw::Eq, &met, 1i64)?;
    let first = b.pointwise(Pw::And, &[is_zero, after_one.clone()])?;
    let one = b.scalar_like(1.0, x)?;

    let terms = b.pointwise(Pw::Mul, &[g.clone(), y.clone()])?;
    let terms = b.pointwise(Pw::Select, &[before.clone(), terms, zero.clone()])?;
    let sums = back(b, op, ScanKind::Sum, &terms)?;
    let divisor = b.pointwise(Pw::Select, &[before.clone(), x.clone(), one.clone()])?;
    let plain = b.pointwise(Pw::Div, &[sums, divisor])?;

    let filled = b.pointwise(Pw::Select, &[first.clone(), one, x.clone()])?;
    let products = b.op(*op, &[filled])?;
    let terms = b.pointwise(Pw::Mul, &[g.clone(), products])?;
    let terms = b.pointwise(Pw::Select, &[after_one, terms, zero.clone()])?;
    let sums = back(b, op, ScanKind::Sum, &terms)?;
    let at_first = b.pointwise(Pw::Select, &[first, sums, zero])?;
    b.pointwise(Pw::Select, &[before, plain, at_first])
}

/// Passes each gradient to the element that was the extreme there, the latest of equal ones.
fn extreme(b: &mut Erased<'_>, op: &Scan, g: &Id, x: &Id, y: &Id) -> Result<Id, OpError> {
    let shape = b.fact(x).shape;
    let same = b.pointwise(Pw::Eq, &[x.clone(), y.clone()])?;
    let nan = b.pointwise(Pw::IsNan, std::slice::from_ref(x))?;
    let holds = b.pointwise(Pw::Or, &[same, nan])?;
    let numbers = positions(b, &shape, op.axis)?;
    let (kind, none) = match op.reverse {
        false => (ScanKind::Max, -1),
        true => (ScanKind::Min, i64::MAX),
    };
    let none = b.scalar_like(none, &numbers)?;
    let candidates = b.pointwise(Pw::Select, &[holds, numbers, none])?;
    let index = b.op(Scan { kind, ..*op }, &[candidates])?;
    let zero = b.full_like(0.0, x)?;
    b.scatter_add(&zero, op.axis, &index, g)
}

/// `Σ g_i · exp(x_j − y_i)` over the `i` whose sum includes `j`, in logarithms to avoid overflow and underflow;
/// positive and negative gradients separately. For f16 and bf16 it is computed in f32 from the operand alone:
/// logarithms in these dtypes lose elements that are much smaller than others. Its own derivative is that of
/// [`shares_of_pairs`].
fn log_sum_exp(b: &mut Erased<'_>, op: &Scan, g: &Id, x: &Id, y: &Id) -> Result<Id, OpError> {
    let dtype = b.with_fact(x, |f| f.dtype);
    if let DType::F16 | DType::BF16 = dtype {
        let x = b.cast(x, DType::F32)?;
        let y = b.op(*op, std::slice::from_ref(&x))?;
        let g = b.cast(g, DType::F32)?;
        let share = log_sum_exp(b, op, &g, &x, &y)?;
        return b.cast(&share, dtype);
    }
    let exact = shares_of_pairs(b, op, g, x, y)?;
    let never = b.scalar_like(f64::NEG_INFINITY, g)?;
    let mut sides = Vec::with_capacity(2);
    for sign in [1.0, -1.0] {
        let amount = b.with(Pw::Mul, g, sign)?;
        let some = b.with(Pw::Gt, &amount, 0.0)?;
        let log = b.pointwise(Pw::Log, &[amount])?;
        let log = b.pointwise(Pw::Sub, &[log, y.clone()])?;
        let log = b.pointwise(Pw::Select, &[some, log, never.clone()])?;
        let sums = back(b, op, ScanKind::LogSumExp, &log)?;
        let sums = b.pointwise(Pw::Add, &[sums, x.clone()])?;
        sides.push(b.pointwise(Pw::Exp, &[sums])?);
    }
    let value = b.pointwise(Pw::Sub, &sides)?;
    b.pointwise(Pw::Surrogate, &[value, exact])
}

/// `Σ g_i · exp(x_j − y_i)` over the `i` whose sum includes `j`, from all pairs. It has every derivative, even where
/// some `g_i` is 0.
fn shares_of_pairs(b: &mut Erased<'_>, op: &Scan, g: &Id, x: &Id, y: &Id) -> Result<Id, OpError> {
    let axis = op.axis;
    let [ys, js, is] = pairs(b, y, axis)?;
    let [gs, ..] = pairs(b, g, axis)?;
    let mut shape = b.fact(x).shape;
    shape.insert(axis + 1, Dim::ONE);
    let xs = b.reshape(x, &shape)?;
    let saw = if op.reverse { Pw::Le } else { Pw::Ge };
    let saw = b.pointwise(saw, &[is, js])?;
    let some = b.with(Pw::Gt, &xs, f64::NEG_INFINITY)?;
    let saw = b.pointwise(Pw::And, &[saw, some])?;
    let log = b.pointwise(Pw::Sub, &[xs, ys])?;
    let never = b.scalar_like(f64::NEG_INFINITY, &log)?;
    let log = b.pointwise(Pw::Select, &[saw, log, never])?;
    let share = b.pointwise(Pw::Exp, &[log])?;
    let terms = b.pointwise(Pw::Mul, &[gs, share])?;
    b.sum(&terms, &[axis + 1])
}
