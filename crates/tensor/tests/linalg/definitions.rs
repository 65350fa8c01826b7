//! Factorisations: the product of the factors is the matrix.

use crate::{FLOATS, SIZES, assert_near, identity, positive, random};
use kiln_tensor::Triangle::{Lower, Upper};
use kiln_tensor::{
    DType, Diagonal, MatrixNorm, QrMode, Rank, Result, Solve, SolveTriangular, Sort, Svd, Tensor,
    Triangle, keep,
};

/// Rows and columns: square, tall and wide.
fn rectangles() -> impl Iterator<Item = (usize, usize)> {
    let shapes = SIZES
        .into_iter()
        .flat_map(|m| [(m, m), (m, m / 2), (m / 2, m), (m, 1)]);
    shapes.filter(|(m, n)| m.max(n) <= &70)
}

/// Matrices without batch dims, and with one or two; all of them are transposed views.
fn each(mut f: impl FnMut(Tensor, &[usize], usize, usize) -> Result<()>) -> Result<()> {
    for dtype in FLOATS {
        for (i, (m, n)) in rectangles().enumerate() {
            let batches: &[&[usize]] = if m.max(n) > 20 {
                &[&[]]
            } else {
                &[&[], &[3], &[2, 1]]
            };
            for batch in batches {
                let mut shape = batch.to_vec();
                shape.extend([n, m]);
                let x = random(i as u64, &shape, dtype).transpose(-1, -2);
                f(x, batch, m, n)?;
            }
        }
    }
    Ok(())
}

fn t(x: &Tensor) -> Tensor {
    x.transpose(-1, -2)
}

#[test]
fn qr() -> Result<()> {
    each(|a, batch, m, n| {
        let k = m.min(n);
        for mode in [QrMode::Reduced, QrMode::Complete] {
            let (q, r) = a.qr_with(mode);
            let width = if mode == QrMode::Reduced { k } else { m };
            assert_eq!(q.shape()?[batch.len()..], [m, width]);
            assert_eq!(r.shape()?[batch.len()..], [width, n]);
            assert_near(&q.matmul(&r), &a, 10.0, m + n);
            assert_near(
                &t(&q).matmul(&q),
                &identity(batch, width, a.dtype()),
                1.0,
                m,
            );
            assert_near(&r.triu(), &r, 0.0, 0);
        }
        let (none, r) = a.qr_with(QrMode::R);
        assert_eq!(none.shape()?, [0]);
        assert_near(&r, &a.qr().1, 0.0, 0);
        Ok(())
    })
}

#[test]
fn lu() -> Result<()> {
    each(|a, batch, m, n| {
        let (p, l, u) = a.lu();
        assert_near(&p.matmul(&l).matmul(&u), &a, 10.0, m + n);
        assert_near(&p.matmul(t(&p)), &identity(batch, m, a.dtype()), 0.0, 0);
        assert_near(&l.tril(), &l, 0.0, 0);
        assert_near(&u.triu(), &u, 0.0, 0);
        // The pivot is the largest element of its column.
        if l.numel()? > 0 {
            assert!(l.abs().amax(()).to_dtype(DType::F64).item::<f64>()? <= 1.0);
        }
        let (both, pivots) = a.lu_factor();
        assert_eq!(
            (pivots.dtype(), pivots.shape()?[batch.len()]),
            (DType::I32, m.min(n))
        );
        if m == n {
            let b = random(5, &[m, 2], a.dtype());
            let x = both.lu_solve(&pivots, &b);
            assert_near(&x, &a.solve(&b), 1e3, n);
        }
        Ok(())
    })
}

#[test]
fn svd() -> Result<()> {
    each(|a, batch, m, n| {
        let k = m.min(n);
        for full in [false, true] {
            let (u, s, vt) = a.svd_with(Svd::new().full_matrices(full));
            let (rows, columns) = if full { (m, n) } else { (k, k) };
            assert_eq!(u.shape()?[batch.len()..], [m, rows]);
            assert_eq!(vt.shape()?[batch.len()..], [columns, n]);
            let (first, last) = (u.narrow(-1, 0, k as i64), vt.narrow(-2, 0, k as i64));
            let back = (&first * &s.unsqueeze(-2)).matmul(&last);
            assert_near(&back, &a, 20.0, m + n);
            assert_near(&t(&u).matmul(&u), &identity(batch, rows, a.dtype()), 1.0, m);
            assert_near(
                &vt.matmul(t(&vt)),
                &identity(batch, columns, a.dtype()),
                1.0,
                n,
            );
            assert_near(&s, &a.svdvals(), 20.0, k);
            let sorted = s.sort_with(-1, Sort::new().descending(true)).0;
            assert_near(&s.clamp_min(0.0), &sorted, 0.0, 0);
        }
        Ok(())
    })
}

