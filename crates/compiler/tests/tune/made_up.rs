//! Candidates with times that a test determines, and a clock that waits for all except those that hang.

use kiln_compiler::tune::{
    Answer, CandidateInfo, Checked, Clock, Effort, Outcome, Record, Subject, Trial,
};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// The behaviour of a candidate.
#[derive(Clone, Debug)]
pub enum Does {
    /// Is right, and takes these nanoseconds in turn.
    Takes(&'static [u64]),
    /// Is right but rounds differently.
    Rounds(&'static [u64]),
    /// Is wrong, and fast.
    Wrong,
    /// Can't be prepared.
    Fails,
    /// Panics while it is checked.
    Panics,
    /// Is right, then panics in its third run.
    PanicsLater,
    /// Never answers.
    Hangs,
    /// Is right, then never answers.
    HangsLater,
}

pub struct MadeUp {
    candidates: Vec<CandidateInfo>,
    does: Vec<Does>,
    /// The number of runs of all candidates together.
    pub runs: AtomicUsize,
}

/// Candidates by name, workspace and behaviour.
pub fn made_up(list: &[(&str, u64, Does)]) -> Arc<MadeUp> {
    let candidate = |(name, workspace, _): &(&str, u64, Does)| CandidateInfo::new(name, *workspace);
    Arc::new(MadeUp {
        candidates: list.iter().map(candidate).collect(),
        does: list.iter().map(|(_, _, does)| does.clone()).collect(),
        runs: AtomicUsize::new(0),
    })
}

impl MadeUp {
    /// Makes each of these a variant of the candidate before it.
    pub fn vary(self: Arc<MadeUp>, variants: &[usize]) -> Arc<MadeUp> {
        let mut made = Arc::into_inner(self).expect("nobody else has it yet");
        for i in variants {
            made.candidates[*i].base = Some(i - 1);
        }
        Arc::new(made)
    }

    pub fn predict(self: Arc<MadeUp>, costs: &[f64]) -> Arc<MadeUp> {
        let mut made = Arc::into_inner(self).expect("nobody else has it yet");
        for (candidate, cost) in made.candidates.iter_mut().zip(costs) {
            candidate.predicted = Some(*cost);
        }
        Arc::new(made)
    }

    pub fn list(&self) -> Vec<CandidateInfo> {
        self.candidates.clone()
    }
}

/// Waits until the process ends.
fn forever() -> ! {
    loop {
        std::thread::park();
    }
}

impl Subject for MadeUp {
    fn candidates(&self) -> &[CandidateInfo] {
        &self.candidates
    }

    fn start(&self, i: usize) -> Result<Checked, Outcome> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let does = self.does[i].clone();
        match does {
            Does::Wrong => return Err(Outcome::Wrong("element 3 is 1, not 2".into())),
            Does::Fails => return Err(Outcome::Failed("no such instruction".into())),
            Does::Panics => panic!("in the check"),
            Does::Hangs => forever(),
            _ => {}
        }
        let mut run = 0;
        Ok(Checked {
            same_bits: !matches!(does, Does::Rounds(_)),
            run: Box::new(move |_| {
                run += 1;
                match does {
                    Does::Takes(times) | Does::Rounds(times) => {
                        Ok(Duration::from_nanos(times[(run - 1) % times.len()]))
                    }
                    Does::PanicsLater if run == 3 => panic!("in a run"),
                    Does::HangsLater => forever(),
                    _ => Ok(Duration::from_nanos(1)),
                }
            }),
        })
    }
}

/// A clock that advances by a millisecond each time it is read.
#[derive(Default)]
pub struct MadeUpClock(Cell<u64>);

impl Clock for MadeUpClock {
    fn now(&self) -> Duration {
        self.0.set(self.0.get() + 1);
        Duration::from_millis(self.0.get())
    }

    fn wait(&self, candidate: &str, answers: &Receiver<Answer>, _: Duration) -> Option<Answer> {
        match candidate {
            // Some have been repaired, or answer once.
            "hangs" | "hangs later" => answers.recv_timeout(Duration::from_secs(1)).ok(),
            _ => answers.recv().ok(),
        }
    }
}

pub fn effort() -> Effort {
    Effort {
        min_rounds: 5,
        max_rounds: 9,
        time: Duration::from_secs(1),
        burst: Duration::ZERO,
        patience: Duration::from_millis(77),
    }
}

/// A record with one time for each candidate.
pub fn record(key: &str, at: u64, times: &[(&str, u64)]) -> Record {
    let trial = |(name, time): &(&str, u64)| Trial {
        same_bits: true,
        ..Trial::new(name, 0, vec![*time])
    };
    let trials = times.iter().map(trial).collect();
    Record {
        at,
        ..Record::new(key.into(), trials)
    }
}

/// An empty folder of this test.
pub fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kiln-tune-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
