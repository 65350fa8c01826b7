//! Second derivatives of losses that have a form of their own for the gradient, and at zeros, kinks and distant
//! operands.

use kiln::{
    DType, Grad, Huber, Reduction, ScatterReduction, SmoothL1, Tensor, grad, grad_with,
    gradgradcheck, hessian,
};

/// The diagonal of the Hessian matrix of `f` at a vector.
fn curvatures(f: impl Fn(Tensor) -> Tensor, at: &[f64]) -> Vec<f64> {
    let matrix = hessian(f, Tensor::from_slice(at, [at.len()])).unwrap();
    matrix.diagonal().to_vec::<f64>().unwrap()
}

#[test]
fn binary_cross_entropy() {
    let (p, y) = (Tensor::from([0.6]), Tensor::from([0.3]));
    let found = curvatures(|p| p.binary_cross_entropy(&y), &[0.6]);
    let wanted = 0.3 / 0.36 + 0.7 / 0.16;
    assert!((found[0] - wanted).abs() < 1e-12, "{found:?}");
    let (p, y) = (p.requires_grad_(true), y.requires_grad_(true));
    let options = Grad::new().create_graph(true);
    let slope = grad_with(p.binary_cross_entropy(&y), &p, options).unwrap();
    let mixed = grad(&slope, &y).unwrap().item::<f64>().unwrap();
    assert!((mixed + 1.0 / 0.24).abs() < 1e-12, "{mixed}");
    let of_logits = |x: Tensor| {
        let (x, y) = (x.select(0, 0), x.select(0, 1));
        x.sigmoid().binary_cross_entropy(y.sigmoid())
    };
    gradgradcheck(of_logits, Tensor::from([[0.3, -1.0], [0.5, 2.0]])).unwrap();
}

#[test]
fn residuals_of_zero() {
    let (x, y) = ([0.0, 0.5, 4.0], Tensor::zeros([3], DType::F64));
    let sum = Reduction::Sum;
    let huber = |x: Tensor| x.huber_loss_with(&y, Huber::new().reduction(sum));
    assert_eq!(curvatures(huber, &x), [1.0, 1.0, 0.0]);
    let smooth = |x: Tensor| x.smooth_l1_loss_with(&y, SmoothL1::new().beta(2.0).reduction(sum));
    assert_eq!(curvatures(smooth, &x), [0.5, 0.5, 0.0]);
}

#[test]
fn products_with_zeros() {
    let index = Tensor::from([0i64, 0, 1]);
    let (ones, kind) = (Tensor::ones([2], DType::F64), ScatterReduction::Prod);
    for x in [[2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [0.0; 3]] {
        let x = Tensor::from(x);
        gradgradcheck(|x: Tensor| x.cumprod(0), &x).unwrap();
        gradgradcheck(|x: Tensor| x.prod(()), &x).unwrap();
        gradgradcheck(|x: Tensor| ones.scatter_reduce(0, &index, x, kind), &x).unwrap();
        gradgradcheck(|x: Tensor| ones.index_reduce(0, &index, x, kind), &x).unwrap();
    }
}

#[test]
fn ends_and_far_operands() {
    let x = Tensor::from([0.0, 0.5, 1.0]).requires_grad_(true);
    let slopes = grad(x.logit().sum(()), &x).unwrap();
    let (end, x) = (f64::INFINITY, Tensor::from([300.0, -2.0]));
    assert_eq!(slopes.to_vec::<f64>().unwrap(), [end, 4.0, end]);
    gradgradcheck(|x: Tensor| x.logaddexp(&x * -3.0), &x).unwrap();
    let flat = -std::f64::consts::PI.powi(2) / 3.0;
    for found in curvatures(|x| x.sinc().sum(()), &[0.0, 1e-9]) {
        assert!((found - flat).abs() < 1e-12, "{found}");
    }
}
