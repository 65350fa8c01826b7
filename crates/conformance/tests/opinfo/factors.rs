//! Linear algebra of tensors on a GPU, whose values are factored on the host.

use kiln_tensor::{Backward, DType, Device, Rank, Result, Tensor, realize_first, with_seed};

/// Something of each kind, from matrices that are positive-definite.
fn results(a: &Tensor, b: &Tensor) -> Vec<Tensor> {
    let (q, r) = a.qr();
    let (p, l, u) = a.lu();
    let (_, s, _) = a.svd();
    vec![
        a.inv(),
        a.solve(b),
        a.cholesky(),
        q.matmul(&r),
        p.matmul(&l).matmul(&u),
        s,
        a.eigvalsh(),
        a.det(),
        a.slogdet().1,
        a.pinv_with(Rank::new().rtol(1e-9)),
        a.matrix_norm(2.0, [-2, -1]),
        a.matrix_power(-2),
        a.cond(1.0),
        a.lstsq(b).0,
    ]
}

fn values_and_gradient(device: Device) -> Result<Vec<Vec<f64>>> {
    let x = with_seed(1, || Tensor::randn([2, 3, 3], DType::F64));
    let b = with_seed(2, || Tensor::randn([2, 3, 2], DType::F64)).to(device);
    let x = x.to(device).requires_grad_(true);
    let a = x.matmul(x.transpose(-1, -2)) + Tensor::eye(3, DType::F64);
    let found = results(&a, &b);
    for y in &found {
        assert_eq!(y.device(), device);
        y.sum(())
            .backward_with(Backward::new().retain_graph(true))?;
    }
    let gradient = x.grad();
    // In one program, which NVRTC compiles faster than many.
    realize_first(found.iter().chain(&gradient))?;
    let all = found.iter().chain(&gradient).map(Tensor::to_vec::<f64>);
    all.collect()
}

#[test]
fn a_gpu_gets_what_the_host_computes() -> Result<()> {
    let Some(device) = crate::gpu::device() else {
        return Ok(());
    };
    let (here, there) = (
        values_and_gradient(Device::Cpu)?,
        values_and_gradient(device)?,
    );
    assert_eq!(here.len(), there.len());
    for (h, t) in here.iter().zip(&there) {
        for (h, t) in h.iter().zip(t) {
            assert!((h - t).abs() <= 1e-6 * (1.0 + h.abs()), "{h} {t}");
        }
    }
    Ok(())
}
