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
        ScanKind::Sum => scan_back(b, op, ScanKind::Sum, g),
        ScanKind::Prod => product(b, op, g, x, y),
        ScanKind::Max | ScanKind::Min => extreme(b, op, g, x, y),
        ScanKind::LogSumExp => log_sum_exp(b, op, g, x, y),
    }
}

/// Scans in the opposite direction.
fn scan_back(b: &mut Erased<'_>, op: &Scan, kind: ScanKind, v: &Id) -> Result<Id, OpError> {
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
    let (after, not_before) = match op.reverse {
        false => (Pw::Gt, Pw::Ge),
        true => (Pw::Lt, Pw::Le),
    };
    let ones = b.scalar_like(1.0, &xs)?;
    let is_after = b.pointwise(after, &[is.clone(), js.clone()])?;
    let factors = b.pointwise(Pw::Select, &[is_after, xs, ones])?;
    let inner_scan = Scan {
        axis: axis + 1,
        ..*op
    };
    let between = b.op(inner_scan, &[factors])?;
    let [gs, ..] = pairs(b, g, axis)?;
    let terms = b.pointwise(Pw::Mul, &[gs, between])?;
    let zero = b.scalar_like(0.0, &terms)?;
    let is_included = b.pointwise(not_before, &[is, js])?;
    let terms = b.pointwise(Pw::Select, &[is_included, terms, zero])?;
    let total = b.sum(&terms, &[axis + 1])?;
    let products_before_j = products_before(b, x, axis, op.reverse)?;
    b.pointwise(Pw::Mul, &[products_before_j, total])
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
    let zero_count = b.op(sum, &[zeros])?;
    let before_zero = b.with(Pw::Eq, &zero_count, 0i64)?;
    let after_first_zero = b.with(Pw::Eq, &zero_count, 1i64)?;
    let is_first_zero = b.pointwise(Pw::And, &[is_zero, after_first_zero.clone()])?;
    let ones = b.scalar_like(1.0, x)?;

    let terms = b.pointwise(Pw::Mul, &[g.clone(), y.clone()])?;
    let terms = b.pointwise(Pw::Select, &[before_zero.clone(), terms, zero.clone()])?;
    let totals = scan_back(b, op, ScanKind::Sum, &terms)?;
    let divisor = b.pointwise(Pw::Select, &[before_zero.clone(), x.clone(), ones.clone()])?;
    let quotient = b.pointwise(Pw::Div, &[totals, divisor])?;

    let filled = b.pointwise(Pw::Select, &[is_first_zero.clone(), ones, x.clone()])?;
    let products = b.op(*op, &[filled])?;
    let terms = b.pointwise(Pw::Mul, &[g.clone(), products])?;
    let terms = b.pointwise(Pw::Select, &[after_first_zero, terms, zero.clone()])?;
    let totals = scan_back(b, op, ScanKind::Sum, &terms)?;
    let at_first = b.pointwise(Pw::Select, &[is_first_zero, totals, zero])?;
    b.pointwise(Pw::Select, &[before_zero, quotient, at_first])
}

/// Passes each gradient to the element that was the extreme there, the latest of equal elements.
fn extreme(b: &mut Erased<'_>, op: &Scan, g: &Id, x: &Id, y: &Id) -> Result<Id, OpError> {
    let shape = b.fact(x).shape;
    let is_equal = b.pointwise(Pw::Eq, &[x.clone(), y.clone()])?;
    let nan = b.pointwise(Pw::IsNan, std::slice::from_ref(x))?;
    let is_extreme = b.pointwise(Pw::Or, &[is_equal, nan])?;
    let positions = positions(b, &shape, op.axis)?;
    let (kind, never) = match op.reverse {
        false => (ScanKind::Max, -1),
        true => (ScanKind::Min, i64::MAX),
    };
    let never = b.scalar_like(never, &positions)?;
    let candidates = b.pointwise(Pw::Select, &[is_extreme, positions, never])?;
    let index = b.op(Scan { kind, ..*op }, &[candidates])?;
    let zero = b.full_like(0.0, x)?;
    b.scatter_add(&zero, op.axis, &index, g)
}

/// `Σ g_i · exp(x_j − y_i)` over the `i` whose sum includes `j`, in logarithms to avoid overflow and underflow;
/// positive and negative gradients separately. For f16 and bf16 it is computed in f32 from the operand alone:
/// logarithms in these dtypes lose elements that are much smaller than others. Its own derivative is that of
/// [`softmax_pairs`].
fn log_sum_exp(b: &mut Erased<'_>, op: &Scan, g: &Id, x: &Id, y: &Id) -> Result<Id, OpError> {
    let dtype = b.with_fact(x, |f| f.dtype);
    if let DType::F16 | DType::BF16 = dtype {
        let x = b.cast(x, DType::F32)?;
        let y = b.op(*op, std::slice::from_ref(&x))?;
        let g = b.cast(g, DType::F32)?;
        let share = log_sum_exp(b, op, &g, &x, &y)?;
        return b.cast(&share, dtype);
    }
    let exact = softmax_pairs(b, op, g, x, y)?;
    let never = b.scalar_like(f64::NEG_INFINITY, g)?;
    let mut sides = Vec::with_capacity(2);
    for sign in [1.0, -1.0] {
        let amount = b.with(Pw::Mul, g, sign)?;
        let has_sign = b.with(Pw::Gt, &amount, 0.0)?;
        let log = b.pointwise(Pw::Log, &[amount])?;
        let log = b.pointwise(Pw::Sub, &[log, y.clone()])?;
        let log = b.pointwise(Pw::Select, &[has_sign, log, never.clone()])?;
        let log_totals = scan_back(b, op, ScanKind::LogSumExp, &log)?;
        let log_totals = b.pointwise(Pw::Add, &[log_totals, x.clone()])?;
        sides.push(b.pointwise(Pw::Exp, &[log_totals])?);
    }
    let value = b.pointwise(Pw::Sub, &sides)?;
    b.pointwise(Pw::Surrogate, &[value, exact])
}

/// `Σ g_i · exp(x_j − y_i)` over the `i` whose sum includes `j`, from all pairs. It has every derivative, even where
/// some `g_i` is 0.
fn softmax_pairs(b: &mut Erased<'_>, op: &Scan, g: &Id, x: &Id, y: &Id) -> Result<Id, OpError> {
    let axis = op.axis;
    let [ys, js, is] = pairs(b, y, axis)?;
    let [gs, ..] = pairs(b, g, axis)?;
    let mut shape = b.fact(x).shape;
    shape.insert(axis + 1, Dim::ONE);
    let xs = b.reshape(x, &shape)?;
    let is_included = if op.reverse { Pw::Le } else { Pw::Ge };
    let is_included = b.pointwise(is_included, &[is, js])?;
    let is_finite = b.with(Pw::Gt, &xs, f64::NEG_INFINITY)?;
    let is_included = b.pointwise(Pw::And, &[is_included, is_finite])?;
    let log = b.pointwise(Pw::Sub, &[xs, ys])?;
    let minus_infinity = b.scalar_like(f64::NEG_INFINITY, &log)?;
    let log = b.pointwise(Pw::Select, &[is_included, log, minus_infinity])?;
    let share = b.pointwise(Pw::Exp, &[log])?;
    let terms = b.pointwise(Pw::Mul, &[gs, share])?;
    b.sum(&terms, &[axis + 1])
}
