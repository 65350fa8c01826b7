//! The Kiln side of the comparison, which runs the workload once per line of its input.

use crate::Failure;
use crate::workloads::workload;
use kiln::nn::{Module, StateDict};
use kiln::{DType, Tensor};
use std::io::BufRead;
use std::time::Instant;

/// Writes random weights and inputs to a file, for all sides.
pub fn write_start(name: &str, path: &str) -> Result<(), Failure> {
    kiln::manual_seed(0);
    let w = workload(name)?;
    let mut state = w.model.state_dict();
    for (i, t) in w.inputs.iter().enumerate() {
        state.insert(format!("batch.{i}"), t);
    }
    Ok(state.save(path)?)
}

/// Answers the lines of the standard input. `step` gives the time of a run, and the loss or the mean of the result's
/// absolute values. `memory` gives the peak of the resident memory in bytes, minus that before the model was created.
/// After `profile`, `times` prints the time of each kernel on the standard error.
pub fn serve(name: &str, path: &str, threads: usize) -> Result<(), Failure> {
    kiln::set_threads(threads);
    let base = status("VmRSS")?;
    // Calibration uses the weights that are read below.
    kiln::manual_seed(0);
    let w = workload(name)?;
    let mut state = StateDict::load(path)?;
    let inputs: Option<Vec<Tensor>> = (0..w.inputs.len())
        .map(|i| state.remove(&format!("batch.{i}")))
        .collect();
    let inputs = inputs.ok_or("the file holds no inputs")?;
    w.model.load_state_dict(&state, true)?;
    drop(state);
    std::fs::write("/proc/self/clear_refs", "5")?;
    println!("ready\t{}\t{threads}", env!("CARGO_PKG_VERSION"));
    for line in std::io::stdin().lock().lines() {
        match line?.trim() {
            "memory" => println!("{}", status("VmHWM")? - base),
            "profile" => w.program.executable().profile(true),
            "times" => print_times(&w.program),
            _ => {
                let start = Instant::now();
                let results = w.program.run(&inputs)?;
                for t in &results {
                    t.realize()?;
                }
                let time = start.elapsed().as_secs_f64();
                println!("{time}\t{}", mean_abs(&results[0])?);
            }
        }
    }
    Ok(())
}

/// Returns the mean of the absolute values of a result, which is the loss of a training step.
fn mean_abs(t: &Tensor) -> Result<f64, Failure> {
    let numbers = t.to_dtype(DType::F32).to_vec::<f32>()?;
    let sum: f64 = numbers.iter().map(|v| f64::from(*v).abs()).sum();
    Ok(sum / numbers.len() as f64)
}

/// Prints every kernel of a step with its minimum time, slowest first.
fn print_times(step: &kiln::Program) {
    let mut times = step.executable().step_times();
    times.sort_by_key(|t| std::cmp::Reverse(t.least));
    for t in times.iter().filter(|t| t.runs > 0) {
        let milliseconds = t.least.as_secs_f64() * 1e3;
        eprintln!("{milliseconds:>9.3} ms  {:>4} {}", t.step, t.kernel);
    }
}

/// Returns a size from `/proc/self/status` in bytes.
fn status(key: &str) -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|l| l.starts_with(key));
    let number = line.and_then(|l| l.split_whitespace().nth(1));
    Ok(number.ok_or("no such size")?.parse::<u64>()? * 1024)
}
