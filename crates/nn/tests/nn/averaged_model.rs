//! Averages of models over training.

use crate::support::*;
use kiln_nn::optim::{Anneal, ExponentialLR, Optimizer, SGD, SWALR, Scheduler};
use kiln_nn::*;
use kiln_tensor::{DType, Result, Tensor, Var, compile};

fn model() -> Sequential {
    f64_module(|| sequential![Linear::new(3, 4), BatchNorm1d::new(4), Linear::new(4, 2)])
}

/// Gives all parameters of a model other values, and its batch norm other statistics.
fn train(m: &Sequential) {
    for p in m.parameters() {
        p.assign(random(p.shape().unwrap())).unwrap();
    }
    m.call(random([5, 3])).realize().unwrap();
}

#[test]
fn averages_are_equal_or_exponential() {
    let m = model();
    let swa = AveragedModel::new(&m).unwrap();
    let ema = AveragedModel::new(&m)
        .unwrap()
        .avg_fn(get_ema_avg_fn(0.75))
        .use_buffers(true);
    let (mut sums, mut moving, mut variance) = (vec![0.0; 12], Vec::new(), Vec::new());
    for i in 1..=4 {
        train(&m);
        swa.update_parameters(&m).unwrap();
        ema.update_parameters(&m).unwrap();
        let now = held(&m.get_parameter("0.weight").unwrap());
        let of = |name: &str| held(&swa.module.get_parameter(name).unwrap());
        sums.iter_mut().zip(&now).for_each(|(s, w)| *s += w);
        let mean: Vec<f64> = sums.iter().map(|s| s / i as f64).collect();
        assert_close(&of("0.weight"), &mean, 1e-12);
        let follow = |average: &mut Vec<f64>, now: Vec<f64>| match average.is_empty() {
            true => *average = now,
            false => average
                .iter_mut()
                .zip(now)
                .for_each(|(a, w)| *a = 0.75 * *a + 0.25 * w),
        };
        follow(&mut moving, now);
        follow(
            &mut variance,
            values(m.state_dict().get("1.running_var").unwrap()),
        );
        let state = ema.state_dict();
        assert_close(
            &values(state.get("module.0.weight").unwrap()),
            &moving,
            1e-12,
        );
        assert_close(
            &values(state.get("module.1.running_var").unwrap()),
            &variance,
            1e-12,
        );
        // Buffers that are not averaged are the model's.
        let own = swa.module.state_dict();
        let copied = own.get("1.running_var").unwrap();
        assert_eq!(
            values(copied),
            values(m.state_dict().get("1.running_var").unwrap())
        );
    }
    assert_eq!(held(&swa.n_averaged), [4.0]);
    assert_eq!(names(&swa)[..2], ["n_averaged", "module.0.weight"]);

    // A saved average goes on.
    let other = AveragedModel::new(&m).unwrap();
    other.load_state_dict(&swa.state_dict(), true).unwrap();
    train(&m);
    swa.update_parameters(&m).unwrap();
    other.update_parameters(&m).unwrap();
    for (name, value) in swa.state_dict().iter() {
        assert_eq!(
            values(other.state_dict().get(name).unwrap()),
            values(value),
            "{name}"
        );
    }
    let batches: Vec<Tensor> = (0..3).map(|_| random([5, 3])).collect();
    update_bn(batches.iter().map(Ok), &swa, |x: &Tensor| swa.call(x)).unwrap();
    let count = swa
        .module
        .get_as::<BatchNorm1d>(1)
        .unwrap()
        .num_batches_tracked
        .as_ref()
        .unwrap();
    assert_eq!(held(count), [3.0]);
}

#[test]
fn averages_are_part_of_a_compiled_step() {
    let m = f64_module(|| Linear::new(2, 1));
    let average = AveragedModel::new(&m).unwrap();
    let step = compile((), |()| {
        m.weight.mul_(0.5)?;
        average.update_parameters(&m)
    })
    .unwrap();
    let first = held(&m.weight);
    for _ in 0..3 {
        step.run(()).unwrap();
    }
    let mean: Vec<f64> = first
        .iter()
        .map(|w| w * (0.5 + 0.25 + 0.125) / 3.0)
        .collect();
    assert_close(&held(&average.module.weight), &mean, 1e-12);
}

#[test]
fn other_models_and_decays_are_refused() {
    let m = f64_module(|| Linear::new(2, 1));
    let average = AveragedModel::new(&m).unwrap();
    let before = held(&average.module.weight);
    let wide = f64_module(|| Linear::new(3, 1));
    let e = average.update_parameters(&wide).unwrap_err().to_string();
    assert!(
        e.contains("f64[1, 3]") && e.contains("averaged_model.rs"),
        "{e}"
    );
    let none = LinearOptions::new().bias(false);
    let none = f64_module(|| Linear::with(2, 1, none));
    assert!(average.update_parameters(&none).is_err());
    assert_eq!(
        (held(&average.module.weight), held(&average.n_averaged)),
        (before, vec![0.0])
    );
    let e = AveragedModel::new(&m).unwrap().avg_fn(get_ema_avg_fn(1.5));
    let e = e.update_parameters(&m).unwrap_err();
    assert!(e.message().contains("0..=1"), "{e}");
}

/// The rates of PyTorch 2.15: an `ExponentialLR(0.9)` for three steps, then `SWALR`, made before the first.
#[test]
fn its_schedule_follows_another_one() -> Result<()> {
    let p = Var::parameter(Tensor::ones([2], DType::F32))?;
    let cosine = [0.4499, 0.1833, 0.05, 0.05, 0.05];
    let line = [0.4054666666666667, 0.2277333333333333, 0.05, 0.05, 0.05];
    for (strategy, epochs, wanted) in [
        (Anneal::Cos, 3, cosine),
        (Anneal::Linear, 3, line),
        (Anneal::Cos, 0, [0.05; 5]),
    ] {
        let mut optimizer = Optimizer::new(&p, SGD::new().lr(0.8))?;
        let mut first = Scheduler::new(&mut optimizer, ExponentialLR::new(0.9))?;
        let swa = SWALR::new(0.05)
            .anneal_epochs(epochs)
            .anneal_strategy(strategy);
        let mut swa = Scheduler::new(&mut optimizer, swa)?;
        let mut found = Vec::new();
        for epoch in 0..8 {
            match epoch < 3 {
                true => first.step(&mut optimizer)?,
                false => swa.step(&mut optimizer)?,
            }
            found.push(optimizer.lr()[0]);
        }
        assert_close(&found[..3], &[0.72, 0.648, 0.5832], 1e-12);
        assert_close(&found[3..], &wanted, 1e-12);
    }
    let mut optimizer = Optimizer::new(&p, SGD::new().lr(0.8))?;
    assert!(Scheduler::new(&mut optimizer, SWALR::new(0.05).anneal_epochs(-1)).is_err());
    Ok(())
}
