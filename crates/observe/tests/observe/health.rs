//! Health of training, on models that are wrong in a known way.

use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::{Forward, Linear, Module, ReLU, Sequential, init, sequential};
use kiln_observe::{Figure, Health, HealthReport};
use kiln_tensor::{DType, Result, Tensor};

fn model() -> Result<Sequential> {
    kiln_tensor::manual_seed(0);
    sequential!["fc": Linear::new(4, 16), "act": ReLU::new(), "head": Linear::new(16, 2)]
}

/// The report after a step of a changed model.
fn report(model: &Sequential, lr: f64) -> Result<HealthReport> {
    let health = Health::watch(model)?;
    let mut optimizer = Optimizer::new(model.parameters(), SGD::new().lr(lr))?;
    model
        .call(Tensor::randn([32, 4], DType::F32))
        .square()
        .mean(())
        .backward()?;
    optimizer.step()?;
    health.report()
}

#[track_caller]
fn check(report: &HealthReport, wanted: &[&str]) {
    let warnings = report.warnings();
    let all = wanted
        .iter()
        .all(|w| warnings.iter().any(|seen| seen.contains(w)));
    assert!(
        all && (warnings.is_empty() == wanted.is_empty()),
        "{warnings:?}, not {wanted:?}\n{report}"
    );
}

#[test]
fn a_healthy_model_has_figures_and_no_warnings() -> Result<()> {
    let model = model()?;
    let before = model.get_parameter("fc.weight")?.to_vec::<f32>()?;
    let report = report(&model, 0.1)?;
    check(&report, &[]);
    let after = model.get_parameter("fc.weight")?.to_vec::<f32>()?;
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let change = norm(&mut before.iter().zip(&after).map(|(a, b)| (*b - *a) as f64));
    let wanted = change / norm(&mut before.iter().map(|x| *x as f64));
    let seen = report
        .figures()
        .iter()
        .find(|(n, f, _)| n == "fc.weight" && *f == Figure::Update);
    let (_, _, seen) = seen.expect("an update");
    assert!(
        (seen - wanted).abs() < 1e-6 * wanted,
        "{seen}, not {wanted}"
    );
    let tags: Vec<String> = report.scalars().map(|(tag, _)| tag).collect();
    for tag in [
        "spread/model",
        "dead_units/act",
        "activation/head",
        "gradient/fc.bias",
        "weight/head.bias",
    ] {
        assert!(tags.iter().any(|t| t == tag), "{tags:?}");
    }
    Ok(())
}

#[test]
fn what_is_wrong_is_said() -> Result<()> {
    let dead = model()?;
    init::constant_(&dead.get_parameter("fc.bias")?, -1e3)?;
    check(
        &report(&dead, 0.1)?,
        &[
            "act has dead units",
            "act vanishes",
            "fc.weight vanishes",
            "fc.weight stands still",
            "the model gives the same",
        ],
    );

    let exploding = model()?;
    exploding.get_parameter("head.weight")?.mul_(1e5)?;
    check(
        &report(&exploding, 0.1)?,
        &["fc.weight explodes", "fc.weight jumps", "head explodes"],
    );

    let still = model()?;
    check(&report(&still, 0.0)?, &["head.weight stands still"]);

    let nan = model()?;
    init::constant_(&nan.get_parameter("fc.bias")?, f64::NAN)?;
    check(
        &report(&nan, 0.1)?,
        &["fc has activation NaN", "head.bias has gradient NaN"],
    );

    let frozen = model()?;
    let health = Health::watch(&frozen)?;
    check(&health.report()?, &["fc.weight has no gradient"]);
    Ok(())
}
