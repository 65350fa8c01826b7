//! Errors of invalid matrices and operands, located at the user's line.

use crate::{positive, random};
use kiln_tensor::{DType, ErrorKind, QrMode, Result, Solve, Spec, Svd, Tensor, Triangle, compile};

fn message(x: &Tensor) -> String {
    x.to_bytes().unwrap_err().to_string()
}

#[test]
fn singular_matrices_are_data_errors() {
    let singular = Tensor::from([[1.0, 2.0], [2.0, 4.0]]);
    let e = singular.inv().to_vec::<f64>().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data);
    let text = e.to_string();
    assert!(text.contains("linalg.inv: The diagonal element 2 is zero, the inversion could not be completed because the input matrix is singular."), "{text}");
    assert!(text.contains("errors.rs"), "{text}");
    let text = message(&singular.solve(Tensor::ones([2], DType::F64)));
    assert!(
        text.contains("linalg.solve: The solver failed because the input matrix is singular."),
        "{text}"
    );
    assert!(message(&singular.matrix_power(-2)).contains("singular"));
    let both = kiln_tensor::stack(&[&Tensor::eye(2, DType::F64), &singular], 0);
    assert!(message(&both.inv()).contains("(Batch element 1): The diagonal element 2"));
}

#[test]
fn what_is_not_positive_definite_names_element_and_minor() {
    for n in [3, 40, 100] {
        for order in [1, 2, n - 1, n] {
            let mut diagonal = vec![1.0; n];
            diagonal[order - 1] = -1.0;
            let bad = Tensor::from_slice(&diagonal, [n]).diag();
            let good = Tensor::eye(n as i64, DType::F64);
            let text = message(&kiln_tensor::stack(&[&good, &bad], 0).cholesky());
            let expected = format!(
                "(Batch element 1): The factorization could not be completed because the input is not positive-definite (the leading minor of order {order} is not positive-definite)."
            );
            assert!(text.contains(&expected), "{text}");
            // Only the first line, since others quote this file.
            let first = message(&bad.cholesky_with(Triangle::Upper));
            assert!(!first.lines().next().unwrap().contains("(Batch element"));
        }
    }
}

#[test]
fn nan_and_infinities_end() -> Result<()> {
    for n in [1, 2, 5, 40] {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let x = positive(1, &[n, n], DType::F64).set((0, 0), bad);
            for y in [
                x.svd_with(Svd::new().full_matrices(false)).1,
                x.svdvals(),
                x.eigh().0,
                x.eigvalsh(),
                x.pinv(),
            ] {
                assert!(message(&y).contains("non-finite values"), "{}", message(&y));
            }
            // These pass such values on, or reject them.
            for y in [
                x.lu().2,
                x.qr_with(QrMode::Complete).1,
                x.inv(),
                x.det(),
                x.slogdet().1,
                x.solve_triangular(&x, Triangle::Upper),
            ] {
                y.realize()?;
            }
            if bad != f64::INFINITY {
                assert!(message(&x.cholesky()).contains("leading minor of order 1"));
            }
        }
    }
    Ok(())
}

#[test]
fn wrong_operands_are_refused_when_recorded() {
    let wide = random(1, &[2, 3], DType::F32);
    let square = random(2, &[2, 2], DType::F32);
    let refused = |x: Tensor, text: &str| {
        let e = x.check().unwrap_err().to_string();
        assert!(e.contains(text) && e.contains("errors.rs"), "{e}");
    };
    let not_square = "A must be batches of square matrices, but they are 2 by 3 matrices";
    for x in [
        wide.det(),
        wide.inv(),
        wide.cholesky(),
        wide.eigh().0,
        wide.slogdet().0,
        wide.solve(&wide),
        wide.eigvalsh_with(Triangle::Upper),
        wide.matrix_power(-1),
    ] {
        refused(x, not_square);
    }
    refused(wide.i(0).svdvals(), "must have at least 2 dims");
    refused(
        square.to_dtype(DType::F16).det(),
        "takes matrices of f32 or f64",
    );
    refused(
        square.to_dtype(DType::I64).inv(),
        "takes matrices of f32 or f64",
    );
    refused(
        square.solve(wide.to_dtype(DType::F64)),
        "incompatible sides",
    );
    refused(
        square.solve(random(3, &[3, 2], DType::F32)),
        "incompatible sides",
    );
    refused(
        square.solve_with(random(3, &[2], DType::F32), Solve::new().left(false)),
        "left must be true",
    );
    refused(
        square.matrix_norm(3.0, [-2, -1]),
        "no matrix norm of order 3",
    );
    refused(square.matrix_norm(2.0, [0, 0]), "are the same");
    let stacked = random(4, &[3, 2, 2], DType::F32);
    refused(
        random(5, &[2, 2, 2], DType::F32).solve(&stacked),
        "do not broadcast",
    );
}

#[test]
fn a_complete_tall_qr_has_no_derivative() {
    let a = random(1, &[4, 2], DType::F64).requires_grad_(true);
    let e = a
        .qr_with(QrMode::Complete)
        .0
        .sum(())
        .backward()
        .unwrap_err()
        .to_string();
    assert!(e.contains("not differentiable when mode='complete'"), "{e}");
}

#[test]
fn errors_of_compiled_programs_name_the_element() -> Result<()> {
    let f = compile(Spec::new(DType::F64, ("batch", 2, 2)), |x| x.inv())?;
    let e = f
        .run(Tensor::zeros([3, 2, 2], DType::F64))
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("(Batch element 0)") && e.contains("errors.rs"),
        "{e}"
    );
    Ok(())
}
