//! Schedules against PyTorch's formulas.

use crate::{assert_close, parameter};
use kiln_nn::optim::{
    Adam, Anneal, ConstantLR, CosineAnnealingLR, CosineAnnealingWarmRestarts, ExponentialLR,
    LambdaLR, LinearLR, MultiStepLR, OneCycleLR, Optimizer, PlateauMode, ReduceLROnPlateau, SGD,
    Schedule, Scheduler, SequentialLR, StepLR, ThresholdMode,
};
use std::f64::consts::PI;

fn sgd(lr: f64) -> Optimizer {
    let rule = SGD::new().lr(lr).momentum(0.9);
    Optimizer::new([&parameter(1, &[2])], rule).unwrap()
}

/// The learning rates of the first epochs, as the optimiser sees them.
fn rates(schedule: impl Schedule + 'static, base: f64, epochs: usize) -> Vec<f64> {
    let mut optimizer = sgd(base);
    let mut scheduler = Scheduler::new(&mut optimizer, schedule).unwrap();
    let mut all = Vec::new();
    for _ in 0..epochs {
        all.push(optimizer.lr()[0]);
        assert_eq!(scheduler.last_lr(), optimizer.lr());
        scheduler.step(&mut optimizer).unwrap();
    }
    all
}

#[test]
fn factors() {
    let step = StepLR::new(2).gamma(0.5);
    assert_eq!(rates(step, 0.8, 5), [0.8, 0.8, 0.4, 0.4, 0.2]);
    let multi = MultiStepLR::new(vec![3, 1, 3]).gamma(0.5);
    assert_eq!(rates(multi, 0.8, 5), [0.8, 0.4, 0.4, 0.1, 0.1]);
    assert_eq!(rates(ExponentialLR::new(0.5), 0.8, 3), [0.8, 0.4, 0.2]);
    let constant = ConstantLR::new().factor(0.5).total_iters(2);
    assert_eq!(rates(constant, 0.8, 4), [0.4, 0.4, 0.8, 0.8]);
    let linear = LinearLR::new()
        .start_factor(0.5)
        .end_factor(1.0)
        .total_iters(4);
    assert_close(
        &rates(linear, 0.8, 6),
        &[0.4, 0.5, 0.6, 0.7, 0.8, 0.8],
        1e-14,
    );
    assert_eq!(
        rates(LambdaLR::new(|e| 1.0 / (e + 1) as f64), 0.8, 2),
        [0.8, 0.4]
    );
}

#[test]
fn cosines() {
    let cosine = CosineAnnealingLR::new(4).eta_min(0.1);
    let at = |e: f64, t: f64| 0.1 + 0.35 * (1.0 + (PI * e / t).cos());
    let expected: Vec<f64> = (0..10).map(|e| at(e as f64, 4.0)).collect();
    assert_close(&rates(cosine, 0.8, 10), &expected, 1e-14);
    let restarts = CosineAnnealingWarmRestarts::new(2).t_mult(3).eta_min(0.1);
    let periods = [
        (0, 2),
        (1, 2),
        (0, 6),
        (1, 6),
        (2, 6),
        (3, 6),
        (4, 6),
        (5, 6),
        (0, 18),
    ];
    let expected: Vec<f64> = periods.map(|(e, t)| at(e as f64, t as f64)).to_vec();
    assert_close(&rates(restarts, 0.8, 9), &expected, 1e-14);
    let plain = CosineAnnealingWarmRestarts::new(3).t_mult(1).eta_min(0.1);
    let expected = [0.0, 1.0, 2.0, 0.0].map(|e| at(e, 3.0));
    assert_close(&rates(plain, 0.8, 4), &expected, 1e-14);
}

#[test]
fn one_cycle_moves_rate_and_momentum_and_ends() {
    let cycle = OneCycleLR {
        pct_start: 0.5,
        anneal_strategy: Anneal::Linear,
        div_factor: 4.0,
        final_div_factor: 2.0,
        ..OneCycleLR::new(1.0, 10)
    };
    let mut optimizer = sgd(7.0);
    let mut scheduler = Scheduler::new(&mut optimizer, cycle.clone()).unwrap();
    let (mut lr, mut momentum) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        lr.push(optimizer.lr()[0]);
        momentum.push(optimizer.groups()[0].number("momentum").unwrap());
        scheduler.step(&mut optimizer).unwrap();
    }
    // The rate rises over steps 0 to 4 and falls over 4 to 9.
    let up = (0..5).map(|s| 0.25 + 0.75 * s as f64 / 4.0);
    let down = (1..6).map(|s| 1.0 - 0.875 * s as f64 / 5.0);
    assert_close(&lr, &up.chain(down).collect::<Vec<_>>(), 1e-14);
    assert_close(
        &[momentum[0], momentum[4], momentum[9]],
        &[0.95, 0.85, 0.95],
        1e-14,
    );
    let e = scheduler.step(&mut optimizer).unwrap_err();
    assert!(e.message().contains("10"), "{e}");

    let three = OneCycleLR {
        three_phase: true,
        pct_start: 0.3,
        anneal_strategy: Anneal::Cos,
        ..cycle
    };
    let mut adam = Optimizer::new([&parameter(1, &[2])], Adam::new()).unwrap();
    let mut scheduler = Scheduler::new(&mut adam, three).unwrap();
    assert_eq!(adam.groups()[0].number("beta1"), Some(0.95));
    let mut lr = vec![adam.lr()[0]];
    for _ in 0..9 {
        scheduler.step(&mut adam).unwrap();
        lr.push(adam.lr()[0]);
    }
    let third = |s: f64| 0.125 + 0.125 / 2.0 * (1.0 + (PI * s / 5.0).cos());
    let expected = [
        0.25,
        0.625,
        1.0,
        0.625,
        0.25,
        third(1.0),
        third(2.0),
        third(3.0),
        third(4.0),
        0.125,
    ];
    assert_close(&lr, &expected, 1e-14);
}

