//! Filling the store of measurements, and looking after it.

use crate::bench::program;
use crate::report::{duration, percent};
use crate::spec::Workload;
use kiln::{CompileOptions, DType, Device, Result};
use kiln_compiler::tune::{Choice, Outcome, Record, Store, Trial, Why};
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::Arc;

/// What tuning a workload gave.
#[derive(Clone, Debug, Serialize)]
pub struct Tuned {
    /// The workload, as text.
    pub workload: String,
    /// Its kernels that had candidates, each once.
    pub kernels: Vec<TunedKernel>,
}

/// What was chosen for a kernel.
#[derive(Clone, Debug, Serialize)]
pub struct TunedKernel {
    /// What stands for it in the store.
    pub key: String,
    /// The chosen candidate.
    pub chosen: String,
    /// Why.
    pub why: String,
    /// Whether it was measured now.
    pub measured: bool,
    /// How many times as long as the chosen one the default takes.
    pub speedup: Option<f64>,
    /// Everything that was tried.
    pub trials: Vec<Trial>,
}

/// Compiles a workload, which chooses the algorithms of its kernels by the process's settings.
///
/// # Errors
/// If it can't be compiled.
pub fn tune(
    workload: &Workload,
    dtype: DType,
    device: Device,
    options: &CompileOptions,
) -> Result<Tuned> {
    let program = program(workload, dtype, device, options)?.program;
    let mut kernels: Vec<TunedKernel> = Vec::new();
    for kernel in &program.explain().kernels {
        if let Some(choice) = &kernel.choice
            && kernels.iter().all(|k| k.key != choice.key)
        {
            kernels.push(tuned(choice));
        }
    }
    Ok(Tuned {
        workload: workload.to_string(),
        kernels,
    })
}

fn tuned(choice: &Arc<Choice>) -> TunedKernel {
    let time = |name: &str| choice.trials.iter().find(|t| t.name == name)?.time();
    let default = choice.candidates.first().and_then(|name| time(name));
    let speedup = default
        .zip(time(&choice.chosen))
        .map(|(d, c)| d.as_secs_f64() / c.as_secs_f64());
    TunedKernel {
        key: choice.key.clone(),
        chosen: choice.chosen.clone(),
        why: choice.why.text().to_string(),
        measured: choice.why == Why::Measured,
        speedup,
        trials: choice.trials.clone(),
    }
}

impl Tuned {
    /// A text for the terminal.
    pub fn text(&self) -> String {
        let measured = self.kernels.iter().filter(|k| k.measured).count();
        let mut text = format!(
            "{}: {} kernels with candidates, {measured} measured now\n",
            self.workload,
            self.kernels.len()
        );
        for k in &self.kernels {
            let gain = k
                .speedup
                .map_or(String::new(), |s| format!(", {s:.2}x the default's speed"));
            let _ = writeln!(text, "  {}\n    {} ({}){gain}", k.key, k.chosen, k.why);
            text += &trials(&k.trials, "      ");
        }
        text
    }
}

/// A line a candidate.
fn trials(all: &[Trial], indent: &str) -> String {
    let mut text = String::new();
    for t in all {
        let what = match (&t.outcome, t.time()) {
            (Outcome::Timed(times), Some(time)) => format!(
                "{} in {} runs, spread {}",
                duration(time.as_secs_f64()),
                times.len(),
                t.spread().map_or(String::new(), percent)
            ),
            _ => t.to_string(),
        };
        let _ = writeln!(text, "{indent}{:<14} {what}", t.name);
    }
    text
}

/// A line a record of the store: what was measured, and the fastest.
pub fn list(store: &Store) -> String {
    let mut text = String::new();
    for r in store.records() {
        let timed = r.trials.iter().filter_map(|t| Some((t.time()?, t)));
        let best = timed.min_by_key(|(time, _)| *time);
        let best = best.map_or("nothing right".to_string(), |(time, t)| {
            format!("{} {}", t.name, duration(time.as_secs_f64()))
        });
        let _ = writeln!(text, "{}  {best}", r.key);
    }
    text
}

/// Everything that is known of the keys that contain a text.
pub fn show(records: &[Record]) -> String {
    let mut text = String::new();
    for r in records {
        let _ = writeln!(text, "{}\n  measured {} s after 1970", r.key, r.at);
        text += &trials(&r.trials, "  ");
    }
    text
}
