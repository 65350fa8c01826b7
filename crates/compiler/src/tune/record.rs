//! The measurements of one key, as a line of the store.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// The version of the format. It changes when lines of earlier versions must not be read.
pub const SCHEMA: u32 = 1;

/// The candidates of one key, and the outcomes of trying them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The work that they are candidates for: the op with its sizes, the work fused with it, the device's traits, and
    /// the engine's version.
    pub key: String,
    /// [`SCHEMA`].
    pub version: u32,
    /// The time of the measurement, in seconds since 1970.
    pub at: u64,
    /// The candidates that were tried, the default first.
    pub trials: Vec<Trial>,
}

/// One candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its name, unique among the candidates of a key.
    pub name: String,
    /// The number of bytes of its workspace.
    pub workspace: u64,
    /// True if it gave the default's results bit for bit.
    pub same_bits: bool,
    /// Its time by the cost model as a multiple of the shortest among all candidates, where the model knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<f64>,
    /// The outcome of the trial.
    pub outcome: Outcome,
}

/// The outcome of trying a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is right, and took these times, in nanoseconds, in the order in which they were taken. Each is the least of
    /// a burst of runs.
    Timed(Vec<u64>),
    /// Its results are wrong; the text says where.
    Wrong(String),
    /// It can't be run, or panicked.
    Failed(String),
    /// It did not answer within this number of milliseconds.
    Hung(u64),
    /// The cost model predicts that it takes this many times as long as the best.
    Pruned(f64),
    /// It is a schedule of an algorithm that took this many times as long as the best.
    Slower(f64),
    /// Its workspace exceeds this limit, in bytes.
    TooLarge(u64),
    /// It failed or hung, as the text says, and is to be tried again.
    Again(String),
}

impl Trial {
    /// A right candidate that took these times, in nanoseconds.
    pub fn new(name: &str, workspace: u64, times: Vec<u64>) -> Trial {
        Trial {
            name: name.to_string(),
            workspace,
            same_bits: false,
            predicted: None,
            outcome: Outcome::Timed(times),
        }
    }

    /// Its times, ascending.
    fn sorted_times(&self) -> Option<Vec<u64>> {
        let Outcome::Timed(times) = &self.outcome else {
            return None;
        };
        let mut times = times.clone();
        times.sort_unstable();
        Some(times)
    }

    /// Returns the time to choose by: the mean of the faster half. Interruptions make runs longer, so large times say
    /// more about the machine than about the candidate; on a busy machine the minimum is luck.
    pub fn time(&self) -> Option<Duration> {
        let times = self.sorted_times()?;
        let faster = &times[..times.len().div_ceil(2)];
        let sum: u64 = faster.iter().sum();
        let mean = sum.checked_div(faster.len() as u64);
        mean.map(Duration::from_nanos)
    }

    fn has_failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_) | Outcome::Hung(_))
    }

    /// Returns the spread of its times: the ratio of the interquartile range to the lower quartile.
    pub fn spread(&self) -> Option<f64> {
        let times = self.sorted_times()?;
        let quartile = |i: usize| times.get(times.len() * i / 4).copied();
        let (low, high) = (quartile(1)?, quartile(3)?);
        Some((high - low) as f64 / low.max(1) as f64)
    }
}

/// The relative difference to the best time up to which times are a tie.
const TIE: f64 = 0.01;

/// The limits on the candidates that may be chosen.
#[derive(Copy, Clone, Debug, Default)]
pub struct Limits {
    /// The maximum number of bytes of workspace.
    pub workspace: Option<u64>,
    /// True to allow only candidates that give the default's results bit for bit.
    pub same_bits: bool,
}

impl Limits {
    /// True if a candidate with this workspace may be chosen.
    pub fn fits(&self, workspace: u64) -> bool {
        self.workspace.is_none_or(|max| workspace <= max)
    }
}

impl Record {
    /// Returns a record with the current time.
    pub fn new(key: String, trials: Vec<Trial>) -> Record {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Record {
            key,
            version: SCHEMA,
            at: since.map_or(0, |d| d.as_secs()),
            trials,
        }
    }

    /// Returns the trial of a candidate.
    pub fn trial(&self, name: &str) -> Option<&Trial> {
        self.trials.iter().find(|t| t.name == name)
    }

