//! Submodules of models, replaced.

use crate::made::{Inputs, small};
use crate::reference::row;
use crate::results::inputs;
use kiln::nn::optim::{Optimizer, SGD};
use kiln::nn::{
    BatchNorm2d, Conv2d, Forward, Identity, Kernel, Lambda, Linear, Module, StateDict, sequential,
};
use kiln::{DType, Error, Result, Tensor, no_grad};
use kiln_models::ResNet;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Replaces the modules at all paths at once, and returns the paths whose replacements were not called.
fn uncalled_of(model: &str, inputs: &Inputs, paths: &[String]) -> Result<Vec<String>> {
    let network = small(model)?;
    let called = Arc::new(Mutex::new(BTreeSet::new()));
    for path in paths {
        let (own, called) = (path.clone(), called.clone());
        let new = Lambda::new(move |x| {
            called
                .lock()
                .expect("the mutex is not poisoned")
                .insert(own.clone());
            Err::<Tensor, _>(
                x.error()
                    .cloned()
                    .unwrap_or(Error::invalid("new", "is called")),
            )
        });
        network.put(path, new)?;
    }
    let e = match network.results(inputs) {
        Ok(results) => results.into_iter().find_map(|(_, t)| t.error().cloned()),
        Err(e) => Some(e),
    };
    let called = called.lock().expect("the mutex is not poisoned");
    // In place of a module with other inputs than a tensor, a call is an error that says "Lambda replaces". It counts.
    let other_types = e.is_some_and(|e| e.to_string().contains("Lambda replaces"));
    let uncalled = paths
        .iter()
        .filter(|p| !(called.contains(*p) || other_types && paths.len() == 1));
    Ok(uncalled.cloned().collect())
}

/// Returns the paths of modules that a model never calls, since their parent reads their fields.
fn uncalled(model: &str) -> Result<Vec<String>> {
    let inputs = inputs(row("cases", model));
    let network = small(model)?;
    let modules = network.module().named_modules().into_iter();
    let all = modules.filter(|(path, m)| !path.is_empty() && m.hooks().is_some());
    let mut by_depth: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    all.for_each(|(path, _)| {
        by_depth
            .entry(path.split('.').count())
            .or_default()
            .push(path)
    });
    let mut uncalled = Vec::new();
    for paths in by_depth.values() {
        for path in uncalled_of(model, &inputs, paths)? {
            uncalled.extend(uncalled_of(model, &inputs, &[path])?);
        }
    }
    Ok(uncalled)
}

#[test]
#[rustfmt::skip]
fn every_part_can_be_replaced() -> Result<()> {
    let models = [
        "resnet50", "alexnet", "vgg11", "squeezenet1_0", "mobilenet_v3_small", "googlenet", "inception_v3", "vit",
        "unet", "gpt", "GPT2LMHeadModel", "BertForMaskedLM", "BertForSequenceClassification",
    ];
    for model in models {
        assert_eq!(uncalled(model)?, Vec::<String>::new(), "{model}");
    }
    Ok(())
}

#[test]
fn a_model_with_new_parts_trains_and_is_saved() -> Result<()> {
    let parts = |model: &ResNet| -> Result<()> {
        // A stem for one channel, a block of another kind, and a head for three classes.
        model.set_submodule(
            "conv1",
            Conv2d::new(1, 64, Kernel::new(3).stride(2).padding(1))?,
        )?;
        let block = sequential![
            "conv": Conv2d::new(512, 512, Kernel::new(1)),
            "norm": BatchNorm2d::new(512),
        ]?;
        model.set_submodule("layer4.1", block)?;
        model.set_submodule("fc", Linear::new(512, 3)?)
    };
    let model = ResNet::resnet18(1000)?;
    parts(&model)?;
    let x = Tensor::rand([4, 1, 32, 32], DType::F32);
    assert_eq!(model.call(&x).shape()?, [4, 3]);
    let names: Vec<String> = model
        .named_parameters()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    for name in [
        "conv1.bias",
        "layer4.1.conv.weight",
        "layer4.1.norm.bias",
        "fc.weight",
    ] {
        assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
    }
    assert!(!names.iter().any(|n| n.starts_with("layer4.1.conv1")));
    assert!(
        model
            .to_string()
            .contains("(fc): Linear(in_features=512, out_features=3, bias=True)")
    );

    let before = model.state_dict();
    let mut optimizer = Optimizer::new(model.parameters(), SGD::new().lr(0.1))?;
    model
        .call(&x)
        .cross_entropy(Tensor::from([0i64, 1, 2, 0]))
        .backward()?;
    optimizer.step()?;
    let after = model.state_dict();
    for name in ["conv1.weight", "layer4.1.conv.weight", "fc.weight"] {
        let [a, b] = [&before, &after].map(|s| s.get(name).expect("a known key").to_vec::<f32>());
        assert_ne!(a?, b?, "{name}");
    }

    let file = std::env::temp_dir().join(format!("kiln-parts-{}.safetensors", std::process::id()));
    model.save_state_dict(&file)?;
    let again = ResNet::resnet18(1000)?;
    parts(&again)?;
    again.load_state_dict(&StateDict::load(&file)?, true)?;
    std::fs::remove_file(&file).expect("the file is removed");
    let scores = |model: &ResNet| {
        model.eval();
        no_grad(|| model.call(&x)).to_vec::<f32>()
    };
    let wanted = scores(&model)?;
    assert_eq!(scores(&again)?, wanted);
    assert_eq!(scores(&model.deep_copy()?)?, wanted);

    // A copy has parts of its own, and a new part can be replaced too.
    let features = model.deep_copy()?;
    features.set_submodule("fc", Identity::new())?;
    features.set_submodule("layer4.1.conv", Identity::new())?;
    assert_eq!(features.call(&x).shape()?, [4, 512]);
    assert_eq!(scores(&model)?, wanted);

    let e = model
        .set_submodule("layer4.2", Identity::new())
        .unwrap_err()
        .to_string();
    assert!(
        e.contains(r#"Sequential has no module "2"; directly within it are ["0", "1"]"#),
        "{e}"
    );
    let e = model
        .set_submodule("", Identity::new())
        .unwrap_err()
        .to_string();
    assert!(e.contains("the path is empty"), "{e}");
    let shared = Arc::new(Linear::new(2, 2)?);
    let nested = sequential![sequential![shared.clone()]]?;
    let e = nested
        .set_submodule("0.0", sequential![shared]?)
        .unwrap_err()
        .to_string();
    assert!(e.contains("is contained in its own replacement"), "{e}");
    Ok(())
}
