//! ONNX models as packages.

use crate::Failure;
use kiln::onnx::{Port, load};
use kiln::package::Builder;
use std::path::Path;

/// Returns the package of a model, with an entry `forward`.
pub(crate) fn builder(path: &Path, sizes: &[(&str, i64)]) -> Result<Builder, Failure> {
    let model = load(path)?;
    let forward = model.compile(model.specs(sizes)?)?;
    let names = |ports: &[Port]| ports.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    let (inputs, outputs) = (names(model.inputs()), names(model.outputs()));
    Ok(Builder::new()
        .module("", &model)
        .entry("forward", &forward)
        .inputs(inputs.iter().map(String::as_str))
        .outputs(outputs.iter().map(String::as_str)))
}
