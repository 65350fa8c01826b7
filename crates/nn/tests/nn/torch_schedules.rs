//! Schedules loaded from PyTorch's checkpoints, and PyTorch's schedules from these. The file comes from `schedules.py`.

use kiln_formats::{Value, load, save};
use kiln_nn::Result;
use kiln_nn::optim::*;
use kiln_tensor::{DType, Tensor, Var};
use std::path::Path;

/// The metrics of `schedules.py`.
const METRICS: [f64; 11] = [3.0, 2.0, 2.5, 2.2, 2.1, 2.6, 2.4, 1.0, 1.5, 1.5, 1.5];
/// The number of steps before the states in the file.
const SAVED_AFTER: usize = 5;

fn optimizer() -> Result<Optimizer> {
    let parameter = |n: usize| Var::parameter(Tensor::ones([n], DType::F32));
    let sgd = || SGD::new().momentum(0.5);
    let mut optimizer = Optimizer::new([parameter(2)?], sgd().lr(0.8))?;
    optimizer.add_group([parameter(3)?], sgd().lr(0.2))?;
    Ok(optimizer)
}

/// The schedules of `schedules.py`, by the same names.
fn schedules() -> Vec<(&'static str, Vec<Box<dyn Schedule>>)> {
    let one = |s: Box<dyn Schedule>| vec![s];
    let linear = |factor, total| LinearLR::new().start_factor(factor).total_iters(total);
    let sequential = SequentialLR {
        schedules: vec![Box::new(linear(0.1, 4)), Box::new(ExponentialLR::new(0.9))],
        milestones: vec![4],
    };
    vec![
        ("step", one(Box::new(StepLR::new(3).gamma(0.5)))),
        (
            "multistep",
            one(Box::new(MultiStepLR::new([2, 7, 7]).gamma(0.5))),
        ),
        ("exponential", one(Box::new(ExponentialLR::new(0.9)))),
        (
            "constant",
            one(Box::new(ConstantLR::new().factor(0.5).total_iters(7))),
        ),
        ("linear", one(Box::new(linear(0.25, 8)))),
        (
            "polynomial",
            one(Box::new(PolynomialLR::new().total_iters(9).power(2.0))),
        ),
        (
            "cosine",
            one(Box::new(CosineAnnealingLR::new(7).eta_min(0.01))),
        ),
        (
            "restarts",
            one(Box::new(
                CosineAnnealingWarmRestarts::new(2).t_mult(2).eta_min(0.01),
            )),
        ),
        ("onecycle", one(Box::new(OneCycleLR::new(0.3, 15)))),
        (
            "cyclic",
            one(Box::new(
                CyclicLR::new().base_lr(0.1).max_lr(0.9).step_size_up(3),
            )),
        ),
        (
            "lambda",
            one(Box::new(LambdaLR::new(|e| 1.0 / (1.0 + e as f64)))),
        ),
        (
            "multiplicative",
            one(Box::new(MultiplicativeLR::new(|e| {
                1.0 - 0.1 / (1.0 + e as f64)
            }))),
        ),
        ("sequential", one(Box::new(sequential))),
        (
            "chained",
            vec![Box::new(linear(0.5, 8)), Box::new(ExponentialLR::new(0.9))],
        ),
    ]
}

fn plateau() -> ReduceLROnPlateau {
    ReduceLROnPlateau::new().patience(1).factor(0.5).cooldown(1)
}

