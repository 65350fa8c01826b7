//! Filling and reading the store of measurements.

use crate::bench::program;
use crate::report::{duration, percent};
use crate::spec::Workload;
use kiln::{CompileOptions, DType, Device, Explain, KernelInfo, Result};
use kiln_codegen::Approximation;
use kiln_compiler::tune::{
    Choice, Limits, Outcome, Precision, Record, Settings, Trial, Tuning, Why,
};
use serde::Serialize;
use std::fmt::Write as _;

/// The outcome of tuning a workload.
#[derive(Clone, Debug, Serialize)]
pub struct Tuned {
    /// The workload, as text.
    pub workload: String,
    /// The choices, each key once: first those of the whole network, then of fusions, then of kernels.
    pub choices: Vec<TunedChoice>,
    /// The number of choices that were not measured because the budget was spent.
    pub unmeasured: usize,
    /// The seconds that the choices took.
    pub seconds: f64,
    /// Problems that do not concern candidates: damaged lines of the store, or a store that can't be written.
    pub notes: Vec<String>,
}

/// The kind of a choice.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The layouts of images in a whole network.
    Layouts,
    /// The fusion of ops into one kernel, and the schedule of its reductions.
    Fusion,
    /// The algorithm of a kernel.
    Kernel,
    /// The algorithm of a kernel under another layout or fusion, which was measured for comparison.
    Rejected,
}

/// The choice for a kernel, for a fusion, or for a network's layouts.
#[derive(Clone, Debug, Serialize)]
pub struct TunedChoice {
    /// The kind of the choice.
    pub what: What,
    /// Its key in the store.
    pub key: String,
    /// The chosen candidate.
    pub chosen: String,
    /// The reason of the choice.
    pub why: String,
    /// True if it was measured now.
    pub measured: bool,
    /// Other candidates that are as fast, so that the need for memory decided.
    pub ties: Vec<String>,
    /// The time of the default as a multiple of the chosen candidate's.
    pub speedup: Option<f64>,
    /// The trials of all candidates.
    pub trials: Vec<Trial>,
}

/// Compiles a workload; the process's settings decide the algorithms of its kernels.
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
    Ok(choices(workload.to_string(), program.explain()))
}

/// The choices for a program that was compiled by the process's settings.
pub fn choices(workload: String, explain: &Explain) -> Tuned {
    let mut used = Vec::new();
    collect_used(&explain.kernels, &mut used);
    let Tuning { choices, notes, .. } = &explain.tuning;
    let mut tuned_choices: Vec<TunedChoice> = choices.iter().map(|c| tuned(c, &used)).collect();
    // Kernels whose key was chosen for another kernel, so that the choice is not legal for their own sizes.
    let illegal = used.iter().filter(|c| c.why == Why::Illegal);
    tuned_choices.extend(illegal.map(|c| tuned(c, &used)));
    tuned_choices.sort_by(|a, b| (a.what, &a.key).cmp(&(b.what, &b.key)));
    let spent = choices.iter().filter(|c| c.why == Why::OutOfTime);
    Tuned {
        workload,
        choices: tuned_choices,
        unmeasured: spent.count(),
        seconds: explain.tuning.time.as_secs_f64(),
        notes: notes.clone(),
    }
}

/// The choices of kernels and of the kernels inside them.
fn collect_used<'a>(kernels: &'a [KernelInfo], used: &mut Vec<&'a Choice>) {
    for kernel in kernels {
        if let Some(choice) = kernel.choice.as_deref()
            && !used.contains(&choice)
        {
            used.push(choice);
        }
        collect_used(&kernel.inner, used);
    }
}

fn tuned(choice: &Choice, used: &[&Choice]) -> TunedChoice {
    let time = |name: &str| choice.trials.iter().find(|t| t.name == name)?.time();
    let default = choice.candidates.first().and_then(|name| time(name));
    let speedup = default
        .zip(time(&choice.chosen))
        .map(|(d, c)| d.as_secs_f64() / c.as_secs_f64());
    TunedChoice {
        what: match choice.key.split(' ').next() {
            Some("network") => What::Layouts,
            Some("fusion") => What::Fusion,
            _ if used.iter().any(|u| u.key == choice.key) => What::Kernel,
            _ => What::Rejected,
        },
        key: choice.key.clone(),
        chosen: choice.chosen.clone(),
        why: choice.why.text().to_string(),
        measured: choice.why == Why::Measured,
        ties: choice.ties.clone(),
        speedup,
        trials: choice.trials.clone(),
    }
}

