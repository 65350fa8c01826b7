//! Batch and instance norms: the four combinations, lazily and compiled.

use crate::support::{assert_close, check_gradients, f64_module, held, random, values};
use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::*;
use kiln_tensor::{DType, Spec, Tensor, compile};

/// Mean and biased variance of each channel of `[n, c, l]`.
fn statistics(x: &[f64], [n, c, l]: [usize; 3]) -> (Vec<f64>, Vec<f64>) {
    let channel = |j: usize| (0..n).flat_map(move |i| (0..l).map(move |k| x[(i * c + j) * l + k]));
    let count = (n * l) as f64;
    let mean: Vec<f64> = (0..c).map(|j| channel(j).sum::<f64>() / count).collect();
    let var = (0..c).map(|j| channel(j).map(|v| (v - mean[j]).powi(2)).sum::<f64>() / count);
    let var = var.collect();
    (mean, var)
}

fn normalised(x: &[f64], [_, c, l]: [usize; 3], mean: &[f64], var: &[f64]) -> Vec<f64> {
    let value = |(at, v): (usize, &f64)| {
        let j = at / l % c;
        (v - mean[j]) / (var[j] + 1e-5).sqrt()
    };
    x.iter().enumerate().map(value).collect()
}

const SHAPE: [usize; 3] = [4, 3, 5];

#[test]
fn the_four_combinations_of_training_and_running_statistics() {
    for (training, track) in [(true, true), (true, false), (false, true), (false, false)] {
        let layer =
            f64_module(|| BatchNorm1d::with(3, BatchNorm::new().track_running_stats(track)));
        layer.set_training(training);
        let x = &(&random(SHAPE) * 2.0) + &random([3, 1]);
        let y = values(&layer.call(&x));
        let xs = values(&x);
        let (mean, var) = statistics(&xs, SHAPE);
        if training || !track {
            assert_close(&y, &normalised(&xs, SHAPE, &mean, &var), 1e-10);
        } else {
            assert_close(&y, &normalised(&xs, SHAPE, &[0.0; 3], &[1.0; 3]), 1e-10);
        }
        let Some(running_mean) = &layer.running_mean else {
            assert!(!track && layer.running_var.is_none() && layer.num_batches_tracked.is_none());
            continue;
        };
        let moved = if training { 0.1 } else { 0.0 };
        let wanted: Vec<f64> = mean.iter().map(|m| moved * m).collect();
        assert_close(&held(running_mean), &wanted, 1e-10);
        let unbiased = |v: &f64| 1.0 + moved * (v * 20.0 / 19.0 - 1.0);
        let wanted: Vec<f64> = var.iter().map(unbiased).collect();
        assert_close(&held(layer.running_var.as_ref().unwrap()), &wanted, 1e-10);
        let batches = layer.num_batches_tracked.as_ref().unwrap().get();
        assert_eq!(batches.item::<i64>().unwrap(), training as i64);
    }
}

#[test]
fn without_momentum_the_running_statistics_are_averages() {
    let layer = f64_module(|| BatchNorm2d::with(3, BatchNorm::new().momentum(None)));
    let (mut means, mut vars) = (vec![0.0; 3], vec![0.0; 3]);
    for _ in 0..3 {
        let x = random([4, 3, 5, 1]);
        layer.call(&x).realize().unwrap();
        let (mean, var) = statistics(&values(&x), SHAPE);
        for j in 0..3 {
            means[j] += mean[j] / 3.0;
            vars[j] += var[j] * 20.0 / 19.0 / 3.0;
        }
    }
    assert_close(&held(layer.running_mean.as_ref().unwrap()), &means, 1e-10);
    assert_close(&held(layer.running_var.as_ref().unwrap()), &vars, 1e-10);
    layer.reset_running_stats().unwrap();
    assert_eq!(held(layer.running_mean.as_ref().unwrap()), [0.0; 3]);
    assert_eq!(held(layer.num_batches_tracked.as_ref().unwrap()), [0.0]);
}

#[test]
fn compiled_batch_norms_update_as_lazy_ones() {
    for momentum in [Some(0.1), None] {
        let make = || BatchNorm1d::with(3, BatchNorm::new().momentum(momentum));
        let (lazy, other) = (f64_module(make), f64_module(make));
        let step = compile(Spec::new(DType::F64, SHAPE), |x| other.call(&x)).unwrap();
        for _ in 0..3 {
            let x = random(SHAPE);
            let wanted = values(&lazy.call(&x));
            assert_close(&values(&step.run(&x).unwrap()), &wanted, 1e-10);
        }
        let (a, b) = (lazy.state_dict(), other.state_dict());
        for ((name, a), (_, b)) in a.iter().zip(b.iter()) {
            assert_close(&values(b), &values(a), 1e-10);
            assert!(name != "num_batches_tracked" || values(a) == [3.0]);
        }
    }
}

