//! Recomputing running statistics.

use crate::support::*;
use kiln_nn::*;
use kiln_tensor::{Error, Result, Tensor};

fn model() -> Sequential {
    let norm = || BatchNorm1d::with(3, BatchNorm::new().momentum(0.25));
    f64_module(|| sequential![Linear::new(4, 3), norm(), Dropout::new(0.5), norm()])
}

fn norm(model: &Sequential, at: usize) -> &BatchNorm1d {
    model.get_as(at).unwrap()
}

fn held_by(norm: &BatchNorm1d) -> [Vec<f64>; 2] {
    [&norm.running_mean, &norm.running_var].map(|var| held(var.as_ref().unwrap()))
}

#[test]
fn they_are_the_averages_of_the_batches() {
    let model = model();
    let batches: Vec<Tensor> = (0..3).map(|_| random([5, 4])).collect();
    // The statistics hold other values before.
    model.call(random([7, 4]) * 9.0).realize().unwrap();
    model.eval();
    model[3].train();
    update_bn(batches.iter().map(Ok), &model, |x: &Tensor| model.call(x)).unwrap();
    assert!(!norm(&model, 1).is_training() && !model[2].is_training() && model[3].is_training());
    assert_eq!(norm(&model, 1).momentum(), Some(0.25));

    let (mut mean, mut var) = (vec![0.0; 3], vec![0.0; 3]);
    for x in &batches {
        let y = model[0].call(x).detach();
        let share = |sum: &mut Vec<f64>, of: Tensor| {
            let of = values(&of);
            sum.iter_mut().zip(of).for_each(|(s, v)| *s += v / 3.0);
        };
        share(&mut mean, y.mean(0));
        share(&mut var, y.var(0));
    }
    let [found_mean, found_var] = held_by(norm(&model, 1));
    assert_close(&found_mean, &mean, 1e-12);
    assert_close(&found_var, &var, 1e-12);
    let count = norm(&model, 1).num_batches_tracked.as_ref().unwrap();
    assert_eq!(count.get().item::<i64>().unwrap(), 3);
}

#[test]
fn frozen_norms_keep_theirs() {
    let model = model();
    model.call(random([7, 4])).realize().unwrap();
    model[1].freeze();
    let [before, other] = [1, 3].map(|at| held_by(norm(&model, at)));
    update_bn([Ok(random([5, 4]))], &model, |x| model.call(x)).unwrap();
    assert_eq!(held_by(norm(&model, 1)), before);
    assert_ne!(held_by(norm(&model, 3)), other);
}

#[test]
fn after_an_error_modes_and_momenta_are_as_before() {
    let model = model();
    model.eval();
    let broken = [Ok(random([5, 4])), Err(Error::invalid("loader", "no more"))];
    let e = update_bn(broken, &model, |x| model.call(x)).unwrap_err();
    assert!(e.to_string().contains("no more"), "{e}");
    let e = update_bn([Ok(random([5, 7]))], &model, |x| model.call(x)).unwrap_err();
    assert!(e.to_string().contains("in Linear(in_features=4"), "{e}");
    assert!(!model.is_training());
    assert_eq!(norm(&model, 3).momentum(), Some(0.25));
    // Without norms there is nothing to do.
    let linear = f64_module(|| Linear::new(4, 3));
    update_bn(None::<Result<Tensor>>, &linear, |x| linear.call(x)).unwrap();
}

#[test]
fn a_momentum_is_changed_in_place() {
    let layer = f64_module(|| BatchNorm1d::new(2));
    layer.set_momentum(1.0);
    assert!(layer.to_string().contains("momentum=1.0"));
    let x = random([6, 2]);
    layer.call(&x).realize().unwrap();
    assert_close(&held_by(&layer)[0], &values(&x.mean(0)), 1e-12);
    let copy = layer.deep_copy().unwrap();
    layer.set_momentum(None);
    assert_eq!((layer.momentum(), copy.momentum()), (None, Some(1.0)));
}