impl Tuned {
    /// A text for the terminal.
    pub fn text(&self) -> String {
        let count = |what: What| self.choices.iter().filter(|c| c.what == what).count();
        let measured = self.choices.iter().filter(|c| c.measured).count();
        let mut text = format!(
            "{}: {} kernels and {} fused regions with candidates",
            self.workload,
            count(What::Kernel),
            count(What::Fusion),
        );
        if count(What::Layouts) > 0 {
            text += ", and the layouts of images";
        }
        let _ = match count(What::Rejected) {
            0 => Ok(()),
            n => write!(text, "; {n} kernels of programs that were not chosen"),
        };
        let _ = writeln!(text, "; {measured} measured now in {:.1} s", self.seconds);
        for c in &self.choices {
            c.write(&mut text);
        }
        if self.unmeasured > 0 {
            let _ = writeln!(
                text,
                "  {} not measured, since the budget was spent: call it again, or with a larger --budget",
                self.unmeasured
            );
        }
        text
    }
}

impl TunedChoice {
    fn write(&self, text: &mut String) {
        let gain = self
            .speedup
            .map(|s| format!(", {s:.2}x the default's speed"));
        let ties = match self.ties.is_empty() {
            true => String::new(),
            false => format!(", a tie with {}", self.ties.join(", ")),
        };
        let unused = match self.what {
            What::Rejected => ", of a program that was not chosen",
            _ => "",
        };
        let (key, chosen, why) = (&self.key, &self.chosen, &self.why);
        let gain = gain.unwrap_or_default();
        let _ = writeln!(text, "  {key}\n    {chosen} ({why}{ties}){gain}{unused}");
        *text += &trials(&self.trials, "      ");
    }
}

/// One line per candidate.
fn trials(trials: &[Trial], indent: &str) -> String {
    let wide = trials.iter().map(|t| t.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for t in trials {
        let outcome = match (&t.outcome, t.time()) {
            (Outcome::Timed(times), Some(time)) => format!(
                "{} in {} runs, spread {}",
                duration(time.as_secs_f64()),
                times.len(),
                t.spread().map_or(String::new(), percent)
            ),
            _ => t.result(),
        };
        let _ = writeln!(text, "{indent}{:<wide$} {outcome}", t.name);
    }
    text
}

/// The candidate that programs choose from a record, under the process's limits of memory and precision.
fn chosen_candidate(record: &Record) -> String {
    if record.key.starts_with("layouts ") {
        return format!("{} times of convolutions", record.trials.len());
    }
    let precision = Precision::current();
    let allowed = |name: &&str| Approximation::named(name).is_none_or(|a| precision.allows(a));
    let names = record.trials.iter().map(|t| &t.name[..]).filter(allowed);
    let limits = Limits {
        workspace: Settings::current().workspace,
        same_bits: false,
    };
    match record.best(&names.collect::<Vec<_>>(), &limits) {
        None => "nothing right that fits the limits".to_string(),
        Some(t) => {
            let time = t.time().unwrap_or_default().as_secs_f64();
            format!("{} {}", t.name, duration(time))
        }
    }
}

/// One line per record: its key, and the candidate chosen from it.
pub fn list(records: &[Record]) -> String {
    let lines = records
        .iter()
        .map(|r| format!("{}  {}\n", r.key, chosen_candidate(r)));
    lines.collect()
}

/// The full contents of records.
pub fn show(records: &[Record]) -> String {
    let mut text = String::new();
    for r in records {
        let (key, at, chosen) = (&r.key, date(r.at), chosen_candidate(r));
        let _ = writeln!(text, "{key}\n  measured {at}; chosen: {chosen}");
        text += &trials(&r.trials, "  ");
        if r.failures() > 0 {
            let failed = r.failures();
            let _ = writeln!(
                text,
                "  {failed} failed or did not answer; kiln tune --retry tries them again"
            );
        }
    }
    text
}

/// A date of the Gregorian calendar and a time, from seconds since 1970 in UTC.
fn date(seconds: u64) -> String {
    // Days since the first of March of the year 0, so that a leap day is the last of its year.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // from March
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (era * 400 + year, month + 3),
        _ => (era * 400 + year + 1, month - 9),
    };
    let (hour, minute) = (seconds / 3_600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_795_323_870, "2026-11-22 05:04 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
