//! Times of steps.

use kiln_kernel::lock::lock;
use kiln_plan::Plan;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The times of runs in each step of the *run* part; nothing is collected unless it is switched on.
#[derive(Default)]
pub(super) struct Profile {
    on: AtomicBool,
    times: Mutex<Vec<Times>>,
    recording: AtomicBool,
    events: Mutex<Vec<StepEvent>>,
}

/// The number of runs of a step, their total time and the minimum.
type Times = (u64, Duration, Duration);

/// The time of one step of the *run* part. The first of concurrent steps has the time of all; the others have no
/// runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// Index into [`Plan::run`](kiln_plan::Plan::run).
    pub step: usize,
    /// The kernel's name.
    pub kernel: String,
    /// The number of runs.
    pub runs: u64,
    /// The time of all these runs together.
    pub total: Duration,
    /// The time of the fastest.
    pub least: Duration,
}

/// One execution of a step of the *run* part, or of a group of concurrent steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepEvent {
    /// Index into [`Plan::run`](kiln_plan::Plan::run).
    pub step: usize,
    /// The start.
    pub start: Instant,
    /// The duration.
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

    /// Switches the collection of times on or off, and drops earlier times.
    pub(super) fn collect(&self, on: bool) {
        lock(&self.times).clear();
        self.on.store(on, Ordering::Relaxed);
    }

    /// Switches the recording of events on or off, and drops earlier events.
    pub(super) fn record(&self, on: bool) {
        lock(&self.events).clear();
        self.recording.store(on, Ordering::Relaxed);
    }

    /// The events since recording was switched on or they were last taken.
    pub(super) fn take_events(&self) -> Vec<StepEvent> {
        std::mem::take(&mut lock(&self.events))
    }

    /// Returns the times of the steps of a plan.
    pub(super) fn times(&self, plan: &Plan) -> Vec<StepTime> {
        let times = lock(&self.times).clone();
        let step_time = |(step, (runs, total, least)): (usize, Times)| StepTime {
            step,
            kernel: plan.kernels[plan.run[step].kernel as usize]
                .name()
                .to_string(),
            runs,
            total,
            least,
        };
        times.into_iter().enumerate().map(step_time).collect()
    }
}
