//! The numbers of kernels of networks and training steps.
//!
//! ```sh
//! cargo run --release --example kernels                          # a table
//! cargo run --release --example kernels -- encoder               # every kernel of one of them
//! cargo run --release --example kernels -- encoder-step bf16     # of a training step inside autocast
//! ```
//!
//! A launch is a step of the plan that every run takes; each launch of an algorithm of several, such as a sum in
//! parts, counts. Launches that start together, such as the updates of small parameters, are one parallel region, as
//! PyTorch's `foreach` kernels are, and one kernel. Work that depends on weights alone is done once per change of the
//! weights, and counted separately. Casts are launches that only change a dtype. The peak is the bytes of temporaries
//! in the memory plan of a run, printed next to the lower bound of any layout. Kept are the temporaries that exist
//! while the first result is computed and are read after it: those that a training step keeps from forward to
//! backward. The time is the shortest of a few runs.

use kiln::nn::Module;
use kiln::{CompileOptions, DType, Error, Result, Tensor};
use kiln_models::workloads::{self, Setup, WORKLOADS, Workload};
use std::time::{Duration, Instant};

/// Training steps that the table has in halves too.
const HALF_DTYPES: [(&str, DType); 3] =
    [("resnet18-step", DType::BF16), ("encoder-step", DType::BF16), ("encoder-step", DType::F16)];

/// Runs of which the fastest counts.
const RUNS: usize = 5;

fn main() -> Result<()> {
    let options = CompileOptions::default();
    let setup = |dtype| Setup { dtype, ..(&options).into() };
    let mut arguments = std::env::args().skip(1);
    if let Some(name) = arguments.next() {
        let setup = setup(dtype(arguments.next())?);
        let program = workloads::make(&name, setup)?.program;
        print!("{}", program.explain());
        return Ok(());
    }
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
    for (name, about, make) in WORKLOADS {
        println!("{}  {name}: {about}", row(&make(setup(DType::F32))?)?);
    }
    for (name, dtype) in HALF_DTYPES {
        let workload = workloads::make(name, setup(dtype))?;
        println!("{}  {name} inside autocast to {dtype}", row(&workload)?);
    }
    Ok(())
}

/// The dtype of a name, f32 where there's none.
fn dtype(name: Option<String>) -> Result<DType> {
    let name = name.unwrap_or_else(|| "f32".into());
    let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16];
    let selected = dtypes.into_iter().find(|d| d.to_string() == name);
    selected.ok_or_else(|| Error::invalid("kernels", format!("there is no dtype {name}")))
}

/// The numbers of a program.
fn row(workload: &Workload) -> Result<String> {
    let explain = workload.program.explain();
    let inputs: Vec<&Tensor> = workload.inputs.iter().collect();
    let mut min_time = Duration::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        for t in workload.program.run(&inputs)? {
            t.realize()?;
        }
        min_time = min_time.min(start.elapsed());
    }
    let memory = explain.memory.unwrap_or_default();
    let [peak, bound] = [memory.peak, memory.lower_bound].map(|bytes| bytes as f64 / 1e6);
    Ok(format!(
        "{:>7}  {:>8}  {:>8}  {:>8}  {:>5}  {:>7}  {:>10}  {:>9.3}  {peak:>9.3}  {bound:>8.3}  {:>5.3}  {:>8.2}",
        explain.kernels_run(),
        explain.launches_run(),
        explain.concurrent(),
        explain.kernels_prepared(),
        explain.casts_alone(),
        explain.rewrites.len(),
        workload.model.parameters().len(),
        workload.kept() as f64 / 1e6,
        peak / bound,
        min_time.as_secs_f64() * 1e3,
    ))
}