#[test]
fn one_after_the_other_and_all_at_once() {
    let warm_up = || {
        LinearLR::new()
            .start_factor(0.25)
            .end_factor(1.0)
            .total_iters(3)
    };
    let cosine = || CosineAnnealingLR::new(4).eta_min(0.0);
    let sequence = SequentialLR {
        schedules: vec![Box::new(warm_up()), Box::new(cosine())],
        milestones: vec![3],
    };
    let cos = |e: f64| 0.4 * (1.0 + (PI * e / 4.0).cos());
    let expected = [
        0.2,
        0.4,
        0.6,
        cos(0.0),
        cos(1.0),
        cos(2.0),
        cos(3.0),
        cos(4.0),
    ];
    assert_close(&rates(sequence, 0.8, 8), &expected, 1e-14);

    let mut optimizer = sgd(0.8);
    let all: Vec<Box<dyn Schedule>> = vec![
        Box::new(warm_up()),
        Box::new(ExponentialLR::new(0.5)),
        Box::new(StepLR::new(2).gamma(0.1)),
        Box::new(ConstantLR::new().factor(0.5).total_iters(4)),
        Box::new(cosine()),
    ];
    let mut scheduler = Scheduler::chained(&mut optimizer, all).unwrap();
    for e in 0..4 {
        let factors = [
            warm_up().lr(1.0, e),
            0.5f64.powi(e as i32),
            0.1f64.powi(e as i32 / 2),
            0.5,
            cosine().lr(1.0, e),
        ];
        let expected = 0.8 * factors.iter().product::<f64>();
        assert_close(&optimizer.lr(), &[expected], 1e-14);
        scheduler.step(&mut optimizer).unwrap();
    }
}

#[test]
fn a_plateau_lowers_the_rate() {
    let mut optimizer = sgd(1.0);
    let mut plateau = ReduceLROnPlateau::new()
        .factor(0.5)
        .patience(1)
        .cooldown(1)
        .min_lr(0.2);
    let metrics = [
        5.0,
        4.0,
        4.0,
        3.9999,
        4.0,
        4.0,
        4.0,
        4.0,
        f64::NAN,
        4.0,
        4.0,
        4.0,
    ];
    let mut seen = Vec::new();
    for m in metrics {
        plateau.step(&mut optimizer, m).unwrap();
        seen.push(optimizer.lr()[0]);
    }
    // Two bad epochs, then one that is not counted.
    let expected = [
        1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2,
    ];
    assert_eq!(seen, expected);
    let mut up = ReduceLROnPlateau::new()
        .mode(PlateauMode::Max)
        .threshold_mode(ThresholdMode::Abs)
        .threshold(0.5)
        .patience(0);
    let mut optimizer = sgd(1.0);
    for (metric, lr) in [(1.0, 1.0), (1.6, 1.0), (2.0, 0.1)] {
        up.step(&mut optimizer, metric).unwrap();
        assert_close(&optimizer.lr(), &[lr], 1e-14);
    }
}

#[test]
fn a_schedule_goes_on_from_its_state() {
    let new = |optimizer: &mut Optimizer| {
        let schedule = StepLR::new(2).gamma(0.1);
        Scheduler::new(optimizer, schedule).unwrap()
    };
    let mut optimizer = sgd(1.0);
    let mut scheduler = new(&mut optimizer);
    for _ in 0..3 {
        scheduler.step(&mut optimizer).unwrap();
    }
    let state = scheduler.state_dict();
    let mut other = sgd(5.0);
    let mut again = new(&mut other);
    again.load_state_dict(&state);
    for o in [(&mut scheduler, &mut optimizer), (&mut again, &mut other)] {
        o.0.step(o.1).unwrap();
    }
    assert_eq!(other.lr(), optimizer.lr());
    assert_close(&other.lr(), &[0.01], 1e-14);
}
