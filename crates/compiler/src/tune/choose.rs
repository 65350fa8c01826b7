//! Choosing among candidates: from the store, else by measuring, else the default.

use super::record::{Limits, Outcome, Record, Trial};
use super::search::{CandidateInfo, Clock, Effort, Subject, search};
use super::settings::{Mode, Settings};
use super::store::{Damage, Store};
use hashbrown::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The chosen candidate of a kernel, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The key of the kernel in the store.
    pub key: String,
    /// The names of its candidates, the default first.
    pub candidates: Vec<String>,
    /// The name of the chosen one.
    pub chosen: String,
    /// The reason why it was chosen.
    pub why: Why,
    /// Other candidates that are equally fast within the error of measurement. Workspace or bits decided.
    pub ties: Vec<String>,
    /// The name of the fastest candidate of Kiln's own, which packages have instead of a library's.
    pub in_packages: Option<String>,
    /// The known outcomes of the candidates; empty where nothing was measured.
    pub trials: Vec<Trial>,
}

/// The reason why a candidate was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The default: tuning is off.
    Off,
    /// It was measured earlier.
    Store,
    /// It was measured now.
    Measured,
    /// The default: the store does not know the kernel, and nothing is measured in [`Mode::Frozen`].
    Missing,
    /// The default: no right candidate fits the limit of workspace, or none has the default's bits where these are
    /// required.
    NothingFits,
    /// The default: none of the candidates could be run, or was right.
    NothingRight,
    /// The default: the time for measuring was spent.
    OutOfTime,
    /// The default: its arguments take more memory than trials may use.
    TooLarge,
    /// The default: times on an emulated device mean nothing.
    Emulated,
    /// The default: the candidate chosen for other sizes of its key is not legal for these.
    Illegal,
}

impl Why {
    /// Returns a phrase for the reason.
    pub fn text(&self) -> &'static str {
        match self {
            Why::Off => "the default; tuning is off",
            Why::Store => "from the store",
            Why::Measured => "measured now",
            Why::Missing => "the default; the store does not know it",
            Why::NothingFits => "the default; nothing fits the limits",
            Why::NothingRight => "the default; no candidate could be run and was right",
            Why::OutOfTime => "the default; the time for measuring was spent",
            Why::TooLarge => "the default; its arguments are too large to try",
            Why::Emulated => "the default; nothing is timed on an emulated device",
            Why::Illegal => "the default; what is chosen for its key is not legal for its sizes",
        }
    }
}

impl Choice {
    /// The trials that ended without times: wrong candidates, failed ones, and those that never answered.
    pub fn faults(&self) -> impl Iterator<Item = &Trial> {
        use Outcome::{Failed, Hung, Wrong};
        let is_fault = |t: &&Trial| matches!(t.outcome, Wrong(_) | Failed(_) | Hung(_));
        self.trials.iter().filter(is_fault)
    }

    /// The choice for a kernel with the same key and these candidates: its default, where the chosen one is not among
    /// them.
    pub(super) fn among<'a>(
        self: &Arc<Choice>,
        candidates: impl Iterator<Item = &'a String>,
    ) -> Arc<Choice> {
        let candidates: Vec<String> = candidates.cloned().collect();
        match candidates.first() {
            Some(default) if !candidates.contains(&self.chosen) => Arc::new(Choice {
                chosen: default.clone(),
                candidates,
                why: Why::Illegal,
                ties: Vec::new(),
                in_packages: None,
                ..Choice::clone(self)
            }),
            _ => self.clone(),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.chosen, self.why.text())?;
        if let Some(own) = &self.in_packages {
            write!(f, ", in packages {own}")?;
        }
        if !self.ties.is_empty() {
            write!(f, ", a tie with {}", self.ties.join(", "))?;
        }
        let is_tried = |t: &&Trial| !matches!(t.outcome, Outcome::Slower(_));
        for (i, trial) in self.trials.iter().filter(is_tried).enumerate() {
            write!(f, "{}{trial}", if i == 0 { ": " } else { ", " })?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.result())?;
        match self.predicted {
            Some(ratio) if self.time().is_some() => write!(f, " (predicted {ratio:.2}x the best)"),
            _ => Ok(()),
        }
    }
}

