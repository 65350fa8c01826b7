//! All candidates for the kernels of a workload.

use super::{Effort, WorkloadMeasurements, program};
use crate::spec::Workload;
use kiln::{CompileOptions, DType, Device, Error, ErrorKind, Result, tuning::Mode};
use kiln_codegen::{Options, Work, lower};
use kiln_compiler::tune::{self, Precision, Settings, Trial};
use std::time::Duration;

/// Checks and times the candidates of each kernel that has several, alone, on operands that are not in the caches.
/// Returns those that were timed, and for each other candidate the reason why it was not. Nothing is stored.
///
/// # Errors
/// If the workload can't be compiled.
pub fn candidates(
    workload: &Workload,
    dtype: DType,
    device: Device,
    effort: &Effort,
) -> Result<(Vec<WorkloadMeasurements>, Vec<String>)> {
    let mut options = CompileOptions::default();
    options.tune.mode = Mode::Off;
    let compiled = program(workload, dtype, device, &options)?;
    let Some(stages) = &compiled.program.explain().stages else {
        return Ok(Default::default());
    };
    let gpu = device.gpu();
    let with_ways = Options {
        machine: stages.program.machine,
        candidates: true,
        ..Options::default()
    };
    let program = lower(&stages.optimized, &with_ways)
        .map_err(|e| Error::at_caller(ErrorKind::Unsupported, "kiln", e.to_string()))?;
    let effort = tune::Effort {
        min_rounds: effort.rounds,
        max_rounds: usize::MAX,
        time: effort.time,
        burst: Duration::from_millis(1),
        patience: Settings::default().patience,
    };
    let mut kernels: Vec<(usize, Vec<Trial>)> = Vec::new();
    for (t, task) in program.tasks.iter().enumerate() {
        let same = |(other, _): &(usize, _)| program.tasks[*other].work == task.work;
        if !kernels.iter().any(same) {
            let precision = Precision::current();
            let trials = tune::measure(task, 0, precision, &effort, gpu.as_ref());
            kernels.push((t, trials));
        }
    }
    kernels.retain(|(_, trials)| trials.len() > 1);
    let several = kernels.len() > 1;
    let (mut timed, mut out) = (Vec::new(), Vec::new());
    for (t, trials) in &kernels {
        let work = &program.tasks[*t].work;
        let name = match several {
            true => format!("{workload} {t} {}", work.name()),
            false => workload.to_string(),
        };
        for trial in trials {
            match times(trial) {
                Some(times) => timed.push(measured(&name, dtype, work, trial, times)),
                None => out.push(format!("{name}: {trial}")),
            }
        }
    }
    Ok((timed, out))
}

/// The seconds of its runs, if it was timed.
fn times(trial: &Trial) -> Option<Vec<f64>> {
    match &trial.outcome {
        tune::Outcome::Timed(times) if !times.is_empty() => {
            Some(times.iter().map(|t| *t as f64 * 1e-9).collect())
        }
        _ => None,
    }
}

fn measured(
    name: &str,
    dtype: DType,
    work: &Work,
    trial: &Trial,
    times: Vec<f64>,
) -> WorkloadMeasurements {
    let cost = work.cost();
    let number = |d: &kiln::Dim| d.as_const().unwrap_or(0) as f64;
    WorkloadMeasurements {
        workload: name.to_string(),
        dtype: dtype.to_string(),
        algorithms: vec![trial.name.clone()],
        kernels: 1,
        flops: number(&cost.flops),
        bytes: number(&cost.bytes),
        times,
    }
}
