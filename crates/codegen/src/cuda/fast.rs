//! Functions of f32 in cheaper forms; see [`Approximation::FastMath`] for their errors.

use crate::approximation::Approximation;
use crate::kir::{Expr, Kernel};
use kiln_base::Compute;
use kiln_base::prim::{Binary, Reduction, Unary};

/// The error bound of `exp` over all normal results.
const EXP: f64 = 1.0 / 65536.0;
/// A unit in the last place.
const UNIT: f64 = f32::EPSILON as f64;

/// Returns the fast form of a primitive on one value, with its error bound, if it has one.
pub(super) fn unary(op: Unary, x: &str) -> Option<(String, f64)> {
    Some(match op {
        Unary::Exp => (format!("__expf({x})"), EXP),
        Unary::Sigmoid => (format!("kiln_fast_div(1.0f, 1.0f + __expf(-{x}))"), EXP),
        Unary::Log | Unary::Log2 | Unary::Log10 => (format!("__{}f({x})", op.name()), 4.0 * UNIT),
        Unary::Recip => (format!("kiln_fast_div(1.0f, {x})"), 2.0 * UNIT),
        Unary::Sqrt => (format!("kiln_fast_sqrt({x})"), UNIT),
        Unary::Tanh => (format!("kiln_fast_tanh({x})"), 1.0 / 2048.0),
        _ => return None,
    })
}

/// Returns the fast form of a primitive on two values, with its error bound, if it has one.
pub(super) fn binary(op: Binary, a: &str, b: &str) -> Option<(String, f64)> {
    (op == Binary::Div).then(|| (format!("kiln_fast_div({a}, {b})"), 2.0 * UNIT))
}

/// Returns the precision that a kernel gives up with fast math, if it may use it. It must have a function with a fast
/// form. Its results must be floats: integers and masks would change. It must not compare results of such functions:
/// the value to compare with may come from a kernel that computes them differently.
pub(super) fn approximation(kernel: &Kernel) -> Option<Approximation> {
    if kernel.args.iter().any(|a| a.written && !a.dtype.is_float()) {
        return None;
    }
    let error = |expr: &Expr| {
        let (operand, form) = match expr {
            Expr::Unary(op, a) => (a, unary(*op, "")),
            Expr::Binary { op, a, .. } => (a, binary(*op, "", "")),
            _ => return None,
        };
        let is_f32 = kernel.body[operand.index()].dtype.compute() == Compute::F32;
        form.filter(|_| is_f32).map(|(_, error)| error)
    };
    let mut is_approximate = vec![false; kernel.body.len()];
    for (i, def) in kernel.body.iter().enumerate() {
        let mut is_inexact = false;
        def.expr
            .operands(|o| is_inexact |= is_approximate[o.index()]);
        if is_inexact && compares(&def.expr) {
            return None;
        }
        is_approximate[i] = is_inexact || error(&def.expr).is_some();
    }
    let errors: Vec<f64> = kernel
        .body
        .iter()
        .filter_map(|def| error(&def.expr))
        .collect();
    (!errors.is_empty()).then(|| Approximation::FastMath(errors.iter().sum()))
}

/// True if an operation compares its operands.
fn compares(expr: &Expr) -> bool {
    match expr {
        Expr::Binary { op, .. } => op.gives_mask(),
        Expr::Reduce { op, .. } => matches!(op, Reduction::Max | Reduction::Min),
        Expr::ArgReduce { .. } => true,
        _ => false,
    }
}
