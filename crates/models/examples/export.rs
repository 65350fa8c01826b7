//! Writes a workload into a package: `cargo run --release -p kiln-models --example export -- resnet50 resnet50.kiln`.
//! With `--packed` at the end, it also packs the weights for the level in use.

use kiln::package::{Builder, Features};
use kiln_models::workloads;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, file, packed) = match &arguments[..] {
        [name, file] => (name, file, false),
        [name, file, packed] if packed == "--packed" => (name, file, true),
        _ => return Err("usage: export WORKLOAD FILE [--packed]".into()),
    };
    let workload = workloads::make(name, (&kiln::CompileOptions::default()).into())?;
    let mut builder = Builder::new()
        .module("", &*workload.model)
        .entry("forward", &workload.program)
        .metadata("network", name);
    if packed {
        builder = builder.packed_weights(Features::current()?);
    }
    builder.save(file)?;
    println!(
        "{file}: {:.1} MB",
        std::fs::metadata(file)?.len() as f64 / 1e6
    );
    Ok(())
}
