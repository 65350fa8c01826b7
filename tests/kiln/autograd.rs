//! Gradients of recorded tensors: leaves, accumulation, modes, hooks, and one plan for a whole step.

use kiln::{
    Backward, Conv, DType, Grad, GradCheck, Spec, Tensor, Var, compile, custom_function, grad,
    grad_with, gradcheck_with, jvp, keep, no_grad, vjp,
};

fn leaf(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len()]).requires_grad_(true)
}

fn values(t: &Tensor) -> Vec<f32> {
    t.to_vec().unwrap()
}

#[test]
fn gradients_accumulate_until_cleared() {
    let x = leaf(&[1.0, 2.0]);
    for _ in 0..2 {
        x.square().sum(()).backward().unwrap();
    }
    assert_eq!(values(&x.grad().unwrap()), [4.0, 8.0]);
    x.zero_grad();
    assert!(x.grad().is_none());
    // The worked example: z = x + y with a given gradient.
    let (x, y) = (leaf(&[1.0, 2.0, 3.0]), leaf(&[4.0, 5.0, 6.0]));
    let g = Tensor::from_slice(&[0.1f32, 1.0, 10.0], [3]);
    (&x + &y)
        .backward_with(Backward::new().gradient(&g))
        .unwrap();
    assert_eq!(values(&x.grad().unwrap()), [0.1, 1.0, 10.0]);
    assert_eq!(values(&y.grad().unwrap()), [0.1, 1.0, 10.0]);
}

#[test]
fn only_leaves_keep_gradients_unless_asked() {
    let x = leaf(&[3.0]);
    let middle = x.square();
    let kept = &middle * 2.0;
    kept.retain_grad();
    kept.square().sum(()).backward().unwrap();
    assert!(middle.grad().is_none());
    assert_eq!(values(&kept.grad().unwrap()), [36.0]);
    assert!(x.is_leaf() && !middle.is_leaf() && middle.requires_grad());
}

#[test]
fn detach_and_no_grad_cut() {
    let x = leaf(&[2.0]);
    let y = &x * &x.detach();
    y.sum(()).backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [2.0]);
    let cut = no_grad(|| x.square());
    assert!(!cut.requires_grad());
    let e = cut.backward().unwrap_err().to_string();
    assert!(
        e.contains("does not depend on anything that requires gradients"),
        "{e}"
    );
}

#[test]
fn a_graph_is_differentiated_once_unless_retained() {
    let x = leaf(&[2.0]);
    let y = x.square().sum(());
    y.backward_with(Backward::new().retain_graph(true)).unwrap();
    y.backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [8.0]);
    let e = y.backward().unwrap_err().to_string();
    assert!(
        e.contains("released by an earlier backward") && e.contains("retain_graph"),
        "{e}"
    );
}

#[test]
fn wrong_calls_are_errors_at_the_users_line() {
    let e = leaf(&[1.0, 2.0])
        .square()
        .backward()
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("more than one element") && e.contains("autograd.rs"),
        "{e}"
    );
    let whole = Tensor::arange(0, 3, 1).requires_grad_(true);
    assert!(
        whole
            .to_vec::<i64>()
            .unwrap_err()
            .to_string()
            .contains("only float tensors")
    );
    let middle = leaf(&[1.0]).square().requires_grad_(false);
    assert!(
        middle
            .to_vec::<f32>()
            .unwrap_err()
            .to_string()
            .contains("only leaves")
    );
    let x = leaf(&[1.0]);
    let wrong = Tensor::zeros([2], DType::F32);
    assert!(x.set_grad(&wrong).is_err());
    let e = x
        .square()
        .backward_with(Backward::new().gradient(&wrong))
        .unwrap_err();
    assert!(e.to_string().contains("can't be f32[2]"), "{e}");
    let e = Tensor::ones([1], DType::F32)
        .register_hook(|_| None)
        .err()
        .unwrap();
    assert!(e.to_string().contains("never be called"), "{e}");
}

