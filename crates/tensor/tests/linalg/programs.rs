//! Linear algebra in programs: compiled, with open sizes, and with other operations.

use crate::{assert_near, positive, random};
use kiln_tensor::{DType, Result, Spec, Svd, Tensor, Var, compile, evaluate_reference};

#[test]
fn batches_may_be_left_open() -> Result<()> {
    let spec = Spec::new(DType::F64, ("batch", 3, 3));
    let f = compile(spec, |x| {
        let a = x.matmul(x.transpose(-1, -2)) + Tensor::eye(3, DType::F64);
        let (q, r) = a.qr();
        let (_, s, _) = a.svd_with(Svd::new().full_matrices(false));
        let (p, l, u) = a.lu();
        [
            a.inv(),
            a.det(),
            a.cholesky(),
            q.matmul(&r),
            s.sum(-1),
            p.matmul(&l).matmul(&u),
            a.eigh().0,
            a.pinv(),
            a.slogdet().1,
            a.solve(Tensor::ones([3, 2], DType::F64)),
        ]
    })?;
    for batch in [2, 5, 3] {
        let x = random(batch as u64, &[batch, 3, 3], DType::F64);
        let y = f.run(&x)?;
        let a = x.matmul(x.transpose(-1, -2)) + Tensor::eye(3, DType::F64);
        let near = |found: &Tensor, expected: &Tensor| assert_near(found, expected, 1e3, 3);
        near(&y[0], &a.inv());
        near(&y[1], &a.det());
        near(&y[2], &a.cholesky());
        near(&y[3], &a);
        near(&y[4], &a.svdvals().sum(-1));
        near(&y[5], &a);
        near(&y[6], &a.eigvalsh());
        near(&y[7], &a.inv());
        near(&y[8], &a.det().log());
        near(&y[9], &a.inv().matmul(Tensor::ones([3, 2], DType::F64)));
    }
    Ok(())
}

#[test]
fn square_matrices_of_open_size() -> Result<()> {
    let spec = Spec::new(DType::F64, ["n", "n"]);
    let f = compile(&spec, |x| [x.inv(), x.cholesky()])?;
    let factors = compile(&spec, |x| x.qr().1);
    let e = factors.err().unwrap().to_string();
    assert!(e.contains("factors of [n, n] need known sizes"), "{e}");
    for n in [2, 5] {
        let a = positive(n as u64, &[n, n], DType::F64);
        let y = f.run(&a)?;
        assert_near(&y[0], &a.inv(), 10.0, n);
        assert_near(&y[1], &a.cholesky(), 10.0, n);
    }
    Ok(())
}

#[test]
fn the_reference_agrees() -> Result<()> {
    let a = positive(1, &[2, 4, 4], DType::F32);
    let y = (a.inv() * 2.0 + 1.0).relu().matmul(a.cholesky());
    let reference = evaluate_reference(&y)?;
    assert_near(&y, &reference.to_dtype(DType::F32), 100.0, 4);
    Ok(())
}

#[test]
fn a_factor_is_trained() -> Result<()> {
    // The Gaussian of maximum likelihood has the covariance of the data.
    let x = random(2, &[500, 2], DType::F64).matmul(Tensor::from([[1.0, 0.5], [0.0, 0.7]]));
    let covariance = x.transpose(0, 1).matmul(&x) / 500.0;
    let precision = Var::parameter(Tensor::eye(2, DType::F64))?;
    for _ in 0..1000 {
        let p = precision.get();
        let symmetric = (&p + p.transpose(0, 1)) * 0.5;
        let loss = (&symmetric * &covariance).sum(()) - symmetric.logdet();
        precision.zero_grad();
        loss.backward()?;
        let g = precision.grad().unwrap();
        precision.sub_(&(g * 0.3))?;
    }
    assert_near(&precision.get().inv(), &covariance, 1e6, 2);
    Ok(())
}
