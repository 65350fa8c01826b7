//! `checkpoint`: the same gradients from less memory.

use crate::vector;
use kiln::nn::{BatchNorm1d, Forward, Linear, Module};
use kiln::{DType, Grad, Spec, Tensor, Var, checkpoint, compile, grad, grad_with, scan, with_seed};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn random(shape: &[usize], seed: u64) -> Tensor {
    with_seed(seed, || Tensor::randn(shape, DType::F64))
}

/// Dropout, a product with a parameter and a captured tensor: everything that a block may contain.
fn block(x: &Tensor, w: &Var, offset: &Tensor) -> Tensor {
    (x.matmul(w.get()).tanh() + offset).dropout(0.5).sin()
}

#[test]
fn gradients_are_those_without() {
    for read in [false, true] {
        let mut found = Vec::new();
        for checkpointed in [false, true] {
            let w = Var::parameter(random(&[4, 4], 1)).unwrap();
            let x = random(&[3, 4], 2).requires_grad_(true);
            let offset = random(&[4], 3).requires_grad_(true);
            let shifted = &offset * 2.0;
            let loss = with_seed(4, || {
                let mut y = x.clone();
                for _ in 0..3 {
                    y = match checkpointed {
                        true => checkpoint(|y: Tensor| block(&y, &w, &shifted), y),
                        false => block(&y, &w, &shifted),
                    };
                }
                y.square().sum(())
            });
            if read {
                loss.item::<f64>().unwrap();
            }
            loss.backward().unwrap();
            let grads = [w.grad(), x.grad(), offset.grad()].map(|g| g.unwrap());
            found.push((loss, grads));
        }
        let [(a, without), (b, with)] = &found[..] else {
            panic!()
        };
        assert_eq!(a.item::<f64>().unwrap(), b.item::<f64>().unwrap());
        for (a, b) in without.iter().zip(with) {
            assert_eq!(a.to_vec::<f64>().unwrap(), b.to_vec::<f64>().unwrap());
        }
    }
}

#[test]
fn several_inputs_and_outputs_second_derivatives_and_loops() {
    let (x, y) = (random(&[3], 5), random(&[3], 6));
    let run = |x: &[Tensor]| {
        let (a, (b, c)) = checkpoint(
            |(x, y): (Tensor, Tensor)| {
                let (last, ()) = scan(x.sum(()), y.clone(), |s, y| ((s * y).sin(), ()));
                let free = x.detach() * 3.0;
                (&x * &y, (x.exp() * last + free * &x, y))
            },
            (&x[0], &x[1]),
        );
        (a * b + c.square()).sum(())
    };
    let plain = |x: &[Tensor]| {
        let (last, ()) = scan(x[0].sum(()), x[1].clone(), |s, y| ((s * y).sin(), ()));
        let free = x[0].detach() * 3.0;
        let b = x[0].exp() * last + free * &x[0];
        (&x[0] * &x[1] * b + x[1].square()).sum(())
    };
    let twice = |f: &dyn Fn(&[Tensor]) -> Tensor| {
        let x = [&x, &y].map(|t| t.requires_grad_(true));
        let once = grad_with(f(&x), &x, Grad::new().create_graph(true)).unwrap();
        let sum = once.iter().map(|g| g.sin().sum(()));
        let again = grad(sum.reduce(|a, b| a + b).unwrap(), &x).unwrap();
        let all = once.iter().chain(&again);
        all.flat_map(|g| g.to_vec::<f64>().unwrap())
            .collect::<Vec<f64>>()
    };
    for (a, b) in twice(&run).iter().zip(twice(&plain)) {
        assert!((a - b).abs() <= 1e-12 * (1.0 + b.abs()), "{a} {b}");
    }
}

#[test]
fn what_a_block_assigns_is_assigned_once_and_hooks_are_called() {
    let norm = BatchNorm1d::new(2).unwrap();
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 5.0], [2, 2]).requires_grad_(true);
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = seen.clone();
    let y = checkpoint(
        |x: Tensor| {
            let y = norm.call(&x);
            let hook = move |_: &Tensor| {
                counter.fetch_add(1, Ordering::Relaxed);
                None
            };
            y.register_hook(hook).unwrap();
            y.exp()
        },
        x.clone(),
    );
    y.sum(()).backward().unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap().len(), 4);
    let mean = norm
        .named_buffers()
        .into_iter()
        .find(|(n, _)| n == "running_mean")
        .unwrap()
        .1;
    let mean = mean.get().to_vec::<f32>().unwrap();
    assert!(
        (mean[0] - 0.2).abs() < 1e-6 && (mean[1] - 0.35).abs() < 1e-6,
        "{mean:?}"
    );
}

/// The planned peak of a training step of a deep stack, and its gradients.
fn step(checkpointed: bool) -> (usize, Vec<f32>) {
    let layers: Vec<Linear> = with_seed(7, || {
        (0..12).map(|_| Linear::new(32, 32).unwrap()).collect()
    });
    let spec = Spec::new(DType::F32, [64, 32]);
    let compiled = compile(spec, |x| {
        let mut y = x.clone();
        for segment in layers.chunks(3) {
            let run = |y: Tensor| segment.iter().fold(y, |y, l| l.call(&y).tanh());
            y = match checkpointed {
                true => checkpoint(run, y),
                false => run(y),
            };
        }
        y.square().sum(()).backward()?;
        let weights = layers
            .iter()
            .map(|l| l.named_parameters()[0].1.grad().unwrap());
        kiln::Result::Ok(weights.collect::<Vec<Tensor>>())
    })
    .unwrap();
    let x = with_seed(8, || Tensor::randn([64, 32], DType::F32));
    let grads = compiled.run(&x).unwrap();
    let peak = compiled.explain().memory.unwrap().peak;
    (
        peak,
        grads
            .iter()
            .flat_map(|g| g.to_vec::<f32>().unwrap())
            .collect(),
    )
}

#[test]
fn the_planned_peak_is_lower() {
    let ((plain, wanted), (peak, found)) = (step(false), step(true));
    // Twelve activations compared with four and those of one segment, of 8 KiB each.
    assert!(
        peak + 3 * 8192 <= plain,
        "{peak} bytes with checkpoints, {plain} without"
    );
    for (a, b) in found.iter().zip(&wanted) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{a} {b}");
    }
}

#[test]
fn what_needs_no_gradient_is_just_called() {
    let x = vector(&[1.0, 2.0]);
    let y = checkpoint(|x: Tensor| x * 2.0, x.clone());
    assert!(!y.requires_grad());
    assert_eq!(y.to_vec::<f32>().unwrap(), [2.0, 4.0]);
    let same = checkpoint(|x: Tensor| x, x.requires_grad_(true));
    same.sum(()).backward().unwrap();
}