#[test]
fn hooks_see_and_replace_gradients() {
    let x = leaf(&[1.0, 1.0]);
    let y = &x * 3.0;
    let double = y.register_hook(|g| Some(g * 2.0)).unwrap();
    y.sum(()).backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [6.0, 6.0]);
    double.remove();
    x.zero_grad();
    let _ = x.register_hook(|g| Some(g.sum(keep(())))).unwrap();
    let e = (&x * 3.0).sum(()).backward().unwrap_err().to_string();
    assert!(e.contains("dtype and shape must stay"), "{e}");
}

#[test]
fn custom_derivatives_are_checked() {
    let x = leaf(&[0.5, 1.5]);
    let doubled = custom_function(
        |x: Tensor| {
            let y = &x * 2.0;
            (y.clone(), (x, y))
        },
        |(x, y), g: Tensor| g * x + y * 0.0,
    );
    doubled.apply(&x).sum(()).backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [0.5, 1.5]);
    let doubled = custom_function(|x: Tensor| (x * 2.0, ()), |(), g: Tensor| (g.clone(), g));
    let e = doubled
        .apply(&x)
        .sum(())
        .backward()
        .unwrap_err()
        .to_string();
    assert!(e.contains("gradient 0 is that of no input"), "{e}");
}

#[test]
fn second_order_and_products() {
    let x = Tensor::from_slice(&[0.3f64, -1.2, 2.0], [3]).requires_grad_(true);
    let f = |x: &Tensor| (&(x * x) * &x.sin()).sum(());
    let dx = grad_with(f(&x), &x, Grad::new().create_graph(true)).unwrap();
    let ddx = grad(dx.sum(()), &x).unwrap();
    // (x² sin x)'' = 2 sin x + 4x cos x − x² sin x
    for (x, got) in [0.3f64, -1.2, 2.0].iter().zip(ddx.to_vec::<f64>().unwrap()) {
        let wanted = 2.0 * x.sin() + 4.0 * x * x.cos() - x * x * x.sin();
        assert!((got - wanted).abs() < 1e-12, "{got} {wanted}");
    }
    let x = Tensor::from_slice(&[1.0f64, 2.0], [2]);
    let v = Tensor::from_slice(&[0.5f64, -1.0], [2]);
    let f = |x: Tensor| x.exp();
    let (_, tangent) = jvp(f, &x, &v).unwrap();
    let (_, pull) = vjp(f, &x).unwrap();
    let cotangent = pull.call(&v).unwrap();
    assert_eq!(
        tangent.to_vec::<f64>().unwrap(),
        cotangent.to_vec::<f64>().unwrap()
    );
    let bounds = GradCheck::new().atol(1e-7).rtol(1e-5);
    gradcheck_with(|x: Tensor| x.tanh().prod(()), &x, bounds.clone()).unwrap();
    let wrong = custom_function(|x: Tensor| (x.square(), ()), |(), g: Tensor| g);
    let e = gradcheck_with(|x| wrong.apply(x), &x, bounds)
        .unwrap_err()
        .to_string();
    assert!(e.contains("central differences give"), "{e}");
}

