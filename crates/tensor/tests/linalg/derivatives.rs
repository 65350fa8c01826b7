//! First and second derivatives, compared with central differences.

use crate::{positive, random};
use kiln_tensor::Triangle::{Lower, Upper};
use kiln_tensor::{
    DType, Grad, GradCheck, MatrixNorm, QrMode, Result, Solve, SolveTriangular, Svd, Tensor, cond,
    grad_with, gradcheck_with, gradgradcheck_with, no_grad, scan,
};

const F: DType = DType::F64;

/// Checks the first and second derivatives of a weighted sum of the results of `f` and their squares.
#[track_caller]
fn check(f: impl Fn(&[Tensor]) -> Vec<Tensor>, inputs: &[&Tensor]) {
    let loss = |x: &[Tensor]| {
        let terms = f(x).into_iter().enumerate().map(|(i, y)| {
            let weight = random(100 + i as u64, &y.shape().unwrap(), F);
            (&y * &weight + y.square() * 0.3).sum(())
        });
        terms.fold(Tensor::zeros((), F), |sum, term| sum + term)
    };
    let bounds = GradCheck::new().atol(2e-6).rtol(2e-5);
    gradcheck_with(|x: Vec<Tensor>| loss(&x), inputs, bounds).unwrap();
    let bounds = GradCheck::new().eps(1e-5).atol(5e-4).rtol(5e-4);
    gradgradcheck_with(|x: Vec<Tensor>| loss(&x), inputs, bounds).unwrap();
}

fn t(x: &Tensor) -> Tensor {
    x.transpose(-1, -2)
}

fn symmetric(x: &Tensor) -> Tensor {
    x + t(x)
}

#[test]
fn cholesky() {
    for triangle in [Lower, Upper] {
        let a = positive(1, &[2, 3, 3], F);
        check(|x| vec![symmetric(&x[0]).cholesky_with(triangle)], &[&a]);
    }
    let l = positive(2, &[3, 3], F).cholesky();
    let b = random(3, &[3, 2], F);
    check(|x| vec![x[1].cholesky_solve(&x[0])], &[&l, &b]);
    check(|x| vec![x[0].cholesky_inverse()], &[&l]);
}

#[test]
fn qr() {
    for shape in [&[3, 3][..], &[2, 5, 3], &[3, 5], &[1, 1]] {
        let a = random(1, shape, F);
        check(
            |x| {
                let (q, r) = x[0].qr();
                vec![q, r]
            },
            &[&a],
        );
    }
    let a = random(2, &[3, 4], F);
    check(
        |x| {
            let (q, r) = x[0].qr_with(QrMode::Complete);
            vec![q, r]
        },
        &[&a],
    );
}

#[test]
fn lu() {
    for shape in [&[2, 3, 3][..], &[5, 3], &[3, 5]] {
        let a = random(4, shape, F);
        check(
            |x| {
                let (_, l, u) = x[0].lu();
                vec![l, u]
            },
            &[&a],
        );
    }
}

#[test]
fn singular_values_and_vectors() {
    for shape in [&[2, 3, 3][..], &[4, 2], &[2, 4]] {
        let a = random(5, shape, F);
        check(|x| vec![x[0].svdvals()], &[&a]);
        // Results that don't depend on the signs of the vectors.
        check(
            |x| {
                let (u, s, v) = x[0].svd_with(Svd::new().full_matrices(false));
                vec![u.square(), s, v.square()]
            },
            &[&a],
        );
        check(
            |x| {
                let (u, _, v) = x[0].svd_with(Svd::new().full_matrices(false));
                vec![u.matmul(&v)]
            },
            &[&a],
        );
        let k = shape[shape.len() - 1].min(shape[shape.len() - 2]) as i64;
        check(
            |x| {
                let (u, s, v) = x[0].svd();
                vec![u.narrow(-1, 0, k).square(), s, v.narrow(-2, 0, k).square()]
            },
            &[&a],
        );
        for norm in [
            MatrixNorm::Nuclear,
            MatrixNorm::Order(2.0),
            MatrixNorm::Order(-2.0),
        ] {
            check(|x| vec![x[0].matrix_norm(norm, [-2, -1])], &[&a]);
        }
        check(|x| vec![x[0].cond(2.0)], &[&a]);
    }
}