#[test]
fn a_compiled_evaluation_leaves_the_statistics() {
    let layer = f64_module(|| BatchNorm1d::new(3));
    layer.call(random(SHAPE)).realize().unwrap();
    layer.eval();
    let before = held(layer.running_mean.as_ref().unwrap());
    let step = compile(Spec::new(DType::F64, SHAPE), |x| layer.call(&x)).unwrap();
    let x = random(SHAPE);
    assert_close(
        &values(&step.run(&x).unwrap()),
        &values(&layer.call(&x)),
        1e-10,
    );
    assert_eq!(held(layer.running_mean.as_ref().unwrap()), before);
}

#[test]
fn batch_norms_have_gradients_in_both_modes() {
    let layer = f64_module(|| BatchNorm1d::new(3));
    layer.weight.as_ref().unwrap().assign(random([3])).unwrap();
    let x = random(SHAPE);
    check_gradients(&layer, &|| layer.call(&x));
    layer.eval();
    check_gradients(&layer, &|| layer.call(&x));
}

#[test]
fn instance_norms_normalise_each_sample() {
    let x = random([2, 3, 4]);
    let layer = f64_module(|| InstanceNorm1d::new(3));
    assert_eq!(layer.state_dict().len(), 0);
    let y = values(&layer.call(&x));
    let xs = values(&x);
    let mut wanted = Vec::new();
    for sample in xs.chunks(12) {
        let (mean, var) = statistics(sample, [1, 3, 4]);
        wanted.extend(normalised(sample, [1, 3, 4], &mean, &var));
    }
    assert_close(&y, &wanted, 1e-10);
    let one = layer.call(x.select(0, 1));
    assert_close(&values(&one), &wanted[12..], 1e-10);

    let tracking = f64_module(|| {
        InstanceNorm1d::with(
            3,
            InstanceNorm::new().affine(true).track_running_stats(true),
        )
    });
    tracking.call(&x).realize().unwrap();
    let means: Vec<Vec<f64>> = xs.chunks(12).map(|s| statistics(s, [1, 3, 4]).0).collect();
    let wanted: Vec<f64> = (0..3)
        .map(|j| 0.1 * (means[0][j] + means[1][j]) / 2.0)
        .collect();
    assert_close(
        &held(tracking.running_mean.as_ref().unwrap()),
        &wanted,
        1e-10,
    );
    tracking.eval();
    let running = (
        tracking.running_mean.as_ref().unwrap(),
        tracking.running_var.as_ref().unwrap(),
    );
    let wanted = normalised(&xs, [2, 3, 4], &held(running.0), &held(running.1));
    assert_close(&values(&tracking.call(&x)), &wanted, 1e-10);
    let space = InstanceNorm3d::new(2).unwrap();
    assert_eq!(
        space
            .call(Tensor::rand([1, 2, 2, 2, 2], DType::F32))
            .shape()
            .unwrap()
            .len(),
        5
    );
}

/// A loss whose computation fails after the layer.
fn failing_loss(layer: &impl Forward, x: &Tensor) -> Tensor {
    let y = layer.call(x).flatten(1);
    let labels = Tensor::from_slice(&[0i64, 99, 1, 0], [4]);
    y.cross_entropy(&labels)
}

#[test]
fn a_failed_step_leaves_the_statistics_and_their_count_alike() {
    for momentum in [Some(0.1), None] {
        let layer = f64_module(|| BatchNorm1d::with(3, BatchNorm::new().momentum(momentum)));
        layer.call(random(SHAPE)).realize().unwrap();
        let before: Vec<Vec<f64>> = layer.buffers().iter().map(held).collect();
        assert_eq!(before[2], [1.0]);

        assert!(
            failing_loss(&layer, &random(SHAPE))
                .to_vec::<f64>()
                .is_err()
        );
        let after: Vec<Vec<f64>> = layer.buffers().iter().map(held).collect();
        assert_eq!(after, before, "read");

        let mut optimizer = Optimizer::new(layer.parameters(), SGD::new()).unwrap();
        failing_loss(&layer, &random(SHAPE)).backward().unwrap();
        assert!(optimizer.step().is_err());
        let after: Vec<Vec<f64>> = layer.buffers().iter().map(held).collect();
        assert_eq!(after, before, "stepped");

        layer.call(random(SHAPE)).realize().unwrap();
        assert_eq!(held(layer.num_batches_tracked.as_ref().unwrap()), [2.0]);
    }
}
