//! Reductions of gradients go on while the backward pass computes.

use crate::every;
use kiln_distributed::{
    DataParallelOptions, DistributedDataParallel, ReduceOp, all_reduce, barrier,
};
use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::{Forward, Linear, Module, sequential};
use kiln_tensor::{DType, Result, Spec, Tensor, compile};

#[test]
fn the_plan_starts_a_bucket_before_the_last_gradient() {
    every(2, |rank| {
        let layer = || Linear::new(96, 96);
        let net = sequential![layer(), layer(), layer(), layer()]?;
        // A bucket for each layer.
        let options = DataParallelOptions::new().bucket_cap_mb(0.04);
        let ddp = DistributedDataParallel::with(net, options)?;
        let mut opt = Optimizer::new(ddp.parameters(), SGD::new().lr(0.1))?;
        let step = compile(Spec::new(DType::F32, (32, 96)), |x| {
            let loss = ddp.call(x).square().mean(());
            loss.backward()?;
            opt.step()?;
            opt.zero_grad();
            Result::Ok(loss)
        })?;
        let kernels = &step.explain().kernels;
        let names: Vec<&str> = kernels.iter().map(|k| &k.name[..]).collect();
        let places = |of: &str| -> Vec<usize> {
            let all = names.iter().enumerate();
            all.filter(|(_, n)| **n == of).map(|(i, _)| i).collect()
        };
        let (reductions, products) = (places("all_reduce"), places("matmul"));
        assert_eq!(reductions.len(), 4, "{names:?}");
        // Before the first reduction there are the products of the forward pass, and one gradient of a weight.
        let later = products.iter().filter(|p| **p > reductions[0]).count();
        assert!(later >= 5, "{names:?}");
        let x = Tensor::full([32, 96], 1.0 + rank as f64, DType::F32);
        let losses = (0..3).map(|_| step.run(&x)?.item::<f32>());
        let losses = losses.collect::<Result<Vec<_>>>()?;
        assert!(losses[2] < losses[0], "{losses:?}");
        barrier()
    });
}

#[test]
fn results_are_those_of_their_operation_whatever_is_read_first() {
    every(3, |rank| {
        let n = 1000;
        let x = Tensor::arange(0, n, 1).to_dtype(DType::F64) + rank as f64;
        // Memory of one may be another's, as soon as its result was read.
        let sums: Vec<Tensor> = (0..6)
            .map(|i| all_reduce(&x * i as f64, ReduceOp::Sum))
            .collect();
        let mut total = Tensor::zeros([n], DType::F64);
        for i in [5, 0, 3, 1, 4, 2] {
            total = total.sqrt().square() + &sums[i] * (i as f64 + 1.0);
        }
        let found = total.to_vec::<f64>()?;
        for (at, y) in found.iter().enumerate() {
            let sum = 3.0 * at as f64 + 3.0;
            let right: f64 = (0..6).map(|i| (i * (i + 1)) as f64 * sum).sum();
            assert!((y - right).abs() <= 1e-9 * right.abs(), "{y}, not {right}");
        }
        Ok(())
    });
}
