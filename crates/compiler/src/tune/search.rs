//! Trials of candidates: their correctness and their times.
//!
//! Each candidate runs on a thread of its own, one at a time. So one that never answers can be left behind, and one
//! that panics ends nothing but itself. Right ones are timed in rounds. Each round times every candidate once, so
//! that a temporary slowdown of the machine affects all of them.

use super::record::{Limits, Outcome, Trial};
use kiln_runtime::pool::Pool;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A candidate to compute something, before it is tried.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateInfo {
    /// Its name.
    pub name: String,
    /// The number of bytes of its workspace.
    pub workspace: u64,
    /// The prediction of the cost model, in any unit that the candidates share.
    pub predicted: Option<f64>,
    /// The candidate of which this one is a variant. It is tried only if that one is the fastest of those that are no
    /// variants.
    pub base: Option<usize>,
}

impl CandidateInfo {
    /// Returns a candidate without a prediction that is not a variant.
    pub fn new(name: &str, workspace: u64) -> CandidateInfo {
        CandidateInfo {
            name: name.to_string(),
            workspace,
            predicted: None,
            base: None,
        }
    }
}

/// Something with several candidates to compute it.
pub trait Subject: Send + Sync + 'static {
    /// The candidates, the default first.
    fn candidates(&self) -> &[CandidateInfo];

    /// True if trying it takes too much memory.
    fn is_too_large(&self) -> bool {
        false
    }

    /// Prepares a candidate and checks it: runs it, and compares its results with the right ones. May take as long as
    /// [`Settings::patience`](super::Settings::patience).
    ///
    /// # Errors
    /// If the candidate is excluded: [`Outcome::Wrong`] or [`Outcome::Failed`].
    fn start(&self, candidate: usize) -> Result<Checked, Outcome>;
}

/// A candidate whose results are right.
pub struct Checked {
    /// True if they are the default's bit for bit.
    pub same_bits: bool,
    /// Runs it on the inputs with this number, cold, and returns its time.
    pub run: Box<dyn FnMut(usize) -> Result<Duration, String>>,
}

/// The limits on the time spent on trials.
#[derive(Clone, Debug)]
pub struct Effort {
    /// The minimum number of rounds, in which every candidate is timed.
    pub min_rounds: usize,
    /// The maximum number of rounds.
    pub max_rounds: usize,
    /// The time on timing after which no round begins, except for the minimum number of rounds.
    pub time: Duration,
    /// The duration of a burst. In a round a candidate runs as often as fits into it, and its least time counts: the
    /// first run also wakes threads and loads code into the caches, which does not happen in a running program.
    pub burst: Duration,
    /// The time to wait for one answer.
    pub patience: Duration,
}

/// A clock, which tests replace.
pub trait Clock {
    /// The time that has passed.
    fn now(&self) -> Duration;

    /// The answer of a candidate's thread; `None` if it does not come in time.
    fn wait(
        &self,
        candidate: &str,
        answers: &Receiver<Answer>,
        patience: Duration,
    ) -> Option<Answer>;
}

/// A message of a candidate's thread.
pub enum Answer {
    /// The candidate is right; true if its bits are the default's.
    Right(bool),
    /// It is excluded, with this outcome.
    Out(Outcome),
    /// It ran; the time of the fastest run.
    Took(Duration),
}

/// The system's clock.
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wait(&self, _: &str, answers: &Receiver<Answer>, patience: Duration) -> Option<Answer> {
        match answers.recv_timeout(patience) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(failed("its thread ended")),
        }
    }
}

/// The multiple of the best predicted time above which the cost model rules a candidate out.
const PRUNE: f64 = 8.0;
/// The part by which a candidate may be slower than the best and still be timed beyond the minimum number of rounds.
/// After twice as many rounds it is half of that, so the remaining time goes to candidates that are close.
const CLOSE_ENOUGH: f64 = 0.5;
/// The maximum number of runs of a burst.
const BURST: u128 = 32;