fn fixture() -> Result<Value> {
    load(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nn/schedules.pt"))
}

/// Compares the rates of the groups and the momentum of the first with the stored ones.
fn compare(name: &str, optimizer: &Optimizer, wanted: &Value) -> Result<()> {
    let mut found = optimizer.lr();
    found.extend(optimizer.groups()[0].number("momentum"));
    for (found, wanted) in found.iter().zip(wanted.list()?) {
        let wanted = wanted.float()?;
        assert!(
            (found - wanted).abs() <= 1e-12,
            "{name}: {found}, not {wanted}"
        );
    }
    Ok(())
}

#[test]
fn schedules_that_pytorch_began_go_on() -> Result<()> {
    let stored = fixture()?;
    for (name, schedules) in schedules() {
        let stored = stored.get(name)?;
        let mut optimizer = optimizer()?;
        let mut scheduler = Scheduler::chained(&mut optimizer, schedules)?;
        optimizer.load_state_dict(&stored.get("optimizer")?.try_into()?)?;
        scheduler.load_state_dict(&stored.get("scheduler")?.try_into()?);
        assert_eq!(scheduler.last_lr(), optimizer.lr(), "{name}");
        for wanted in stored.get("next")?.list()? {
            scheduler.step(&mut optimizer)?;
            compare(name, &optimizer, wanted)?;
        }
    }
    let stored = stored.get("plateau")?;
    let (mut optimizer, mut plateau) = (optimizer()?, plateau());
    optimizer.load_state_dict(&stored.get("optimizer")?.try_into()?)?;
    plateau.state = stored.get("scheduler")?.try_into()?;
    for (wanted, metric) in stored
        .get("next")?
        .list()?
        .iter()
        .zip(&METRICS[SAVED_AFTER..])
    {
        plateau.step(&mut optimizer, *metric)?;
        compare("plateau", &optimizer, wanted)?;
    }
    Ok(())
}

/// Asserts that everything in `found` is in `wanted`, with the same values.
fn assert_part(path: &str, found: &Value, wanted: &Value) -> Result<()> {
    /// The entries that PyTorch does not update after a schedule has ended, or counts in only one of its schedules.
    const HISTORY: [&str; 2] = ["_last_lr", "_step_count"];
    for (key, value) in found.entries() {
        let key = key.str()?;
        let (path, inner) = (format!("{path}.{key}"), path.contains("_schedulers"));
        let Ok(wanted) = wanted.get(key) else {
            // The outermost of several schedules has no rates of its own.
            assert!(
                path.starts_with("sequential.") && !inner,
                "{path} is not there"
            );
            continue;
        };
        if key == "_schedulers" {
            for (found, wanted) in value.list()?.iter().zip(wanted.list()?) {
                assert_part(&path, found, wanted)?;
            }
        } else if !(inner && HISTORY.contains(&key) || key == "_step_count") {
            let (found, wanted) = (numbers(value), numbers(wanted));
            assert_eq!(found.len(), wanted.len(), "{path}");
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12;
            assert!(
                found.iter().zip(&wanted).all(near),
                "{path}: {found:?}, not {wanted:?}"
            );
        }
    }
    Ok(())
}

/// A number, or the numbers in a list.
fn numbers(value: &Value) -> Vec<f64> {
    match value.list() {
        Ok(all) => all.iter().flat_map(numbers).collect(),
        Err(_) => value.float().into_iter().collect(),
    }
}

#[test]
fn schedules_go_on_in_pytorch() -> Result<()> {
    let stored = fixture()?;
    let mut written = Vec::new();
    for (name, schedules) in schedules() {
        let mut optimizer = optimizer()?;
        let mut scheduler = Scheduler::chained(&mut optimizer, schedules)?;
        for _ in 0..SAVED_AFTER {
            scheduler.step(&mut optimizer)?;
        }
        let state = Value::from(&scheduler);
        assert_part(name, &state, stored.get(name)?.get("scheduler")?)?;
        let optimizer = Value::from(&optimizer.state_dict()?);
        // The numbers that schedules keep in groups.
        let groups = optimizer.get("param_groups")?.list()?;
        let theirs = stored.get(name)?.get("optimizer")?.get("param_groups")?;
        for (group, theirs) in groups.iter().zip(theirs.list()?) {
            for key in ["initial_lr", "max_lr", "min_lr"] {
                let [a, b] = [group, theirs].map(|g| g.get(key).and_then(Value::float).ok());
                let near = a.zip(b).is_none_or(|(a, b)| (a - b).abs() <= 1e-12);
                assert!(
                    a.is_some() == b.is_some() && near,
                    "{name}, {key}: {a:?} and {b:?}"
                );
            }
        }
        written.push((
            name,
            Value::dict([("optimizer", optimizer), ("scheduler", state)]),
        ));
    }
    let (mut optimizer, mut plateau) = (optimizer()?, plateau());
    for metric in &METRICS[..SAVED_AFTER] {
        plateau.step(&mut optimizer, *metric)?;
    }
    let state = Value::from(&plateau.state);
    assert_part("plateau", &state, stored.get("plateau")?.get("scheduler")?)?;
    let optimizer = Value::from(&optimizer.state_dict()?);
    written.push((
        "plateau",
        Value::dict([("optimizer", optimizer), ("scheduler", state)]),
    ));
    match std::env::var_os("KILN_SCHEDULES") {
        Some(path) => save(Value::dict(written), path),
        None => Ok(()),
    }
}

#[test]
fn what_is_no_schedule_is_named() -> Result<()> {
    let text = |value: Value| SchedulerState::try_from(&value).unwrap_err().to_string();
    assert!(text(Value::dict([("base_lrs", vec![0.1])])).contains("last_epoch"));
    let early = [
        ("last_epoch", Value::from(-1)),
        ("base_lrs", vec![0.1].into()),
    ];
    assert!(text(Value::dict(early)).contains("has not begun"));
    let late = [
        ("last_epoch", Value::from(i64::MAX)),
        ("base_lrs", vec![0.1].into()),
    ];
    assert!(text(Value::dict(late)).contains("beyond 4294967296"));
    assert!(PlateauState::try_from(&Value::dict([("best", 1.0)])).is_err());
    Ok(())
}
