//! Writes a workload into a package: `cargo run --release -p kiln-models --example export -- resnet50 resnet50.kiln`.

use kiln::package::Builder;
use kiln_models::workloads;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, file] = &arguments[..] else {
        return Err("usage: export WORKLOAD FILE".into());
    };
    let workload = workloads::make(name, (&kiln::CompileOptions::default()).into())?;
    Builder::new()
        .module("", &*workload.model)
        .entry("forward", &workload.program)
        .metadata("network", name)
        .save(file)?;
    println!(
        "{file}: {:.1} MB",
        std::fs::metadata(file)?.len() as f64 / 1e6
    );
    Ok(())
}
