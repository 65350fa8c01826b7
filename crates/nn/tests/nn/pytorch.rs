//! PyTorch's checkpoints, loaded into modules and optimisers. The files come from `fixtures.py` of the crate
//! `kiln-formats`.

use crate::support::values;
use kiln_formats::{Value, load, save};
use kiln_nn::optim::{Adam, AdamW, Optimizer, OptimizerState, SGD};
use kiln_nn::*;
use kiln_tensor::{Error, Var};
use std::path::Path;

fn model() -> Sequential {
    sequential![Linear::new(3, 4), Tanh::new(), Linear::new(4, 2)].unwrap()
}

fn fixture(name: &str) -> Result<Value> {
    let folder = "../formats/tests/formats/pytorch";
    load(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(folder)
            .join(name),
    )
}

/// Trains for three more steps, as PyTorch did.
fn steps(model: &Sequential, optimizer: &mut Optimizer, data: &Value) -> Result<()> {
    let (x, y) = (data.get("x")?.tensor()?, data.get("y")?.tensor()?);
    for _ in 0..3 {
        optimizer.zero_grad();
        (model.call(x) - y).square().mean(()).backward()?;
        optimizer.step()?;
    }
    Ok(())
}

type Made = fn(&[Var]) -> Result<Optimizer>;

const OPTIMIZERS: [(&str, Made); 5] = [
    ("sgd", |p| Optimizer::new(p, SGD::new())),
    ("momentum", |p| {
        Optimizer::new(p, SGD::new().momentum(0.5).dampening(0.5).weight_decay(0.5))
    }),
    ("nesterov", |p| {
        Optimizer::new(p, SGD::new().momentum(0.5).nesterov(true))
    }),
    ("adam", |p| Optimizer::new(p, Adam::new().amsgrad(true))),
    ("adamw", |p| {
        let mut optimizer = Optimizer::new(&p[..2], AdamW::new())?;
        optimizer.add_group(&p[2..], AdamW::new())?;
        Ok(optimizer)
    }),
];

#[test]
fn training_that_pytorch_began_goes_on() -> Result<()> {
    for (name, make) in OPTIMIZERS {
        let checkpoint = fixture(&format!("{name}.pt"))?;
        let model = model();
        model.load_state_dict(&checkpoint.get("model")?.state_dict()?, true)?;
        let mut optimizer = make(&model.parameters())?;
        optimizer.load_state_dict(&checkpoint.get("optimizer")?.try_into()?)?;
        let lr: &[f64] = match name {
            "adam" => &[0.05],
            "adamw" => &[0.01, 0.05],
            _ => &[0.1],
        };
        assert_eq!(optimizer.lr(), lr, "{name}");

        // Kiln saves the state that PyTorch saved.
        let path = std::env::temp_dir().join(format!("kiln-{name}-{}.pt", std::process::id()));
        save(&optimizer.state_dict()?, &path)?;
        let again = OptimizerState::try_from(&load(&path)?)?;
        std::fs::remove_file(path).unwrap();
        let mut other = make(&model.parameters())?;
        other.load_state_dict(&again)?;
        assert_eq!(
            other.state_dict()?.param_groups,
            optimizer.state_dict()?.param_groups
        );

        steps(&model, &mut other, &checkpoint)?;
        let after = checkpoint.get("after")?.state_dict()?;
        for (key, found) in model.state_dict().iter() {
            for (a, b) in values(found).iter().zip(values(after.get(key).unwrap())) {
                assert!(
                    (a - b).abs() <= 2e-6 * b.abs().max(1.0),
                    "{name}: {key}: {a} and {b}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_no_optimiser_is_named() -> Result<()> {
    let text = |value: &Value| OptimizerState::try_from(value).unwrap_err().to_string();
    let checkpoint = fixture("adam.pt")?;
    assert!(
        text(checkpoint.get("model")?).contains("there is no \"state\" in a dict of \"0.weight\"")
    );
    assert!(text(&Value::dict([("state", Value::None)])).contains("\"param_groups\""));
    Ok(())
}

#[test]
fn prefixes_of_wrappers_are_hinted_at() -> Result<()> {
    let state = fixture("sgd.pt")?.get("model")?.state_dict()?;
    for prefix in ["module.", "_orig_mod."] {
        let wrapped = state.rename(|name| Some(format!("{prefix}{name}")));
        let text = model()
            .load_state_dict(&wrapped, true)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains(&format!("load state.strip_prefix(\"{prefix}\")")),
            "{text}"
        );
        model().load_state_dict(&wrapped.strip_prefix(prefix), true)?;
    }
    // There is no hint if another name is wrong.
    let part = state.filter(|name| name != "2.bias");
    let text = model()
        .load_state_dict(&part, true)
        .unwrap_err()
        .to_string();
    assert!(!text.contains("strip_prefix"), "{text}");
    Ok(())
}

#[test]
fn what_fits_is_loaded_and_the_rest_is_reported() -> Result<()> {
    let mut state = fixture("sgd.pt")?.get("model")?.state_dict()?;
    let bias = state.remove("0.bias").unwrap();
    state.insert("extra", bias);
    let model = sequential![Linear::new(3, 4), Tanh::new(), Linear::new(4, 7)]?;
    let report = model.load_matching(&state)?;
    assert_eq!(report.mismatched, ["2.weight", "2.bias"]);
    assert_eq!(
        (report.missing, report.unexpected),
        (vec!["0.bias".into()], vec!["extra".into()])
    );
    let weight = model.get_parameter("0.weight")?.get();
    assert_eq!(values(&weight), values(state.get("0.weight").unwrap()));
    Ok::<(), Error>(())
}