#[test]
fn eigh() -> Result<()> {
    for dtype in FLOATS {
        for n in SIZES {
            let x = random(n as u64, &[2, n, n], dtype);
            // Only one triangle is read.
            let symmetric = x.tril() + t(&x.tril_with(-1));
            let (l, v) = x.eigh();
            assert_near(&(&v * &l.unsqueeze(-2)).matmul(t(&v)), &symmetric, 20.0, n);
            assert_near(&t(&v).matmul(&v), &identity(&[2], n, dtype), 1.0, n);
            assert_near(&l.sort(-1).0, &l, 0.0, 0);
            assert_near(&x.eigvalsh(), &l, 20.0, n);
            assert_near(&t(&x).eigvalsh_with(Triangle::Upper), &l, 20.0, n);
            assert_near(&t(&x).eigh_with(Triangle::Upper).0, &l, 20.0, n);
        }
    }
    Ok(())
}

#[test]
fn cholesky() -> Result<()> {
    for dtype in FLOATS {
        for n in SIZES {
            let a = positive(n as u64, &[2, n, n], dtype);
            let size = 4.0 * (n + 1) as f64;
            let (l, u) = (a.tril().cholesky(), a.triu().cholesky_with(Triangle::Upper));
            assert_near(&l.matmul(t(&l)), &a, size, n);
            assert_near(&l.tril(), &l, 0.0, 0);
            assert_near(&u, &t(&l), size, n);
            let b = random(9, &[2, n, 3], dtype);
            assert_near(&a.matmul(b.cholesky_solve(&l)), &b, size * 10.0, n);
            assert_near(
                &a.matmul(b.cholesky_solve_with(&u, Triangle::Upper)),
                &b,
                size * 10.0,
                n,
            );
            let inverse = l.cholesky_inverse();
            assert_near(
                &a.matmul(&inverse),
                &identity(&[2], n, dtype),
                size * 10.0,
                n,
            );
            assert_near(&u.cholesky_inverse_with(Triangle::Upper), &inverse, 1.0, n);
        }
    }
    Ok(())
}

#[test]
fn solving() -> Result<()> {
    for dtype in FLOATS {
        for n in SIZES {
            let a = positive(n as u64, &[2, 1, n, n], dtype);
            let size = 10.0 * (n + 1) as f64;
            let b = random(3, &[3, n, 4], dtype);
            let x = a.solve(&b);
            assert_eq!(x.shape()?, [2, 3, n, 4]);
            let wide = b.expand([2, 3, n as i64, 4]);
            assert_near(&a.matmul(&x), &wide, size, n);
            let x = a.solve_with(t(&b), Solve::new().left(false));
            assert_near(&x.matmul(&a), &t(&wide), size, n);
            let one = a.i((0, 0));
            let vector = random(4, &[n], dtype);
            assert_near(&one.mv(one.solve(&vector)), &vector, size, n);
            assert_near(&one.matmul(one.inv()), &identity(&[], n, dtype), size, n);
            for (triangle, unit) in [(Lower, false), (Lower, true), (Upper, false), (Upper, true)] {
                let upper = triangle == Upper;
                let mut whole = if upper { a.triu() } else { a.tril() };
                // Divided, so that the inverse of a unit triangle is not large.
                whole /= 2 * n as i64 + 1;
                if unit {
                    let diagonal = &whole * &identity(&[], n, dtype);
                    whole = whole - diagonal + identity(&[], n, dtype);
                }
                let other = if upper {
                    a.ones_like().tril_with(unit as i64 - 1)
                } else {
                    a.ones_like().triu_with(1 - unit as i64)
                };
                let read = kiln_tensor::where_(other.gt(0.0), other.full_like(f64::NAN), &whole);
                let x =
                    read.solve_triangular(&b, SolveTriangular::new(triangle).unitriangular(unit));
                assert_near(&whole.matmul(&x), &wide, size * 10.0, n);
                let x = read.solve_triangular(
                    t(&b),
                    SolveTriangular::new(triangle)
                        .left(false)
                        .unitriangular(unit),
                );
                assert_near(&x.matmul(&whole), &t(&wide), size * 10.0, n);
            }
        }
    }
    Ok(())
}

