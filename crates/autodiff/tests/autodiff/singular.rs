//! Derivatives up to the third at points where a formula with a division, a logarithm or a selection would have none:
//! at zeros, at removable singularities, and where operands differ widely.

use crate::differences::{Operand, check_orders};
use kiln_base::prim::{Reduction, ScanKind, ScatterKind};
use kiln_ir::{Builder, Op, Pw, ops};

const ORDERS: usize = 3;

fn check(what: &str, op: impl Into<Op>, operands: &[Operand]) {
    let op = op.into();
    check_orders(what, operands, ORDERS, |b, x| b.op(op, x));
}

fn vector(values: &[f64]) -> Operand {
    Operand::floats(&[values.len()], values)
}

#[test]
fn products_with_zeros() {
    for values in [
        [2.0, 0.0, 3.0, 0.0, 0.5],
        [0.0; 5],
        [1.0, 0.0, -1.0, 2.0, 0.7],
    ] {
        let (kind, axes) = (Reduction::Prod, [0][..].into());
        check("prod", ops::Reduce { kind, axes }, &[vector(&values)]);
        for reverse in [false, true] {
            let (kind, axis) = (ScanKind::Prod, 0);
            let scan = ops::Scan {
                kind,
                axis,
                reverse,
            };
            check("cumprod", scan, &[vector(&values)]);
            let columns = Operand::floats(&[5, 2], &[values, [1.0, 0.3, 0.0, 0.0, 2.0]].concat());
            check("cumprod of columns", scan, &[columns]);
        }
    }
}

/// The gradient is a sum of logarithms, some of which are of 0.
#[test]
fn logarithms_of_sums() {
    for values in [
        [0.3, -1.0, 2.0, 0.5, 0.0],
        [0.0; 5],
        [40.0, -40.0, 0.0, 39.0, 1.0],
    ] {
        for reverse in [false, true] {
            let (kind, axis) = (ScanKind::LogSumExp, 0);
            let scan = ops::Scan {
                kind,
                axis,
                reverse,
            };
            check("logcumsumexp", scan, &[vector(&values)]);
        }
    }
}

#[test]
fn scattered_products_with_zeros() {
    let (axis, kind) = (0, ScatterKind::Prod);
    let index = Operand::ints(&[5], &[0, 1, 0, 0, 1]);
    for (x, src) in [
        ([2.0, 3.0, 1.0], [0.0, 0.0, 0.5, 0.0, 2.0]),
        ([0.0, 1.0, 0.0], [0.0, 0.3, 0.5, 1.0, 0.0]),
        ([0.0, 0.0, 0.0], [0.0; 5]),
    ] {
        let operands = [vector(&x), index.clone(), vector(&src)];
        check("scatter", ops::Scatter { axis, kind }, &operands);
    }
}

#[test]
fn removable_singularities() {
    let at = [0.0, 1e-9, -1e-4, 0.02, -0.3, 0.9, 1.1, -2.0];
    for row in [Pw::Sinc, Pw::I0, Pw::I1] {
        check(row.name(), ops::Pointwise(row), &[vector(&at)]);
    }
    // Scaled by e^(−|x|), whose slope jumps at 0.
    for row in [Pw::I0e, Pw::I1e] {
        check(row.name(), ops::Pointwise(row), &[vector(&at[3..])]);
    }
}

#[test]
fn powers_of_zero() {
    let x = vector(&[0.0, 0.0, -1.0, 2.0]);
    for exponent in [0.0, 1.0, 2.0, 3.0, 4.0] {
        check_orders("pow", std::slice::from_ref(&x), 4, |b, x| {
            b.with(Pw::Pow, &x[0], exponent)
        });
    }
}

#[test]
fn distant_operands() {
    let (x, y) = (
        vector(&[800.0, -800.0, 30.0, 1.0]),
        vector(&[-800.0, 700.0, -30.0, 1.0]),
    );
    for row in [Pw::LogAddExp, Pw::LogAddExp2] {
        check(row.name(), ops::Pointwise(row), &[x.clone(), y.clone()]);
    }
}

#[test]
fn cross_entropy_of_probabilities() {
    let (x, y) = (vector(&[0.6, 0.2, 0.9]), vector(&[0.3, 0.0, 1.0]));
    check(
        "binary_cross_entropy",
        ops::Pointwise(Pw::BinaryCrossEntropy),
        &[x, y],
    );
}

#[test]
fn a_surrogate_has_the_derivative_of_the_other() {
    let x = vector(&[0.5, -2.0]);
    check_orders("surrogate", &[x], ORDERS, |b, x| {
        let cube = b.with(Pw::Pow, &x[0], 3.0)?;
        let square = b.pointwise(Pw::Square, x)?;
        let same = b.pointwise(Pw::Mul, &[square, x[0]])?;
        b.pointwise(Pw::Surrogate, &[same, cube])
    });
}