/// Second derivatives of a network with convolution, batch norm and softmax.
#[test]
fn second_order_of_a_network() {
    let ramp = |n: usize, shape: &[usize], by: f64| {
        let v: Vec<f64> = (0..n)
            .map(|i| ((i * 7 + 3) % 11) as f64 * by - 0.4)
            .collect();
        Tensor::from_slice(&v, shape)
    };
    let x = ramp(2 * 2 * 4 * 4, &[2, 2, 4, 4], 0.1);
    let weight = ramp(3 * 2 * 9, &[3, 2, 3, 3], 0.07);
    let gamma = ramp(3, &[3], 0.2);
    let network = |[weight, gamma]: [Tensor; 2]| {
        let y = x.conv2d_with(&weight, Conv::new().padding(1));
        let mean = y.mean(keep([0, 2, 3]));
        let var = (&y - &mean).square().mean(keep([0, 2, 3]));
        let y = &(&(&y - &mean) / &(&var + 1e-3).sqrt()) * &gamma.reshape([1, 3, 1, 1]);
        y.tanh().flatten(1).softmax(1).square().sum(())
    };
    let slopes = |p: [Tensor; 2]| {
        let p = p.map(|p| match p.requires_grad() {
            true => p,
            false => p.requires_grad_(true),
        });
        let found = grad_with(network(p.clone()), &p, Grad::new().create_graph(true)).unwrap();
        let [a, b] = found.map(|g| g.square().sum(()));
        a + b
    };
    let bounds = GradCheck::new().eps(1e-5).atol(1e-6).rtol(1e-4);
    gradcheck_with(slopes, [&weight, &gamma], bounds).unwrap();
}

#[test]
fn a_lazy_loop_trains() {
    let weight = Var::parameter(Tensor::from_slice(&[0.5f32, -0.5], [2, 1])).unwrap();
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2]);
    let target = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3, 1]);
    let step = || {
        weight.zero_grad();
        let loss = (&x.matmul(weight.get()) - &target).square().mean(());
        loss.backward().unwrap();
        let updated = no_grad(|| &weight.get() - &(&weight.grad().unwrap() * 0.01));
        weight.assign(&updated).unwrap();
        loss.item::<f32>().unwrap()
    };
    let losses: Vec<f32> = (0..20).map(|_| step()).collect();
    assert!(losses.windows(2).all(|w| w[1] < w[0]), "{losses:?}");
}

#[test]
fn a_compiled_step_trains_and_starts_with_empty_gradients() {
    let weight = Var::parameter(Tensor::zeros([2, 1], DType::F32)).unwrap();
    let specs = (
        Spec::new(DType::F32, ("n", 2)),
        Spec::new(DType::F32, ("n", 1)),
    );
    let step = compile(specs, |(x, y)| {
        assert!(weight.grad().is_none());
        let loss = (x.matmul(&weight) - y).square().mean(());
        loss.backward()?;
        let g = weight.grad().unwrap();
        weight.assign(no_grad(|| &weight.get() - &(&g * 0.02)))?;
        kiln::Result::Ok(loss)
    })
    .unwrap();
    assert!(
        weight.grad().is_none(),
        "the recording's gradient stays in it"
    );
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2]);
    let y = Tensor::from_slice(&[3.0f32, 7.0, 11.0], [3, 1]);
    let mut loss = f32::INFINITY;
    for _ in 0..200 {
        let next = step.run((&x, &y)).unwrap().item::<f32>().unwrap();
        assert!(next <= loss);
        loss = next;
    }
    let w = values(&weight.get());
    assert!(
        loss < 1e-3 && (w[0] - 1.0).abs() < 0.1 && (w[1] - 1.0).abs() < 0.1,
        "{loss} {w:?}"
    );
}

#[test]
fn frozen_cells_and_several_outputs() {
    let (a, b) = (
        Var::parameter(Tensor::ones([2], DType::F32)).unwrap(),
        Var::parameter(Tensor::ones([2], DType::F32)).unwrap(),
    );
    b.requires_grad_(false).unwrap();
    (&a.get() * &b.get()).sum(()).backward().unwrap();
    assert!(a.grad().is_some() && b.grad().is_none());
    let x = leaf(&[1.0, 2.0, 3.0]);
    let unused = leaf(&[1.0]);
    let (y, z) = (x.square(), &x * 10.0);
    let ones = Tensor::ones([3], DType::F32);
    let options = Grad::new().grad_outputs((&ones, &ones));
    let (dx, none) = grad_with((&y, &z), (&x, Some(&unused)), options).unwrap();
    assert_eq!(values(&dx), [12.0, 14.0, 16.0]);
    assert!(none.is_none());
    assert!(
        Var::new(Tensor::arange(0, 3, 1))
            .unwrap()
            .requires_grad_(true)
            .is_err()
    );
}