#[test]
fn determinants() -> Result<()> {
    for dtype in FLOATS {
        for n in [0, 1, 2, 3, 5, 17] {
            let a = random(n as u64, &[2, n, n], dtype);
            let (p, _, u) = a.lu();
            // The sign of a permutation is the determinant of its matrix.
            let diagonal = u.diagonal_with(Diagonal::new().dim1(-2).dim2(-1)).prod(-1);
            let det = a.det();
            assert_near(
                &(diagonal * p.det()),
                &det,
                det.abs().amax(()).to_dtype(DType::F64).item::<f64>()?,
                n,
            );
            let (sign, log) = a.slogdet();
            assert_near(&(&sign * &log.exp()), &det, 1e5, n);
            assert_near(
                &a.square().matmul(&a).slogdet().1,
                &a.square().matmul(&a).det().abs().log(),
                100.0,
                n,
            );
            let logdet = a.logdet().to_vec::<f64>();
            if let Ok(found) = logdet {
                for (l, d) in found.iter().zip(det.to_vec::<f64>()?) {
                    assert_eq!(l.is_nan(), d < 0.0);
                }
            }
        }
    }
    let singular = Tensor::from([[1.0, 2.0], [2.0, 4.0]]);
    assert_eq!(singular.det().item::<f64>()?, 0.0);
    let (sign, log) = singular.slogdet();
    assert_eq!(
        (sign.item::<f64>()?, log.item::<f64>()?),
        (0.0, f64::NEG_INFINITY)
    );
    assert_eq!(Tensor::zeros([3, 3], DType::F32).det().item::<f32>()?, 0.0);
    // A known determinant: an odd permutation.
    let swap = Tensor::from([[0.0, 1.0], [1.0, 0.0]]);
    assert_eq!(swap.det().item::<f64>()?, -1.0);
    Ok(())
}

#[test]
fn pseudo_inverses() -> Result<()> {
    each(|a, _, m, n| {
        let y = a.pinv();
        let size = 50.0;
        assert_near(&a.matmul(&y).matmul(&a), &a, size, m + n);
        assert_near(&t(&a.matmul(&y)), &a.matmul(&y), size, m + n);
        assert_near(&t(&y.matmul(&a)), &y.matmul(&a), size, m + n);
        Ok(())
    })?;
    // A matrix of rank 1: a column times a row.
    let a = random(1, &[4, 1], DType::F64).matmul(random(2, &[1, 3], DType::F64));
    let y = a.pinv();
    assert_near(&y.matmul(&a).matmul(&y), &y, 10.0, 7);
    assert_eq!(a.matrix_rank().item::<i64>()?, 1);
    let x = random(3, &[3, 3], DType::F64);
    let symmetric = x.tril() + t(&x.tril_with(-1));
    assert_near(
        &x.pinv_with(Rank::new().hermitian(true)),
        &symmetric.inv(),
        100.0,
        3,
    );
    Ok(())
}

#[test]
fn ranks_follow_their_tolerances() -> Result<()> {
    let a = Tensor::from([4.0, 2.0, 1.0, 0.0]).diag();
    let rank = |r: Tensor| r.item::<i64>();
    assert_eq!(rank(a.matrix_rank())?, 3);
    assert_eq!(rank(a.matrix_rank_with(Rank::new().hermitian(true)))?, 3);
    assert_eq!(rank(a.matrix_rank_with(Rank::new().atol(1.5)))?, 2);
    assert_eq!(rank(a.matrix_rank_with(Rank::new().rtol(0.5)))?, 1);
    let each = Tensor::from([0.5, 3.0]);
    let both = kiln_tensor::stack(&[&a, &a], 0);
    let found = both.matrix_rank_with(Rank::new().atol(&each));
    assert_eq!(found.to_vec::<i64>()?, [3, 1]);
    assert_eq!(rank(Tensor::zeros([0, 3], DType::F32).matrix_rank())?, 0);
    Ok(())
}

