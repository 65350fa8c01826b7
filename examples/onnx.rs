//! Loads an ONNX model, runs it on ones and prints what it gives, as a program with onnxruntime's `InferenceSession`
//! does.
//!
//! `cargo run --example onnx -- model.onnx` takes a model; without an argument, the program exports one first.

use kiln::onnx::{Data, Export, export, load};
use kiln::prelude::*;
use kiln::{DimSpec, no_grad};
use std::path::PathBuf;

fn main() -> Result<()> {
    let path = match std::env::args_os().nth(1) {
        Some(path) => path.into(),
        None => classifier()?,
    };

    // session = onnxruntime.InferenceSession(path)
    let model = load(&path)?;
    for input in model.inputs() {
        println!("takes {}: {input}", input.name);
    }
    for output in model.outputs() {
        println!("gives {}: {output}", output.name);
    }

    // session.run(None, {"input": x})
    let specs = model.specs(&[])?.into_iter();
    let ones = specs.map(|spec| {
        let size = |d: &DimSpec| match d {
            DimSpec::Known(n) => *n,
            DimSpec::Symbol(_) => 1,
        };
        Tensor::ones(spec.dims.iter().map(size).collect::<Vec<_>>(), spec.dtype)
    });
    let names = model.inputs().iter().map(|input| &input.name);
    let outputs = model.run(names.zip(ones))?;
    for (name, value) in outputs.iter() {
        match value {
            Data::Tensor(t) => println!("{name} = {t}"),
            other => println!("{name} = {other:?}"),
        }
    }
    Ok(())
}

/// Exports a small classifier of rows and returns its path.
fn classifier() -> Result<PathBuf> {
    let model = sequential![Linear::new(4, 16), ReLU::new(), Linear::new(16, 3)]?;
    model.eval();
    let rows = Spec::new(DType::F32, ("batch", 4));
    let forward = no_grad(|| compile(rows, |x| model.call(x).softmax(1)))?;
    let path = std::env::temp_dir().join("kiln-classifier.onnx");
    export(&forward, &path, Export::new().inputs(["rows"]).outputs(["chances"]))?;
    Ok(path)
}
