//! The run times of packages' entries.

use super::open;
use super::subject::{BoundEntry, pairs, subjects};
use crate::Failure;
use crate::bench::Effort;
use crate::failure::{say, say_json};
use clap::ArgMatches;
use kiln::package::Package;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The measurements of an entry, in seconds and bytes.
#[derive(Serialize)]
struct EntryMeasurements {
    package: String,
    entry: String,
    /// The time from the open package to the first result.
    first: f64,
    /// The time of every later run, in order.
    times: Vec<f64>,
    weights: usize,
    peak: usize,
}

impl EntryMeasurements {
    /// The least, the median, and the upper quartile.
    fn quartiles(&self) -> [f64; 3] {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        let last = times.len().saturating_sub(1);
        [0, 2, 3].map(|quarter| times.get(last * quarter / 4).copied().unwrap_or(f64::NAN))
    }
}

/// Measures entries of packages, in rounds over all of them. Changes of states stay in memory.
pub(crate) fn bench(m: &ArgMatches, files: &[PathBuf], effort: &Effort) -> Result<(), Failure> {
    let mut ready: Vec<(BoundEntry, EntryMeasurements)> = Vec::new();
    let mut opened = Vec::new();
    for file in files {
        let package: Package = open(file)?;
        for subject in subjects(&package, m)? {
            let began = Instant::now();
            subject.entry.run(subject.inputs())?;
            let first = began.elapsed().as_secs_f64();
            let memory = subject.entry.memory(&pairs(&subject.sizes))?;
            let measured = EntryMeasurements {
                package: file.display().to_string(),
                entry: subject.name.clone(),
                first,
                times: Vec::new(),
                weights: memory.weights,
                peak: memory.run.peak,
            };
            ready.push((subject, measured));
        }
        opened.push(package);
    }
    let rounds = effort.rounds.max(1);
    for _ in 0..rounds {
        for (subject, measured) in &mut ready {
            measure(subject, measured, effort.time / rounds as u32)?;
        }
    }
    let rows: Vec<EntryMeasurements> = ready.into_iter().map(|(_, measured)| measured).collect();
    match m.get_flag("json") {
        true => say_json(&rows),
        false => say(&table(&rows)?),
    }
}

/// Measures for some time, at least once.
fn measure(
    subject: &BoundEntry,
    measured: &mut EntryMeasurements,
    time: Duration,
) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        let inputs = subject.inputs();
        let start = Instant::now();
        drop(subject.entry.run(inputs)?);
        measured.times.push(start.elapsed().as_secs_f64());
        if began.elapsed() >= time {
            return Ok(());
        }
    }
}

fn table(rows: &[EntryMeasurements]) -> Result<String, Failure> {
    let mut text = format!(
        "{:<32} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}\n",
        "entry", "least", "median", "quartile", "first", "weights", "peak"
    );
    for m in rows {
        let [least, median, quartile] = m.quartiles().map(|t| t * 1e3);
        writeln!(
            text,
            "{:<32} {least:>8.3} ms {median:>8.3} ms {quartile:>8.3} ms {:>8.3} ms {:>8.2} MB {:>8.2} MB",
            m.entry,
            m.first * 1e3,
            m.weights as f64 / 1e6,
            m.peak as f64 / 1e6
        )?;
    }
    Ok(text)
}