impl Trial {
    /// Returns the outcome, as text that follows the name.
    pub fn result(&self) -> String {
        match (&self.outcome, self.time()) {
            (Outcome::Timed(_), Some(time)) => format!("{time:.1?}"),
            (Outcome::Timed(_), None) => "not timed".into(),
            (Outcome::Wrong(text), _) => format!("is wrong: {text}"),
            (Outcome::Failed(text), _) => format!("failed: {text}"),
            (Outcome::Hung(ms), _) => format!("did not answer for {ms} ms"),
            (Outcome::Pruned(ratio), _) => format!("not tried, {ratio:.0} times the cost"),
            (Outcome::Slower(ratio), _) => {
                format!("not tried, its algorithm took {ratio:.2} times the best")
            }
            (Outcome::TooLarge(limit), _) => {
                format!("needs more than {limit} bytes beside its arguments")
            }
            (Outcome::Again(text), _) => format!("is tried again: {text}"),
        }
    }
}

/// See [`measured`].
static MEASURED: AtomicUsize = AtomicUsize::new(0);

/// The number of keys that this process has measured, to show progress.
pub fn measured() -> usize {
    MEASURED.load(Ordering::Relaxed)
}

/// Chooses the candidates of the kernels of one compilation.
pub struct Chooser<'a> {
    settings: &'a Settings,
    store: Arc<Store>,
    effort: Effort,
    clock: &'a dyn Clock,
    emulated: bool,
    /// The choices made so far in this compilation.
    known: HashMap<String, Arc<Choice>>,
    /// The time spent on measuring.
    spent: Duration,
    notes: Vec<String>,
}

/// The time to wait for another process that measures, as a multiple of the time for measuring.
const WAIT: u32 = 2;

