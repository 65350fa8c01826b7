//! The two workloads of the comparison, among those of the example `kernels`.

#[path = "../../examples/kernels/models/mod.rs"]
mod kernels;

use kernels::{WORKLOADS, Workload};
use kiln::{CompileOptions, Error, Result};

/// The workloads' names, for the table.
pub const NAMES: [(&str, &str); 2] = [
    (
        "resnet18",
        "ResNet-18, 16 images of 64x64, 1000 classes, SGD with momentum",
    ),
    (
        "encoder",
        "encoder block, d 768, 12 heads, 256 tokens, batch 4, AdamW",
    ),
];

/// Makes a workload with random weights.
///
/// # Errors
/// If there is none of that name.
pub fn workload(name: &str) -> Result<Workload> {
    let step = format!("{name}-step");
    let Some((.., make)) = WORKLOADS.iter().find(|(n, ..)| *n == step) else {
        return Err(Error::invalid("workload", format!("there is no {name}")));
    };
    make(&CompileOptions::default())
}
