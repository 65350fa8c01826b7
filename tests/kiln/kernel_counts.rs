//! How many kernels networks and training steps become and how much memory these need, and that they
//! compute what the program says.

#[path = "../../examples/kernels/models/mod.rs"]
mod models;

use kiln::{CompileOptions, Compiled, Tensor, with_seed};
use models::{Entry, WORKLOADS};
use std::collections::BTreeMap;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The most kernels that each program runs.
const MOST: [(&str, usize); 8] = [
    ("resnet50", 56),
    ("mobilenet", 73),
    ("unet", 31),
    ("encoder", 7),
    ("decoder", 11),
    ("lstm", 3),
    ("resnet18-step", 85),
    ("encoder-step", 31),
];

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

#[test]
fn programs_have_few_kernels() -> Outcome {
    for ((name, most), (found, _, make)) in MOST.iter().zip(WORKLOADS) {
        assert_eq!(name, found);
        let program = make((&CompileOptions::default()).into())?.program;
        let explain = program.explain();
        let (run, prepared) = (explain.kernels_run(), explain.kernels_prepared());
        println!(
            "{name}: {run} kernels and {prepared} prepared, {}",
            kinds(&program)
        );
        assert!(run <= *most, "{name} has {run} kernels:\n{explain}");
    }
    Ok(())
}

/// Bytes of temporaries are within 2% of what no layout can do without, and no more than without fusion.
#[test]
fn memory_is_planned_tightly() -> Outcome {
    let unfused = CompileOptions {
        fuse: false,
        ..CompileOptions::default()
    };
    for (name, _, make) in WORKLOADS {
        let memory = |options: &CompileOptions| -> kiln::Result<_> {
            Ok(make(options.into())?
                .program
                .explain()
                .memory
                .unwrap_or_default())
        };
        let (fused, unfused) = (memory(&CompileOptions::default())?, memory(&unfused)?);
        println!("{name}: {fused:?}, without fusion {unfused:?}");
        assert!(fused.lower_bound > 0);
        for m in [fused, unfused] {
            assert!(m.peak * 100 <= m.lower_bound * 102, "{name}: {m:?}");
        }
        assert!(fused.peak <= unfused.peak, "{name}: {fused:?} {unfused:?}");
    }
    Ok(())
}

/// What a program gives in two runs.
fn results(entry: &Entry, options: &CompileOptions) -> kiln::Result<Vec<Vec<f32>>> {
    let w = with_seed(7, || entry.2(options.into()))?;
    assert!(!w.model.parameters().is_empty());
    let inputs: Vec<&Tensor> = w.inputs.iter().collect();
    let mut results = Vec::new();
    for _ in 0..2 {
        for t in w.program.run(&inputs)? {
            results.push(t.to_vec()?);
        }
    }
    Ok(results)
}

#[test]
fn optimised_programs_compute_the_same() -> Outcome {
    let plain = CompileOptions {
        optimize: false,
        ..CompileOptions::default()
    };
    for entry in WORKLOADS {
        let (old, new) = (
            results(entry, &plain)?,
            results(entry, &CompileOptions::default())?,
        );
        for (old, new) in old.iter().zip(&new) {
            let size = old.iter().fold(1e-30f32, |m, x| m.max(x.abs()));
            for (a, b) in old.iter().zip(new) {
                let within = (a - b).abs() <= 2e-4 * size;
                assert!(within, "{}: {a} became {b} (largest {size})", entry.0);
            }
        }
    }
    Ok(())
}
