//! Graphs of models and plans.

use crate::read;
use kiln_nn::{BatchNorm2d, Conv2d, Dropout, Flatten, Kernel, Linear, Module, ReLU, sequential};
use kiln_tensor::{DType, Result, Tensor};
use kiln_tensorboard::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[test]
fn a_graph_has_modules_ops_and_kernels() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let writer = SummaryWriter::new(folder.path())?;
    let model = sequential![
        "conv": Conv2d::new(1, 2, Kernel::new(3)),
        "norm": BatchNorm2d::new(2),
        "relu": ReLU::new(),
        "body": sequential![Flatten::new(), Dropout::new(0.5), Linear::new(32, 4)],
    ]?;
    model.get_submodule("norm")?.eval();
    let before: Vec<bool> = model.modules().iter().map(|m| m.is_training()).collect();
    let mean = model.named_buffers()[0].1.to_vec::<f32>()?;
    writer.add_graph(&model, Tensor::ones([3, 1, 6, 6], DType::F32))?;
    writer.close()?;
    let after: Vec<bool> = model.modules().iter().map(|m| m.is_training()).collect();
    assert_eq!(
        (before, mean),
        (after, model.named_buffers()[0].1.to_vec::<f32>()?)
    );

    let Some(all) = read(folder.path()) else {
        return Ok(());
    };
    let graph = &all["runs"]["."]["graph"];
    let nodes = graph["nodes"].as_array().unwrap();
    let named = |name: &str| {
        nodes
            .iter()
            .find(|n| n["name"] == name)
            .unwrap_or_else(|| panic!("{name} in {nodes:#?}"))
    };
    assert_eq!(named("input/0")["shapes"], json!([[3, 1, 6, 6]]));
    assert_eq!(named("Sequential/Conv2d[conv]/weight")["op"], "Parameter");
    named("Sequential/BatchNorm2d[norm]/running_mean");
    named("Sequential/Sequential[body]/Linear[2]/bias");
    let conv = named("Sequential/Conv2d[conv]/conv");
    let inputs = json!(["input/0", "Sequential/Conv2d[conv]/weight"]);
    assert_eq!(
        (&conv["input"], &conv["shapes"]),
        (&inputs, &json!([[3, 2, 4, 4]]))
    );
    assert_eq!(named("output/0")["shapes"], json!([[3, 4]]));
    let scope = |node: &Value| {
        node["name"]
            .as_str()
            .unwrap()
            .rsplit_once('/')
            .unwrap()
            .0
            .to_string()
    };
    let scopes: BTreeSet<String> = nodes.iter().map(scope).collect();
    for wanted in [
        "Sequential/ReLU[relu]",
        "Sequential/Sequential[body]/Linear[2]",
        "kernels",
    ] {
        assert!(scopes.contains(wanted), "{wanted} in {scopes:?}");
    }
    let names: BTreeSet<&str> = nodes.iter().map(|n| n["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), nodes.len());
    for node in nodes {
        for input in node["input"].as_array().unwrap() {
            let input = input.as_str().unwrap().split(':').next().unwrap();
            assert!(names.contains(input), "{input} of {node}");
        }
    }
    let times = graph["times"].as_object().unwrap();
    assert!(
        !times.is_empty()
            && times
                .iter()
                .all(|(name, t)| names.contains(&name[..]) && t.as_u64() > Some(0))
    );
    Ok(())
}