#[test]
fn least_squares() -> Result<()> {
    for (m, n) in [(5, 3), (3, 5), (4, 4), (17, 2)] {
        let a = random(m as u64, &[2, m, n], DType::F64);
        let b = random(n as u64, &[2, m, 2], DType::F64);
        let (x, residuals, rank, values) = a.lstsq(&b);
        // The residual is orthogonal to the columns of A.
        let off = a.matmul(&x) - &b;
        assert_near(&t(&a).matmul(&off), &x.zeros_like(), 1e2, m);
        if m > n {
            assert_near(&residuals, &off.square().sum(-2), 10.0, m);
        } else {
            assert_eq!(residuals.shape()?, [0]);
        }
        assert_eq!(rank.to_vec::<i64>()?, [m.min(n) as i64; 2]);
        assert_near(&values, &a.svdvals(), 10.0, m);
    }
    let (a, b) = (
        random(1, &[3, 5, 2], DType::F64),
        random(2, &[3, 5], DType::F64),
    );
    assert_eq!(a.lstsq(&b).0.shape()?, [3, 2]);
    Ok(())
}

#[test]
fn norms_and_condition_numbers() -> Result<()> {
    let a = random(1, &[3, 4, 5, 2], DType::F64);
    let values = a.permute([1, 3, 2, 0]).svdvals(); // [4, 2, 3]
    for (ord, expected) in [
        (MatrixNorm::Nuclear, values.sum(-1)),
        (MatrixNorm::Order(2.0), values.amax(-1)),
        (MatrixNorm::Order(-2.0), values.amin(-1)),
    ] {
        assert_near(&a.matrix_norm(ord, [2, 0]), &expected, 10.0, 5);
        assert_eq!(a.matrix_norm(ord, keep([2, 0])).shape()?, [1, 4, 1, 2]);
    }
    let d = Tensor::from([4.0, 2.0, 1.0]).diag();
    let number = |x: Tensor| x.item::<f64>();
    for (p, expected) in [
        (2.0, 4.0),
        (-2.0, 0.25),
        (1.0, 4.0),
        (f64::INFINITY, 4.0),
        (-1.0, 0.25),
    ] {
        assert!((number(d.cond(p))? - expected).abs() < 1e-12);
    }
    let fro = 21f64.sqrt() * (1.0f64 / 16.0 + 0.25 + 1.0).sqrt();
    assert!((number(d.cond(MatrixNorm::Frobenius))? - fro).abs() < 1e-12);
    assert!((number(d.cond(MatrixNorm::Nuclear))? - 7.0 * 1.75).abs() < 1e-12);
    let singular = Tensor::from([[1.0, 2.0], [2.0, 4.0]]);
    assert_eq!(number(singular.cond(1.0))?, f64::INFINITY);
    for p in [1.0, 2.0] {
        let none = Tensor::zeros([2, 0, 0], DType::F64).cond(p);
        assert_eq!(none.to_vec::<f64>()?, [0.0; 2]);
    }
    Ok(())
}

#[test]
fn powers_of_inverses() -> Result<()> {
    let a = positive(1, &[2, 3, 3], DType::F64);
    let inverse = a.inv();
    assert_near(&a.matrix_power(-1), &inverse, 0.0, 0);
    assert_near(
        &a.matrix_power(-3),
        &inverse.matmul(&inverse).matmul(&inverse),
        1.0,
        3,
    );
    Ok(())
}

#[test]
fn extreme_sizes_of_numbers() -> Result<()> {
    for (dtype, powers) in [(DType::F64, [300.0, -300.0]), (DType::F32, [37.0, -37.0])] {
        for power in powers {
            let scale = 10f64.powf(power);
            let a = positive(1, &[5, 5], dtype);
            let near = |x: Tensor, y: Tensor| assert_near(&(x / scale), &y, 100.0, 5);
            near((&a * scale).svdvals(), a.svdvals());
            near((&a * scale).eigvalsh(), a.eigvalsh());
        }
    }
    Ok(())
}