impl<'a> Chooser<'a> {
    /// Returns a chooser without choices. On an emulated device nothing is measured.
    pub fn new(settings: &'a Settings, clock: &'a dyn Clock, emulated: bool) -> Chooser<'a> {
        Chooser {
            store: Store::of(&settings.store_path()),
            effort: Effort {
                min_rounds: 7,
                max_rounds: 60,
                time: Duration::from_millis(400),
                burst: Duration::from_millis(1),
                patience: settings.patience,
            },
            settings,
            clock,
            emulated,
            known: HashMap::new(),
            spent: Duration::ZERO,
            notes: Vec::new(),
        }
    }

    /// Chooses among the candidates of a key, the default first.
    pub fn choose(
        &mut self,
        key: String,
        candidates: &[CandidateInfo],
        subject: impl FnOnce() -> Arc<dyn Subject>,
    ) -> Arc<Choice> {
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let (record, why) = self.record(&key, candidates, subject);
        let choice = self.choice(key, candidates, record, why);
        let choice = Arc::new(choice);
        self.known.insert(choice.key.clone(), choice.clone());
        choice
    }

    /// Chooses by the record in the store, if that suffices. No candidate then has to be lowered.
    pub fn known(&mut self, key: &str) -> Option<Arc<Choice>> {
        if let Some(choice) = self.known.get(key) {
            return Some(choice.clone());
        }
        let record = self.stored(key)?;
        let candidate = |t: &Trial| CandidateInfo::new(&t.name, t.workspace);
        let candidates: Vec<CandidateInfo> = record.trials.iter().map(candidate).collect();
        let required = candidates.iter().map(|c| (&c.name[..], c.workspace));
        let required: Vec<_> = required.collect();
        if !record.covers(&required, &self.limits()) {
            return None;
        }
        let choice = self.choice(key.to_string(), &candidates, Some(record), Why::Store);
        let choice = Arc::new(choice);
        self.known.insert(key.to_string(), choice.clone());
        Some(choice)
    }

    /// The record of a key in the store.
    pub fn stored(&self, key: &str) -> Option<Record> {
        match self.settings.mode {
            Mode::Off => None,
            _ => self.store.get(key),
        }
    }

    /// Stores a record.
    pub fn keep(&mut self, record: Record) {
        if let Err(e) = self.store.put(record) {
            let path = self.store.path().unwrap_or(Path::new(""));
            let note = format!("{} can't be written: {e}", path.display());
            self.notes.push(note);
        }
    }

    /// Records that a key is left at its default because the time for measuring is spent, if it is.
    pub fn leave(&mut self, key: String, default: &str) {
        if self.settings.mode != Mode::Frozen && self.spent >= self.settings.budget {
            let candidate = CandidateInfo::new(default, 0);
            let choice = self.choice(key.clone(), &[candidate], None, Why::OutOfTime);
            self.known.insert(key, Arc::new(choice));
        }
    }

    /// Returns the record of a key and its source, or the reason for the default.
    fn record(
        &mut self,
        key: &str,
        candidates: &[CandidateInfo],
        subject: impl FnOnce() -> Arc<dyn Subject>,
    ) -> (Option<Record>, Why) {
        let mode = self.settings.mode;
        if mode == Mode::Off {
            return (None, Why::Off);
        }
        let limits = self.limits();
        // The variants that exist depend on sizes, and several sizes share a key.
        let required: Vec<(&str, u64)> = (candidates.iter())
            .filter(|c| c.base.is_none())
            .map(|c| (&c.name[..], c.workspace))
            .collect();
        let find = |store: &Store| store.get(key).filter(|r| r.covers(&required, &limits));
        if let Some(record) = find(&self.store) {
            return (Some(record), Why::Store);
        }
        if mode == Mode::Frozen {
            return (self.store.get(key), Why::Missing);
        }
        if self.emulated {
            return (None, Why::Emulated);
        }
        if self.spent >= self.settings.budget {
            return (None, Why::OutOfTime);
        }
        let subject = subject();
        if subject.is_too_large() {
            return (None, Why::TooLarge);
        }
        let start = self.clock.now();
        let store = self.store.clone();
        let lock = store.wait_to_measure(self.settings.budget * WAIT);
        // Another process may have measured it meanwhile.
        if let Some(record) = find(&store) {
            return (Some(record), Why::Store);
        }
        let trials = search(&subject, &limits, &self.effort, self.clock);
        MEASURED.fetch_add(1, Ordering::Relaxed);
        let mut record = Record::new(key.to_string(), trials);
        if let Some(earlier) = store.get(key) {
            record.adopt(&earlier);
        }
        self.keep(record.clone());
        drop(lock);
        self.spent += self.clock.now().saturating_sub(start);
        (Some(record), Why::Measured)
    }

    fn limits(&self) -> Limits {
        Limits {
            workspace: self.settings.workspace,
            same_bits: self.settings.mode == Mode::Deterministic,
        }
    }

    fn choice(
        &self,
        key: String,
        candidates: &[CandidateInfo],
        record: Option<Record>,
        why: Why,
    ) -> Choice {
        let limits = self.limits();
        // A record is also of other sizes; the workspace of a candidate is for these sizes.
        let fit = candidates.iter().filter(|c| limits.fits(c.workspace));
        let fit: Vec<&str> = fit.map(|c| &c.name[..]).collect();
        let names: Vec<String> = candidates.iter().map(|c| c.name.clone()).collect();
        let best = record.as_ref().and_then(|r| r.best(&fit, &limits));
        let (chosen, why) = match (&record, best) {
            // If a frozen store knows some of the candidates, that is better than nothing.
            (Some(_), Some(best)) if why == Why::Missing => (best.name.clone(), Why::Store),
            (Some(_), Some(best)) => (best.name.clone(), why),
            (Some(record), None) if why != Why::Missing => {
                let is_large = |t: &Trial| matches!(t.outcome, Outcome::TooLarge(_));
                let may_fit = |t: &Trial| t.time().is_some() || is_large(t);
                let why = match record.trials.iter().any(may_fit) {
                    true => Why::NothingFits,
                    false => Why::NothingRight,
                };
                (names[0].clone(), why)
            }
            _ => (names[0].clone(), why),
        };
        let portable = fit.iter().copied().filter(|name| !is_of_library(name));
        let portable = record
            .as_ref()
            .and_then(|r| r.best(&portable.collect::<Vec<_>>(), &limits));
        let portable = portable.map_or(&names[0], |trial| &trial.name);
        let in_packages = is_of_library(&chosen).then(|| portable.clone());
        let ties = match best {
            Some(best) if best.name == chosen => {
                let ties = record.iter().flat_map(|r| r.ties(&fit, &limits));
                let others = ties.filter(|t| t.name != chosen);
                others.map(|t| t.name.clone()).collect()
            }
            _ => Vec::new(),
        };
        Choice {
            ties,
            in_packages,
            key,
            candidates: names,
            chosen,
            why,
            trials: record.map_or_else(Vec::new, |r| r.trials),
        }
    }

    /// The choices made and the notes on them.
    pub fn finish(self) -> Tuning {
        let mut choices: Vec<Arc<Choice>> = self.known.into_values().collect();
        choices.sort_by(|a, b| a.key.cmp(&b.key));
        let mut notes = self.notes;
        if self.settings.mode != Mode::Off {
            let path = self.store.path().unwrap_or(Path::new("")).display();
            let damage = self.store.damage();
            let note = |d: &Damage| format!("{path}:{}: {}", d.line, d.text);
            notes.extend(damage.iter().map(note));
        }
        Tuning {
            mode: self.settings.mode,
            choices,
            notes,
            time: self.spent,
        }
    }
}

