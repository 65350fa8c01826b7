//! Where the time of runs goes.

use super::{Executable, lock};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What runs have spent in each step of the *run* part; collects nothing unless it is switched on.
#[derive(Default)]
pub(super) struct Profile {
    on: AtomicBool,
    times: Mutex<Vec<Times>>,
    recording: AtomicBool,
    events: Mutex<Vec<StepEvent>>,
}

/// How often a step ran, the time of all its runs together, and the least.
type Times = (u64, Duration, Duration);

/// The time of one step of the *run* part. The first of steps that start together has the time of all;
/// the others have no runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// Index into [`Plan::run`](kiln_plan::Plan::run).
    pub step: usize,
    /// The kernel's name.
    pub kernel: String,
    /// How often it ran.
    pub runs: u64,
    /// The time of all these runs together.
    pub total: Duration,
    /// The time of the fastest.
    pub least: Duration,
}

/// One execution of a step of the *run* part, or of those that start together with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepEvent {
    /// Index into [`Plan::run`](kiln_plan::Plan::run).
    pub step: usize,
    /// When it started.
    pub start: Instant,
    /// How long it took.
    pub time: Duration,
}

impl Profile {
    pub(super) fn on(&self) -> bool {
        self.on.load(Ordering::Relaxed) || self.recording.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, step: usize, start: Instant, time: Duration) {
        if self.recording.load(Ordering::Relaxed) {
            lock(&self.events).push(StepEvent { step, start, time });
        }
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let mut times = lock(&self.times);
        if times.len() <= step {
            times.resize(step + 1, (0, Duration::ZERO, Duration::MAX));
        }
        times[step].0 += 1;
        times[step].1 += time;
        times[step].2 = times[step].2.min(time);
    }
}

impl Executable {
    /// Switches the collection of [`step_times`](Executable::step_times) on or off; what was collected
    /// before is forgotten. On a GPU the times are the device's, and runs are waited for meanwhile.
    pub fn profile(&self, on: bool) {
        lock(&self.profile.times).clear();
        self.profile.on.store(on, Ordering::Relaxed);
    }

    /// Switches the recording of [`take_events`](Executable::take_events) on or off; what was recorded
    /// before is forgotten.
    pub fn record_events(&self, on: bool) {
        lock(&self.profile.events).clear();
        self.profile.recording.store(on, Ordering::Relaxed);
    }

    /// The executions of steps of the *run* part since recording was switched on or they were last
    /// taken, in the order in which they ended.
    pub fn take_events(&self) -> Vec<StepEvent> {
        std::mem::take(&mut lock(&self.profile.events))
    }

    /// The time that each step of the *run* part has taken since profiling was switched on.
    pub fn step_times(&self) -> Vec<StepTime> {
        let times = lock(&self.profile.times).clone();
        let named = |(step, (runs, total, least)): (usize, Times)| StepTime {
            step,
            kernel: self.plan.kernels[self.plan.run[step].kernel as usize]
                .name()
                .to_string(),
            runs,
            total,
            least,
        };
        times.into_iter().enumerate().map(named).collect()
    }
}
