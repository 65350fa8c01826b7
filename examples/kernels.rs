//! How many kernels networks and training steps become.
//!
//! ```sh
//! cargo run --release --example kernels              # a table
//! cargo run --release --example kernels -- encoder   # every kernel of one of them
//! ```
//!
//! A launch is a step of the plan that every run takes; an algorithm of several launches, such as a sum in
//! parts, counts with each. Launches that start together, such as the updates of small parameters, are one
//! parallel region, as PyTorch's `foreach` kernels are, and one kernel. What depends on weights alone is
//! computed once per change of the weights, and counted apart. Casts are launches that only change a dtype. The peak is what the memory
//! plan of a run needs for temporaries, beside the least that any layout of them needs; kept are those that are there
//! while the first result is computed and read behind it, which is what a training step keeps from forward to backward. The time is the least
//! of a few runs.

use kiln::nn::Module;
use kiln::{CompileOptions, Compiled, Result, Tensor};
use kiln_models::workloads::{WORKLOADS, Workload};
use std::time::{Duration, Instant};

/// Runs of which the fastest counts.
const RUNS: usize = 5;

fn main() -> Result<()> {
    let options = CompileOptions::default();
    let only = std::env::args().nth(1);
    if only.is_none() {
        println!(
            "{:>7}  {:>8}  {:>8}  {:>8}  {:>5}  {:>7}  {:>10}  {:>9}  {:>9}  {:>8}  {:>5}  {:>8}",
            "kernels",
            "launches",
            "together",
            "prepared",
            "casts",
            "patches",
            "parameters",
            "kept (MB)",
            "peak (MB)",
            "bound",
            "ratio",
            "ms"
        );
    }
    for (name, about, make) in WORKLOADS {
        match &only {
            Some(only) if only == name => print!("{}", make((&options).into())?.program.explain()),
            Some(_) => {}
            None => println!("{}  {name}: {about}", row(&make((&options).into())?)?),
        }
    }
    Ok(())
}

/// The numbers of a program.
fn row(workload: &Workload) -> Result<String> {
    let explain = workload.program.explain();
    let inputs: Vec<&Tensor> = workload.inputs.iter().collect();
    let mut least = Duration::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        for t in workload.program.run(&inputs)? {
            t.realize()?;
        }
        least = least.min(start.elapsed());
    }
    let memory = explain.memory.unwrap_or_default();
    let [peak, bound] = [memory.peak, memory.lower_bound].map(|bytes| bytes as f64 / 1e6);
    Ok(format!(
        "{:>7}  {:>8}  {:>8}  {:>8}  {:>5}  {:>7}  {:>10}  {:>9.3}  {peak:>9.3}  {bound:>8.3}  {:>5.3}  {:>8.2}",
        explain.kernels_run(),
        explain.launches_run(),
        explain.joined(),
        explain.kernels_prepared(),
        explain.casts_alone(),
        explain.rewrites.len(),
        workload.model.parameters().len(),
        kept(&workload.program) as f64 / 1e6,
        peak / bound,
        least.as_secs_f64() * 1e3,
    ))
}

/// Bytes of the temporaries that are there while the first result is computed, and read behind it.
fn kept(program: &Compiled) -> usize {
    let plan = program.plan();
    let results = &program.signature().results;
    let Some(loss) = results.first().and_then(|r| plan.outputs.get(r.at as usize)) else {
        return 0;
    };
    let writer = plan.run.iter().rposition(|s| s.args.contains(&loss.buffer));
    // Steps that start together are one.
    let begun = plan.run.iter().take(writer.map_or(0, |at| at + 1));
    let at = begun.filter(|s| !s.joined).count().saturating_sub(1);
    let blocks = program.explain().temporaries.iter();
    let kept = blocks.filter(|b| b.buffer.is_some() && b.first <= at && at < b.last);
    kept.map(|b| b.bytes).sum()
}
