//! Measuring workloads.

mod candidates;
mod peaks;
mod program;

pub use candidates::candidates;
pub use peaks::Peaks;
pub use program::{Program, program};

use crate::spec::Workload;
use kiln::{CompileOptions, DType, Device, Explain, Result, Tensor};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The effort of a measurement.
#[derive(Clone, Debug)]
pub struct Effort {
    /// The total time of all rounds for each workload.
    pub time: Duration,
    /// The number of rounds over all workloads; a temporary disturbance of the machine then affects all of them.
    pub rounds: usize,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort {
            time: Duration::from_millis(500),
            rounds: 5,
        }
    }
}

/// The measurements of a workload.
#[derive(Clone, Debug, Serialize)]
pub struct WorkloadMeasurements {
    /// The workload, as text.
    pub workload: String,
    /// Element type.
    pub dtype: String,
    /// The algorithms of its kernels that have several candidates.
    pub algorithms: Vec<String>,
    /// Kernel launches per run.
    pub kernels: usize,
    /// Arithmetic operations per run, as estimated by the compiler.
    pub flops: f64,
    /// Bytes that the kernels of a run touch, as estimated by the compiler.
    pub bytes: f64,
    /// Seconds of every run, in the order of measurement.
    pub times: Vec<f64>,
}

impl WorkloadMeasurements {
    /// The least, the quartiles and the most, in seconds.
    pub fn quartiles(&self) -> [f64; 5] {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        let last = times.len().saturating_sub(1);
        let quantile = |quarter: usize| times.get(last * quarter / 4).copied().unwrap_or(f64::NAN);
        [0, 1, 2, 3, 4].map(quantile)
    }

    /// The median, in seconds.
    pub fn median(&self) -> f64 {
        self.quartiles()[2]
    }

    /// The interquartile range as a fraction of the median.
    pub fn spread(&self) -> f64 {
        let [_, low, median, high, _] = self.quartiles();
        (high - low) / median
    }

    /// Operations per second at the median.
    pub fn flops_per_second(&self) -> f64 {
        self.flops / self.median()
    }

    /// Bytes per second at the median.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes / self.median()
    }

    /// The shortest time that these peaks allow, as a fraction of the median: 1 is the roofline. It exceeds 1 if
    /// operands come from caches. `None` if the peak of the dtype's arithmetic is unknown.
    pub fn share(&self, peaks: &Peaks) -> Option<f64> {
        let flops = peaks.flops.get(&self.dtype)?;
        let lower_bound = (self.flops / flops).max(self.bytes / peaks.bandwidth);
        Some(lower_bound / self.median())
    }
}

/// A workload that is ready to run.
pub struct Ready {
    program: Program,
    device: Device,
    measured: WorkloadMeasurements,
}

impl Ready {
    /// Compiles a workload for a device and runs it once.
    ///
    /// # Errors
    /// If the sizes don't go together, or the run fails.
    pub fn new(
        workload: &Workload,
        dtype: DType,
        device: Device,
        options: &CompileOptions,
    ) -> Result<Ready> {
        let program = program(workload, dtype, device, options)?;
        let explain = program.program.explain();
        let (flops, bytes) = cost(explain);
        let mut algorithms: Vec<String> = Vec::new();
        for kernel in &explain.kernels {
            let chosen = kernel.choice.as_ref().map(|c| c.chosen.clone());
            if let Some(a) = kernel.algorithm.as_ref().map(|a| a.to_string()).or(chosen)
                && !algorithms.contains(&a)
            {
                algorithms.push(a);
            }
        }
        let measured = WorkloadMeasurements {
            workload: workload.to_string(),
            dtype: dtype.to_string(),
            algorithms,
            kernels: explain.kernels_run(),
            flops,
            bytes,
            times: Vec::new(),
        };
        let mut ready = Ready {
            program,
            device,
            measured,
        };
        ready.run(1)?;
        Ok(ready)
    }

    /// Runs it `times` times and returns the seconds per run.
    fn run(&mut self, times: usize) -> Result<f64> {
        let inputs: Vec<&Tensor> = self.program.inputs.iter().collect();
        let start = Instant::now();
        for _ in 0..times {
            for t in self.program.program.run(&inputs)? {
                t.realize()?;
            }
        }
        self.device.synchronize()?;
        Ok(start.elapsed().as_secs_f64() / times as f64)
    }

    /// Measures for some time, at least once. Several runs are timed together if one is too short for the clock, or
    /// for waiting for a GPU after it.
    fn measure(&mut self, time: Duration) -> Result<()> {
        let single_run = self.run(1)?;
        let min_time = if self.device.gpu().is_some() {
            1e-3
        } else {
            2e-6
        };
        let batch = (min_time / single_run.max(1e-9)).ceil().clamp(1.0, 1000.0) as usize;
        let start = Instant::now();
        loop {
            let seconds = self.run(batch)?;
            self.measured.times.push(seconds);
            if start.elapsed() >= time {
                return Ok(());
            }
        }
    }
}

/// Operations and bytes of a run.
fn cost(explain: &Explain) -> (f64, f64) {
    let mut total = (0.0, 0.0);
    for kernel in explain.kernels.iter().filter(|k| !k.prepared) {
        let number = |d: &kiln::Dim| d.as_const().unwrap_or(0) as f64;
        total.0 += number(&kernel.cost.flops);
        total.1 += number(&kernel.cost.bytes);
    }
    total
}

/// Measures workloads in rounds. After each part, `progress` gets the number of finished parts and their total.
///
/// # Errors
/// If a run fails.
pub fn measure(
    mut ready: Vec<Ready>,
    effort: &Effort,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<WorkloadMeasurements>> {
    let rounds = effort.rounds.max(1);
    let (slots, time_per_slot) = (rounds * ready.len(), effort.time / rounds as u32);
    for round in 0..rounds {
        for i in 0..ready.len() {
            ready[i].measure(time_per_slot)?;
            progress(round * ready.len() + i + 1, slots);
        }
    }
    Ok(ready.into_iter().map(|r| r.measured).collect())
}
