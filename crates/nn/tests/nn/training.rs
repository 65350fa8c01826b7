//! Models that learn, lazily and compiled.

use crate::support::{assert_close, check_gradients, f64_module, random, values};
use kiln_nn::*;
use kiln_tensor::{DType, Reduction, Result, Tensor, compile};

#[derive(Module)]
struct Net {
    conv: Conv2d,
    norm: BatchNorm2d,
    drop: Dropout,
    head: Linear,
}

impl Net {
    fn new(dropout: f64) -> Result<Net> {
        Ok(Net {
            conv: Conv2d::new(1, 3, Kernel::new(3).padding(1))?,
            norm: BatchNorm2d::new(3)?,
            drop: Dropout::new(dropout).unwrap(),
            head: Linear::new(3 * 4 * 4, 2)?,
        })
    }
}

impl Forward for Net {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let x = self.norm.call(self.conv.call(x)).relu();
        Ok(self.head.call(self.drop.call(x.flatten(1))))
    }
}

/// Images whose brighter half is their label.
fn data() -> (Tensor, Tensor) {
    let labels: Vec<i64> = (0..16).map(|i| i % 2).collect();
    let noise = Tensor::rand([16, 1, 4, 4], DType::F32);
    let left = Tensor::from_slice(&[1f32, 1.0, 0.0, 0.0], [4]);
    let y = Tensor::from_slice(&labels, [16]);
    let side = y.to_dtype(DType::F32).reshape([16, 1, 1, 1]);
    let bright = &(&left * &side) + &(&(&left * -1.0 + 1.0) * &(&side * -1.0 + 1.0));
    let x = &noise + &bright;
    x.realize().unwrap();
    (x, y)
}

/// Makes one step of gradient descent, and returns the loss.
fn step(net: &Net, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    net.zero_grad();
    let loss = net.call(x).cross_entropy(y);
    loss.backward()?;
    for p in net.parameters() {
        if let Some(g) = p.grad() {
            p.assign(&(&p.get().detach() - &(&g * 0.1)))?;
        }
    }
    Ok(loss.detach())
}

#[test]
fn a_small_network_has_the_gradients_that_differences_give() {
    let net = f64_module(|| Net::new(0.0));
    let x = random([3, 1, 4, 4]);
    check_gradients(&net, &|| net.call(&x));
}

#[test]
fn a_training_loop_lowers_the_loss() {
    let net = Net::new(0.2).unwrap();
    let (x, y) = data();
    let losses: Vec<f32> = (0..40)
        .map(|_| step(&net, &x, &y).unwrap().item().unwrap())
        .collect();
    assert!(losses[39] < 0.3 * losses[0], "{losses:?}");
    net.eval();
    let found = net.call(&x).argmax(1);
    assert_eq!(found.to_vec::<i64>().unwrap(), y.to_vec::<i64>().unwrap());
    let batches = net.norm.num_batches_tracked.as_ref().unwrap().get();
    assert_eq!(batches.item::<i64>().unwrap(), 40);
}

#[test]
fn a_compiled_step_trains_as_a_lazy_one() {
    let (lazy, other) = (Net::new(0.0).unwrap(), Net::new(0.0).unwrap());
    other.load_state_dict(&lazy.state_dict(), true).unwrap();
    let (x, y) = data();
    let compiled = compile([&x, &y], |[x, y]| step(&other, &x, &y)).unwrap();
    for _ in 0..5 {
        let a: f32 = step(&lazy, &x, &y).unwrap().item().unwrap();
        let b: f32 = compiled.run([&x, &y]).unwrap().item().unwrap();
        assert!((a - b).abs() < 1e-4 * (1.0 + a.abs()), "{a} {b}");
    }
    for ((name, a), (_, b)) in lazy.state_dict().iter().zip(other.state_dict().iter()) {
        let (a, b) = (values(a), values(b));
        assert!(
            a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3),
            "{name}"
        );
    }
    let count = other.norm.num_batches_tracked.as_ref().unwrap().get();
    assert_eq!(count.item::<i64>().unwrap(), 5);
}

#[test]
fn a_frozen_part_does_not_move() {
    let net = Net::new(0.0).unwrap();
    net.conv.freeze();
    net.norm.freeze();
    let before = (net.conv.state_dict(), net.norm.state_dict());
    let (x, y) = data();
    let head = values(&net.head.weight.get());
    net.train();
    for _ in 0..3 {
        step(&net, &x, &y).unwrap().realize().unwrap();
    }
    for (old, now) in [
        (before.0, net.conv.state_dict()),
        (before.1, net.norm.state_dict()),
    ] {
        for ((name, a), (_, b)) in old.iter().zip(now.iter()) {
            assert_eq!(values(a), values(b), "{name}");
        }
    }
    assert_ne!(values(&net.head.weight.get()), head);
}

#[test]
fn a_shared_parameter_gets_the_sum_of_its_gradients() {
    let a = f64_module(|| Linear::with(2, 2, LinearOptions::new().bias(false)));
    let mut b = f64_module(|| Linear::with(2, 2, LinearOptions::new().bias(false)));
    b.weight = a.weight.clone();
    let model = sequential![a, b].unwrap();
    let x = random([3, 2]);
    check_gradients(&model, &|| model.call(&x));
    assert_eq!(model.num_parameters(), 4);
}

#[test]
fn loss_modules_are_the_functions_with_their_defaults() {
    let (x, y) = (random([4, 3]), random([4, 3]));
    let labels = Tensor::from_slice(&[0i64, 2, 1, 2], [4]);
    let p = x.sigmoid();
    let q = y.sigmoid();
    let pairs = [
        (MSELoss::new().call((&x, &y)), x.mse_loss(&y)),
        (L1Loss::new().call((&x, &y)), x.l1_loss(&y)),
        (SmoothL1Loss::new().call((&x, &y)), x.smooth_l1_loss(&y)),
        (HuberLoss::new().call((&x, &y)), x.huber_loss(&y)),
        (KLDivLoss::new().call((&x, &q)), x.kl_div(&q)),
        (BCELoss::new().call((&p, &q)), p.binary_cross_entropy(&q)),
        (
            BCEWithLogitsLoss::new().call((&x, &q)),
            x.binary_cross_entropy_with_logits(&q),
        ),
        (NLLLoss::new().call((&x, &labels)), x.nll_loss(&labels)),
        (
            CrossEntropyLoss::new().call((&x, &labels)),
            x.cross_entropy(&labels),
        ),
    ];
    for (found, wanted) in pairs {
        assert_close(&values(&found), &values(&wanted), 1e-12);
    }
    let sum = MSELoss::with(Reduction::Sum).unwrap();
    assert_close(
        &values(&sum.call((&x, &y))),
        &values(&x.mse_loss_with(&y, Reduction::Sum)),
        1e-12,
    );
}