#[test]
fn eigenvalues_and_vectors() {
    for triangle in [Lower, Upper] {
        let a = random(6, &[2, 3, 3], F);
        check(
            |x| {
                let (l, v) = symmetric(&x[0]).eigh_with(triangle);
                vec![l, v.square()]
            },
            &[&a],
        );
        check(|x| vec![symmetric(&x[0]).eigvalsh_with(triangle)], &[&a]);
    }
}

#[test]
fn solutions() {
    let a = positive(7, &[2, 3, 3], F);
    let b = random(8, &[3, 4], F);
    check(|x| vec![x[0].solve(&x[1])], &[&a, &b]);
    check(
        |x| vec![x[0].solve_with(t(&x[1]), Solve::new().left(false))],
        &[&a, &b],
    );
    check(|x| vec![x[0].inv()], &[&a]);
    check(|x| vec![x[0].matrix_power(-2)], &[&a]);
    check(|x| vec![x[0].cond(1.0)], &[&a]);
    for (triangle, unit) in [(Lower, false), (Lower, true), (Upper, false), (Upper, true)] {
        check(
            |x| {
                vec![
                    x[0].solve_triangular(
                        &x[1],
                        SolveTriangular::new(triangle).unitriangular(unit),
                    ),
                ]
            },
            &[&a, &b],
        );
        check(
            |x| {
                vec![
                    x[0].solve_triangular(
                        t(&x[1]),
                        SolveTriangular::new(triangle)
                            .left(false)
                            .unitriangular(unit),
                    ),
                ]
            },
            &[&a, &b],
        );
    }
    let (tall, wide) = (random(9, &[2, 4, 2], F), random(10, &[2, 4], F));
    for a in [&tall, &wide, &a] {
        check(|x| vec![x[0].pinv()], &[a]);
    }
    let b = random(11, &[2, 4, 3], F);
    check(
        |x| {
            let (x, residuals, ..) = x[0].lstsq(&x[1]);
            vec![x, residuals]
        },
        &[&tall, &b],
    );
}

#[test]
fn determinants() {
    let a = random(12, &[2, 3, 3], F);
    check(|x| vec![x[0].det()], &[&a]);
    check(|x| vec![x[0].slogdet().1], &[&a]);
    check(
        |x| vec![symmetric(&x[0]).logdet()],
        &[&positive(13, &[2, 3, 3], F)],
    );
}

#[test]
fn a_singular_matrix_has_a_gradient_of_its_determinant() {
    // Cofactors of matrices of rank n − 1 and n − 2, and of a 1 × 1 matrix.
    for (a, expected) in [
        (
            Tensor::from([[1.0, 2.0], [2.0, 4.0]]),
            vec![4.0, -2.0, -2.0, 1.0],
        ),
        (Tensor::from([[0.0]]), vec![1.0]),
        (Tensor::from([1.0, 0.0, 0.0]).diag(), vec![0.0; 9]),
        (
            Tensor::from([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]),
            vec![0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0],
        ),
    ] {
        let a = a.requires_grad_(true);
        a.det().backward().unwrap();
        let found = a.grad().unwrap().to_vec::<f64>().unwrap();
        for (f, e) in found.iter().zip(&expected) {
            assert!((f - e).abs() < 1e-14, "{found:?} {expected:?}");
        }
    }
}

#[test]
fn a_singular_matrix_has_second_derivatives_of_its_determinant() {
    let rank_2 = [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]];
    let rank_1 = [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 6.0, 9.0]];
    for a in [rank_2, rank_1, [[0.0; 3]; 3]] {
        let a = Tensor::from(a);
        check(|x| vec![x[0].det()], &[&a]);
        check(|x| vec![x[0].det()], &[&a.i((..2, ..2))]);
    }
}