/// The beginning of the names of cuBLASLt's algorithms.
pub(super) const LIBRARY: &str = "cublaslt ";

/// True if the name is that of a library's candidate, perhaps with an approximation.
fn is_of_library(name: &str) -> bool {
    let base = name.split_once(": ").map_or(name, |(_, base)| base);
    base.starts_with(LIBRARY)
}

/// The beginning of the keys of a network's layouts.
pub(super) const NETWORK: &str = "network ";

/// The results of the tuner in one compilation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// The mode.
    pub mode: Mode,
    /// One choice for each key, by key.
    pub choices: Vec<Arc<Choice>>,
    /// Problems other than those of candidates: lines of the store that were skipped, or that it can't be written.
    pub notes: Vec<String>,
    /// The time that tuning took, including measuring.
    pub time: Duration,
}

impl Tuning {
    /// The keys that the store does not know, where nothing is measured.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        let missing = self.choices.iter().filter(|c| c.why == Why::Missing);
        missing.map(|c| &c.key[..])
    }

    /// The keys that were measured in this compilation.
    pub fn measured(&self) -> impl Iterator<Item = &str> {
        let measured = self.choices.iter().filter(|c| c.why == Why::Measured);
        measured.map(|c| &c.key[..])
    }

    /// The choice of the layout of images, where there was one.
    pub fn layouts(&self) -> Option<&Arc<Choice>> {
        self.choices.iter().find(|c| c.key.starts_with(NETWORK))
    }

    /// Candidates that are wrong, failed or never answered, each with its key.
    pub fn faults(&self) -> impl Iterator<Item = (&str, &Trial)> {
        let all = self.choices.iter();
        all.flat_map(|c| c.faults().map(|t| (&c.key[..], t)))
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mode, kinds) = (self.mode.name(), self.choices.len());
        write!(f, "tuning: {mode}, {kinds} kinds of kernels with a choice")?;
        let measured = self.measured().count();
        if measured > 0 {
            write!(f, ", {measured} measured in {:.1?}", self.time)?;
        }
        writeln!(f)?;
        self.notes.iter().try_for_each(|n| writeln!(f, "  {n}"))?;
        for (key, trial) in self.faults() {
            writeln!(f, "  {trial}: {key}")?;
        }
        self.missing()
            .try_for_each(|key| writeln!(f, "  not in the store: {key}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_legal_is_not_said_to_be_chosen() {
        let names = |list: [&str; 2]| list.map(String::from);
        let choice = Arc::new(Choice {
            key: "k".into(),
            candidates: vec!["packed".into(), "direct".into()],
            chosen: "direct".into(),
            why: Why::Store,
            ties: vec!["packed".into()],
            in_packages: None,
            trials: Vec::new(),
        });
        let same = choice.among(names(["packed", "direct"]).iter());
        assert_eq!(same, choice);
        let other = choice.among(names(["packed", "columns"]).iter());
        assert_eq!((&*other.chosen, &other.why), ("packed", &Why::Illegal));
        assert_eq!(other.candidates, ["packed", "columns"]);
        assert!(other.ties.is_empty());
    }
}
