//! Runs a package of the digits with nothing but the runtime: `elsewhere PACKAGE INPUTS OUTPUTS`.
//!
//! Of the tensors in INPUTS, a safetensors file, it classifies `images` `[n, 1, 8, 8]` and trains on the batches
//! `train_images` `[steps, batch, 1, 8, 8]` and `train_labels` `[steps, batch]` with the learning rate `lr`. It
//! writes the `predictions` `[n]` and the `losses` `[steps]` into OUTPUTS. `main` of `kiln-digits` starts it.

use kiln_package::{Buffer, Element, Package, RuntimeError, read_safetensors, write_safetensors};
use std::process::ExitCode;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [package, inputs, outputs] => run(package, inputs, outputs),
        _ => Err("usage: elsewhere PACKAGE INPUTS OUTPUTS".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(package: &str, inputs: &str, outputs: &str) -> Result<(), Failure> {
    let package = Package::open(package)?;
    let inputs = read_safetensors(inputs)?;
    let tensor = |name: &str| {
        inputs
            .get(name)
            .ok_or_else(|| format!("{name} is not given"))
    };
    let predictions = package
        .entry("forward")?
        .run([("images", tensor("images")?.clone())])?;

    let lr = tensor("lr")?.to_vec::<f64>()?;
    let lr = lr.first().ok_or("lr is empty")?;
    package.set_number("optimizer.numbers", "lr", *lr)?;
    let step = package.entry("train_step")?;
    let (images, labels) = (tensor("train_images")?, tensor("train_labels")?);
    let mut losses = Vec::new();
    for i in 0..images.shape()[0] as usize {
        let batch = [
            ("images", row::<f32>(images, i)?),
            ("labels", row::<i64>(labels, i)?),
        ];
        losses.extend(step.run(batch)?.get("loss")?.to_vec::<f32>()?);
    }
    let steps = [losses.len() as i64];
    write_safetensors(
        outputs,
        [
            ("predictions".into(), predictions.get("digits")?.clone()),
            ("losses".into(), Buffer::from_slice(&losses, &steps)?),
        ],
    )?;
    Ok(())
}

/// A row along the first dim.
fn row<T: Element>(matrix: &Buffer, i: usize) -> Result<Buffer, RuntimeError> {
    let shape = &matrix.shape()[1..];
    let len = shape.iter().product::<i64>() as usize;
    Buffer::from_slice(&matrix.as_slice::<T>()?[i * len..(i + 1) * len], shape)
}