#[test]
fn a_singular_matrix_has_every_derivative_of_its_determinant() {
    let rank_2 = [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]];
    let along = Tensor::from([[1.0, 0.5, 0.0], [-1.0, 2.0, 1.0], [0.0, 3.0, -1.0]]);
    let cubic = along.det().item::<f64>().unwrap();
    for a in [rank_2, [[1.0; 3]; 3], [[0.0; 3]; 3]] {
        let a = Tensor::from(a).requires_grad_(true);
        let mut order = a.det();
        for expected in [None, None, Some(6.0 * cubic), Some(0.0)] {
            let gradient = grad_with(&order, &a, Grad::new().create_graph(true)).unwrap();
            order = (gradient * &along).sum(());
            let found = order.item::<f64>().unwrap();
            let off = expected.map_or(0.0, |e| (found - e).abs());
            assert!(
                found.is_finite() && off < 1e-11,
                "{found}, not {expected:?}"
            );
        }
    }
}

/// The largest singular value of ones moved along a direction: `√(mn)`, and the derivatives of perturbation theory.
#[test]
fn a_largest_singular_value_has_derivatives_where_others_are_zero() {
    let a = Tensor::ones([3, 3], F).requires_grad_(true);
    let along = Tensor::from([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]);
    let slope = |y: &Tensor| {
        let gradient = grad_with(y, &a, Grad::new().create_graph(true)).unwrap();
        (gradient * &along).sum(())
    };
    let first = slope(&a.matrix_norm(2.0, [-2, -1]));
    assert!((first.item::<f64>().unwrap() - 1.0 / 3.0).abs() < 1e-14);
    // (|E v|² + |Eᵀ u|² − 2 (uᵀ E v)²) / σ
    let second = slope(&first).item::<f64>().unwrap();
    assert!(
        (second - (2.0 / 3.0 - 2.0 / 9.0) / 3.0).abs() < 1e-13,
        "{second}"
    );
}

#[test]
fn equal_singular_values_have_gradients() -> Result<()> {
    let one = Tensor::eye(3, F).requires_grad_(true);
    one.svdvals().sum(()).backward()?;
    assert_eq!(
        one.grad().unwrap().to_vec::<f64>()?,
        Tensor::eye(3, F).to_vec::<f64>()?
    );
    one.zero_grad();
    // The gradient of the values alone, through all three factors.
    one.svd_with(Svd::new().full_matrices(false))
        .1
        .sum(())
        .backward()?;
    assert_eq!(
        one.grad().unwrap().to_vec::<f64>()?,
        Tensor::eye(3, F).to_vec::<f64>()?
    );
    one.zero_grad();
    one.eigh().0.sum(()).backward()?;
    assert_eq!(
        one.grad().unwrap().to_vec::<f64>()?,
        Tensor::eye(3, F).to_vec::<f64>()?
    );
    Ok(())
}

#[test]
fn empty_matrices_have_empty_gradients() -> Result<()> {
    for shape in [[0, 0, 0], [2, 0, 0], [0, 3, 3]] {
        let x = Tensor::zeros(shape, F).requires_grad_(true);
        let y = x.det().sum(())
            + x.inv().sum(())
            + x.svdvals().sum(())
            + x.cholesky().sum(())
            + x.qr().0.sum(())
            + x.eigh().1.sum(())
            + x.lu().2.sum(())
            + x.pinv().sum(());
        y.backward()?;
        assert_eq!(x.grad().unwrap().shape()?, shape);
        x.grad().unwrap().realize()?;
    }
    Ok(())
}

#[test]
fn gradients_flow_through_loops_and_branches() -> Result<()> {
    let a = positive(14, &[3, 3], F);
    let steps = random(15, &[4, 3], F);
    check(
        |x| {
            let (last, all) = scan(Tensor::zeros([3], F), steps.clone(), |h, s| {
                let y = x[0].solve(&(&h + &s));
                (y.clone(), y)
            });
            vec![last, all]
        },
        &[&a],
    );
    let yes = no_grad(|| a.sum(()).gt(-1e9));
    check(
        |x| vec![cond(&yes, || x[0].inv(), || x[0].det() * &x[0])],
        &[&a],
    );
    Ok(())
}