/// Tries the candidates; returns their outcomes, in their order.
pub fn search(
    subject: &Arc<dyn Subject>,
    limits: &Limits,
    effort: &Effort,
    clock: &dyn Clock,
) -> Vec<Trial> {
    let candidates = subject.candidates();
    let predicted = candidates.iter().filter_map(|c| c.predicted);
    let best = predicted.fold(f64::INFINITY, f64::min);
    let mut racers: Vec<Racer> = Vec::new();
    for (i, candidate) in candidates.iter().enumerate() {
        let mut racer = Racer::new(candidate);
        racer.trial.predicted = candidate.predicted.map(|p| p / best);
        if !limits.fits(candidate.workspace) {
            racer.trial.outcome = Outcome::TooLarge(limits.workspace.unwrap_or(u64::MAX));
        } else if let Some(ratio) = racer.trial.predicted.filter(|r| i > 0 && *r > PRUNE) {
            racer.trial.outcome = Outcome::Pruned(ratio);
        } else if candidate.base.is_none() {
            racer.start(subject.clone(), i, effort, clock);
        }
        racers.push(racer);
    }
    race(&mut racers, effort, clock);
    if candidates.iter().any(|c| c.base.is_some()) {
        vary(subject, &mut racers, effort, clock);
    }
    racers.iter_mut().for_each(Racer::end);
    racers.into_iter().map(|r| r.trial).collect()
}

/// Tries the variants of the fastest candidate together with it.
fn vary(subject: &Arc<dyn Subject>, racers: &mut [Racer], effort: &Effort, clock: &dyn Clock) {
    let times: Vec<Option<Duration>> = racers.iter().map(|r| r.trial.time()).collect();
    let Some(best) = times.iter().flatten().min().copied() else {
        return;
    };
    let candidates = subject.candidates().iter().enumerate();
    for (i, base) in candidates.filter_map(|(i, c)| Some((i, c.base?))) {
        if !matches!(&racers[i].trial.outcome, Outcome::Timed(_)) {
            continue;
        }
        match times[base] {
            Some(time) if time == best => racers[i].start(subject.clone(), i, effort, clock),
            Some(time) => {
                let ratio = time.as_secs_f64() / best.as_secs_f64();
                racers[i].trial.outcome = Outcome::Slower(ratio);
            }
            None => racers[i].trial.outcome = racers[base].trial.outcome.clone(),
        }
    }
    race(racers, effort, clock);
}

/// Times the running candidates in rounds; each round begins with a different one.
fn race(racers: &mut [Racer], effort: &Effort, clock: &dyn Clock) {
    let start = clock.now();
    let mut input = 0;
    for round in 0..effort.max_rounds {
        let is_late = clock.now().saturating_sub(start) > effort.time;
        let running: Vec<usize> = (0..racers.len())
            .filter(|i| racers[*i].is_running())
            .collect();
        if running.is_empty() || round >= effort.min_rounds && (is_late || running.len() == 1) {
            return;
        }
        for i in 0..running.len() {
            let racer = running[(i + round) % running.len()];
            input += racers[racer].time(input, effort, clock);
        }
        if round + 1 >= effort.min_rounds {
            let rounds = (round + 1) as f64 / effort.min_rounds.max(1) as f64;
            drop_slow(racers, 1.0 + CLOSE_ENOUGH / rounds);
        }
    }
}

/// Stops the candidates that take more than `max_rounds` times as long as the best. Their measurements are kept.
fn drop_slow(racers: &mut [Racer], max_ratio: f64) {
    let best = racers.iter().filter_map(|r| r.trial.time()).min();
    let Some(best) = best else { return };
    for racer in racers.iter_mut().filter(|r| r.is_running()) {
        let is_slow = |time: Duration| time.as_secs_f64() > max_ratio * best.as_secs_f64();
        if racer.trial.time().is_some_and(is_slow) {
            racer.end();
        }
    }
}

/// A candidate and its thread.
struct Racer {
    trial: Trial,
    thread: Option<Thread>,
}

struct Thread {
    /// Requests runs on the inputs with these numbers.
    ask: Sender<Range<usize>>,
    answers: Receiver<Answer>,
    handle: JoinHandle<()>,
}

impl Racer {
    fn new(candidate: &CandidateInfo) -> Racer {
        Racer {
            trial: Trial::new(&candidate.name, candidate.workspace, Vec::new()),
            thread: None,
        }
    }