#[test]
fn long_chains_are_dropped_and_differentiated() {
    let x = leaf(&[1.0]);
    let mut y = x.clone();
    for _ in 0..20_000 {
        y = &y + 1.0;
    }
    drop(y.clone());
    y.sum(()).backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [1.0]);
}

/// The number of times that `explain` lists an op in the program for these tensors.
fn count(op: &str, tensors: &[Tensor]) -> usize {
    let text = kiln::explain(tensors).unwrap().to_string();
    text.matches(&format!("    {op} ")).count()
}

#[test]
fn a_loss_that_is_read_before_backward_leaves_what_backward_needs() {
    let normal = |shape: &[usize]| {
        let t = Tensor::randn(shape, DType::F32);
        t.realize().unwrap();
        t
    };
    let leaf = |shape: &[usize]| normal(shape).requires_grad_(true);
    let (x, t) = (normal(&[8, 5]), normal(&[8, 3]));
    let p = [leaf(&[5, 7]), leaf(&[7]), leaf(&[7, 3]), leaf(&[3])];
    let mlp = || {
        let h = (x.matmul(&p[0]) + &p[1]).gelu();
        let y = h.matmul(&p[2]) + &p[3];
        y.mse_loss(&t)
    };
    let image = normal(&[2, 3, 6, 6]);
    let q = [leaf(&[4, 3, 3, 3]), leaf(&[4]), leaf(&[5, 4, 3, 3])];
    let cnn = || {
        let y = image.conv2d_with(&q[0], Conv::new().padding(1));
        let mean = y.mean(keep([0, 2, 3]));
        let var = (&y - &mean).square().mean(keep([0, 2, 3]));
        let y = (&y - &mean) * (var + 1e-3).rsqrt() * q[1].reshape([1, 4, 1, 1]);
        let y = y.relu().conv2d_with(&q[2], Conv::new().padding(1));
        y.flatten(1).log_softmax(1).square().sum(())
    };
    let check = |loss: &dyn Fn() -> Tensor, leaves: &[Tensor], op: &str, counts: [usize; 2]| {
        let backward = |read: bool| {
            let loss = loss();
            if read {
                loss.realize().unwrap();
            }
            leaves.iter().for_each(Tensor::zero_grad);
            loss.backward().unwrap();
            let gradients: Vec<Tensor> = leaves.iter().map(|l| l.grad().unwrap()).collect();
            let products = count(op, &gradients);
            (products, gradients.iter().map(values).collect::<Vec<_>>())
        };
        let ((all, wanted), (rest, found)) = (backward(false), backward(true));
        assert_eq!([all, rest], counts, "{op}");
        for (a, b) in found.iter().zip(&wanted) {
            crate::assert_close(a, b);
        }
    };
    check(&mlp, &p, "matmul", [5, 3]);
    // The gradients of convolutions are ops of other names.
    check(&cnn, &q, "conv", [2, 0]);
}

#[test]
fn a_read_before_backward_calls_no_hook_and_no_derivative() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = |calls: &Arc<AtomicUsize>| {
        let calls = calls.clone();
        move || calls.fetch_add(1, Ordering::Relaxed)
    };
    let x = leaf(&[1.0, 2.0]);
    let hook = counted(&calls);
    let _handle = x.register_hook(move |_| {
        hook();
        None
    });
    let derivative = counted(&calls);
    let exp = custom_function(
        |x: Tensor| (x.exp(), x.exp()),
        move |y: Tensor, g: Tensor| {
            derivative();
            g * y
        },
    );
    let loss = exp.apply(&x).sum(());
    loss.realize().unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    loss.backward().unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert_eq!(values(&x.grad().unwrap()), values(&x.exp()));
}