    /// Returns the fastest of the candidates with these names (the default first) that is right and within the limits.
    /// Of those that tie, the one with the smallest workspace; then one with the default's bits; then the first.
    pub fn best<'a>(&'a self, names: &[&str], limits: &Limits) -> Option<&'a Trial> {
        let ties = self.ties(names, limits).into_iter();
        ties.min_by_key(|t| (t.workspace, !t.same_bits))
    }

    /// Returns the fastest of these, and those that are equally fast within the error of measurement.
    pub(super) fn ties<'a>(&'a self, names: &[&str], limits: &Limits) -> Vec<&'a Trial> {
        let fits = |t: &&Trial| limits.fits(t.workspace) && (t.same_bits || !limits.same_bits);
        let named = names
            .iter()
            .filter_map(|name| self.trial(name))
            .filter(fits);
        let timed: Vec<(&Trial, Duration)> = named.filter_map(|t| Some((t, t.time()?))).collect();
        let seconds = timed.iter().map(|(_, time)| time.as_secs_f64());
        let max_seconds = seconds.fold(f64::INFINITY, f64::min) * (1.0 + TIE);
        let ties = timed.iter().filter(|(_, t)| t.as_secs_f64() <= max_seconds);
        ties.map(|(t, _)| *t).collect()
    }

    /// Returns the number of candidates that failed or hung, which may have been the machine's fault.
    pub fn failures(&self) -> usize {
        self.trials.iter().filter(|t| t.has_failed()).count()
    }

    /// Returns the record with the candidates that failed or hung marked to be tried again.
    pub(super) fn with_failures_open(mut self) -> Record {
        for trial in &mut self.trials {
            if trial.has_failed() {
                trial.outcome = Outcome::Again(trial.result());
            }
        }
        self
    }

    /// True if the record suffices to choose among candidates with these names and workspaces: each was tried, or had
    /// no chance.
    pub fn covers(&self, candidates: &[(&str, u64)], limits: &Limits) -> bool {
        let is_open = |t: &Trial| matches!(t.outcome, Outcome::TooLarge(_) | Outcome::Again(_));
        let mut candidates = candidates.iter();
        candidates.all(|(name, workspace)| {
            !self.trial(name).is_none_or(is_open) || !limits.fits(*workspace)
        })
    }

    /// Adds the trials of an earlier record that this one lacks.
    pub(super) fn adopt(&mut self, earlier: &Record) {
        for trial in &earlier.trials {
            let is_too_large = |t: &Trial| matches!(t.outcome, Outcome::TooLarge(_));
            let existing = self.trial(&trial.name);
            if existing.is_none() || existing.is_some_and(is_too_large) && !is_too_large(trial) {
                self.trials.retain(|t| t.name != trial.name);
                self.trials.push(trial.clone());
            }
        }
    }

    /// Returns the record as a line: a JSON object whose last member, `sum`, is a checksum of the text before it.
    pub(super) fn line(&self) -> String {
        // Records hold plain data only, which always encodes.
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.pop();
        let sum = xxh3_64(text.as_bytes());
        text + &format!("{SUM}{sum:016x}\"}}")
    }

    /// Reads a line whose checksum was verified.
    pub(super) fn read(line: &str) -> Option<Record> {
        serde_json::from_str::<Record>(line).ok()
    }
}

/// The beginning of every line, of any version.
pub(super) const BEGINNING: &str = "{\"key\":\"";

/// The text before the checksum.
const SUM: &str = ",\"sum\":\"";

/// The kind of a line of the store.
#[derive(Debug, PartialEq)]
pub(super) enum Line<'a> {
    /// A record of this key.
    Record(&'a str),
    /// A record of another version.
    Other,
    /// A damaged line, and the reason.
    Damaged(&'static str),
}

/// Determines the kind of a line without parsing all of it.
pub(super) fn look(line: &str) -> Line<'_> {
    let Some((body, sum)) = line.rsplit_once(SUM) else {
        return Line::Damaged("it ends early");
    };
    if sum.strip_suffix("\"}") != Some(format!("{:016x}", xxh3_64(body.as_bytes())).as_str()) {
        return Line::Damaged("its checksum is wrong");
    }
    let after_key = body.strip_prefix(BEGINNING);
    match after_key.and_then(|after_key| after_key.split_once('"')) {
        Some((key, after_key)) if after_key.starts_with(&format!(",\"version\":{SCHEMA},")) => {
            Line::Record(key)
        }
        _ => Line::Other,
    }
}
