//! How many kernels networks and training steps become, and that they still compute what they say.

#[path = "../../examples/kernels/models/mod.rs"]
mod models;

use kiln::{CompileOptions, Compiled};
use models::{WORKLOADS, Workload};
use std::collections::BTreeMap;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn workload(name: &str) -> kiln::Result<Workload> {
    let found = WORKLOADS.iter().find(|(n, ..)| *n == name);
    (found.expect("a workload").2)(&CompileOptions::default())
}

/// The first words of the kernels' names with how often they run.
fn kinds(program: &Compiled) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let explain = program.explain();
    for k in explain.kernels.iter().filter(|k| !k.prepared && !k.joined) {
        let kind = k.name.split(['+', '_', ' ']).next().unwrap_or_default();
        *counts.entry(kind).or_default() += 1;
    }
    format!("{counts:?}")
}

/// Every program has at most as many kernels as stand here.
#[test]
fn programs_have_few_kernels() -> Outcome {
    let most = [
        ("resnet50", 60),
        ("encoder", 14),
    ];
    for (name, most) in most {
        let w = workload(name)?;
        let explain = w.program.explain();
        let (run, prepared) = (explain.kernels_run(), explain.kernels_prepared());
        println!("{name}: {run} kernels, {prepared} prepared, {}", kinds(&w.program));
        assert!(run <= most, "{name} has {run} kernels:\n{explain}");
    }
    Ok(())
}
