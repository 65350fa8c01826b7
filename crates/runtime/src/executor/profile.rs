//! Where the time of runs goes.

use kiln_kernel::lock::lock;
use kiln_plan::Plan;
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

    /// Switches the collection of times on or off, and forgets those that were collected.
    pub(super) fn collect(&self, on: bool) {
        lock(&self.times).clear();
        self.on.store(on, Ordering::Relaxed);
    }

    /// Switches the recording of events on or off, and forgets those that were recorded.
    pub(super) fn record(&self, on: bool) {
        lock(&self.events).clear();
        self.recording.store(on, Ordering::Relaxed);
    }

    /// The events since recording was switched on or they were last taken.
    pub(super) fn take_events(&self) -> Vec<StepEvent> {
        std::mem::take(&mut lock(&self.events))
    }

    /// The times of the steps of a plan.
    pub(super) fn times(&self, plan: &Plan) -> Vec<StepTime> {
        let times = lock(&self.times).clone();
        let named = |(step, (runs, total, least)): (usize, Times)| StepTime {
            step,
            kernel: plan.kernels[plan.run[step].kernel as usize]
                .name()
                .to_string(),
            runs,
            total,
            least,
        };
        times.into_iter().enumerate().map(named).collect()
    }
}
