//! Functions of f32 in cheaper forms; see [`Approximation::FastMath`] for their errors.

use crate::approximation::Approximation;
use crate::kir::{Expr, Kernel};
use kiln_base::Compute;
use kiln_base::prim::{Binary, Reduction, Unary};

/// The error bound of `exp` over all its normal results.
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

/// Returns the fast form of a primitive on two values, likewise.
pub(super) fn binary(op: Binary, a: &str, b: &str) -> Option<(String, f64)> {
    (op == Binary::Div).then(|| (format!("kiln_fast_div({a}, {b})"), 2.0 * UNIT))
}

/// Returns the precision that a kernel gives up with fast math. `None` in three cases. The kernel may have none of
/// these functions. Its results may be integers or masks, which would change. Or it compares results of such a
/// function: another kernel, which may compute them differently, may have chosen the value to compare with.
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
        let single = kernel.body[operand.index()].dtype.compute() == Compute::F32;
        form.filter(|_| single).map(|(_, error)| error)
    };
    let mut changed = vec![false; kernel.body.len()];
    for (i, def) in kernel.body.iter().enumerate() {
        let mut operands = false;
        def.expr.operands(|o| operands |= changed[o.index()]);
        if operands && compares(&def.expr) {
            return None;
        }
        changed[i] = operands || error(&def.expr).is_some();
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