    fn is_running(&self) -> bool {
        self.thread.is_some()
    }

    /// Ends the thread, which waits for requests, and frees everything that it holds.
    fn end(&mut self) {
        if let Some(Thread { ask, handle, .. }) = self.thread.take() {
            drop(ask);
            // Its panics are caught and reported.
            let _ = handle.join();
        }
    }

    fn stop(&mut self, outcome: Outcome) {
        match outcome {
            // A thread that never answers is left behind, and so is the pool if the thread holds it.
            Outcome::Hung(_) => {
                self.thread = None;
                Pool::abandon();
            }
            _ => self.end(),
        }
        self.trial.outcome = outcome;
    }

    /// Prepares and checks the candidate.
    fn start(&mut self, subject: Arc<dyn Subject>, i: usize, effort: &Effort, clock: &dyn Clock) {
        let ((ask, asked), (answer, answers)) = (channel(), channel());
        let spawned = std::thread::Builder::new()
            .name(format!("kiln-try-{}", self.trial.name))
            .spawn(move || work(&*subject, i, &asked, &answer));
        let handle = match spawned {
            Ok(handle) => handle,
            Err(e) => return self.stop(Outcome::Failed(format!("it has no thread: {e}"))),
        };
        self.thread = Some(Thread {
            ask,
            answers,
            handle,
        });
        if let Some(Answer::Right(same_bits)) = self.answer(effort, clock) {
            self.trial.same_bits = same_bits;
        }
    }

    /// Times a burst of the candidate, which starts with this input; returns the number of runs.
    fn time(&mut self, input: usize, effort: &Effort, clock: &dyn Clock) -> usize {
        let run_time = self.trial.time().map_or(0, |t| t.as_nanos());
        let runs = match run_time {
            0 => 1,
            run_time => (effort.burst.as_nanos() / run_time).clamp(1, BURST) as usize,
        };
        if let Some(thread) = &self.thread {
            // If the thread has ended, there is no answer.
            let _ = thread.ask.send(input..input + runs);
        }
        let answer = self.answer(effort, clock);
        if let (Some(Answer::Took(time)), Outcome::Timed(times)) = (answer, &mut self.trial.outcome)
        {
            times.push(time.as_nanos() as u64);
        }
        runs
    }

    /// Waits for an answer. If there is none, or a bad one, the candidate is excluded.
    fn answer(&mut self, effort: &Effort, clock: &dyn Clock) -> Option<Answer> {
        let answers = &self.thread.as_ref()?.answers;
        match clock.wait(&self.trial.name, answers, effort.patience) {
            Some(Answer::Out(outcome)) => {
                self.stop(outcome);
                None
            }
            None => {
                self.stop(Outcome::Hung(effort.patience.as_millis() as u64));
                None
            }
            answer => answer,
        }
    }
}

fn failed(text: impl Into<String>) -> Answer {
    Answer::Out(Outcome::Failed(text.into()))
}

/// The main function of a candidate's thread. It ends when no more requests can come, or with the first failure.
fn work(subject: &dyn Subject, i: usize, asks: &Receiver<Range<usize>>, answer: &Sender<Answer>) {
    let guarded = catch_unwind(AssertUnwindSafe(|| {
        let mut checked = match subject.start(i) {
            Ok(checked) => checked,
            Err(outcome) => return Some(Answer::Out(outcome)),
        };
        let ready = Answer::Right(checked.same_bits);
        answer.send(ready).ok()?;
        for mut inputs in asks {
            Pool::global().meet();
            let burst = inputs.try_fold(Duration::MAX, |best, input| {
                (checked.run)(input).map(|time| best.min(time))
            });
            match burst {
                Ok(time) => answer.send(Answer::Took(time)).ok()?,
                Err(text) => return Some(failed(text)),
            }
        }
        None
    }));
    let final_answer = guarded.unwrap_or_else(|panic| {
        let text = kiln_base::panic_text(&*panic);
        Some(failed(format!("it panicked: {text}")))
    });
    if let Some(final_answer) = final_answer {
        // The receiver may have given up.
        let _ = answer.send(final_answer);
    }
}
