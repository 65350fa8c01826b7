//! Every pointwise op.

use crate::differences::{Operand, check_op};
use kiln_base::DType;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Pw, ops};

/// Returns an interval for each operand in which an op is smooth.
fn smooth(row: Pw) -> Vec<(f64, f64)> {
    use Pw::*;
    match row {
        Sqrt | Rsqrt | Log | Log2 | Log10 => vec![(0.3, 3.0)],
        Reciprocal => vec![(0.4, 2.0)],
        Log1p => vec![(-0.6, 3.0)],
        ErfInv => vec![(-0.8, 0.8)],
        Ndtri => vec![(0.1, 0.9)],
        BinaryCrossEntropy => vec![(0.1, 0.9), (0.1, 0.9)],
        Lgamma | Digamma => vec![(0.4, 4.0)],
        I0e | I1e => vec![(0.3, 3.0)],
        Fmax | Fmin => vec![(-1.0, 0.0), (0.1, 1.0)],
        Hypot | Xlogy | Xlog1py => vec![(0.3, 2.0), (0.3, 2.0)],
        Tan | Asin | Acos | Atanh => vec![(-0.8, 0.8)],
        Acosh => vec![(1.3, 4.0)],
        Relu | Abs | Sign | Elu | Selu => vec![(0.2, 2.0)],
        Relu6 => vec![(0.5, 5.0)],
        Hardsigmoid | Hardswish => vec![(-2.5, 2.5)],
        Floor | Ceil | Round | Trunc => vec![(0.1, 0.4)],
        Div => vec![(-2.0, 2.0), (0.5, 2.0)],
        Fmod | Remainder | FloorDivide => vec![(2.1, 2.4), (0.9, 1.0)],
        Pow => vec![(0.3, 2.0), (-2.0, 2.0)],
        Atan2 => vec![(0.3, 2.0), (0.3, 2.0)],
        Maximum | Minimum => vec![(-1.0, 0.0), (0.1, 1.0)],
        Clamp | Clip => vec![(-0.5, 0.5), (-2.0, -1.0), (1.0, 2.0)],
        row => vec![(-2.0, 2.0); row.row().arity],
    }
}

#[test]
fn rows_have_derivatives() {
    let mut rng = Rng::new(5);
    let mut checked = 0;
    for row in Pw::ALL.iter().copied() {
        if !row.takes(DType::F64) || matches!(row, Pw::Select | Pw::Zeta | Pw::Surrogate) {
            continue;
        }
        let of_float = matches!(row.row().gives, kiln_ir::pointwise::Gives::Same);
        if !of_float {
            continue;
        }
        for shape in [vec![5], vec![2, 3], vec![]] {
            let operands: Vec<Operand> = smooth(row)
                .into_iter()
                .map(|(low, high)| Operand::random(&mut rng, &shape, low, high))
                .collect();
            check_op(row.name(), ops::Pointwise(row), &operands);
        }
        checked += 1;
    }
    assert!(checked > 45, "{checked}");
}

#[test]
fn negative_sides_of_kinks() {
    let mut rng = Rng::new(6);
    for row in [Pw::Relu, Pw::Abs, Pw::Elu, Pw::Selu] {
        let x = Operand::random(&mut rng, &[4], -2.0, -0.2);
        check_op(row.name(), ops::Pointwise(row), &[x]);
    }
    for (row, low, high) in [
        (Pw::Relu6, 6.5, 9.0),
        (Pw::Relu6, -3.0, -1.0),
        (Pw::Hardswish, 3.5, 5.0),
        (Pw::Hardswish, -5.0, -3.5),
        (Pw::Hardsigmoid, 3.5, 5.0),
        (Pw::Pow, 0.5, 1.0),
    ] {
        let x = Operand::random(&mut rng, &[4], low, high);
        let operands = vec![x; row.row().arity];
        check_op(row.name(), ops::Pointwise(row), &operands);
    }
    let x = Operand::floats(&[4], &[-3.0, 3.0, 0.2, 5.0]);
    let low = Operand::floats(&[4], &[-1.0, -1.0, -1.0, 2.0]);
    let high = Operand::floats(&[4], &[1.0, 1.0, 1.0, 1.0]);
    check_op("clamp", ops::Pointwise(Pw::Clamp), &[x, low, high]);
}

#[test]
fn zeta_has_one_derivative() {
    let mut rng = Rng::new(8);
    let q = Operand::random(&mut rng, &[4], 0.5, 3.0);
    crate::differences::check("zeta", &[q], false, |b, x| {
        use kiln_ir::Builder;
        let three = b.scalar_like(3.0, &x[0])?;
        b.pointwise(Pw::Zeta, &[three, x[0]])
    });
}

#[test]
fn selects_route_gradients() {
    let mut rng = Rng::new(7);
    let a = Operand::random(&mut rng, &[5], -1.0, 1.0);
    let b = Operand::random(&mut rng, &[5], -1.0, 1.0);
    crate::differences::check("select", &[a, b], true, |builder, x| {
        use kiln_ir::Builder;
        let mask = builder.pointwise(Pw::Lt, x)?;
        builder.pointwise(Pw::Select, &[mask, x[0], x[1]])
    });
}
