//! Threads that load batches ahead.

use super::Settings;
use super::feed::{Feed, IDLE, catch_panic};
use crate::fault::invalid;
use crate::rng::derive;
use crate::sampler::Pass;
use kiln_tensor::{Error, Result, with_seed};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The time for which the end of a pass waits for workers that are in the middle of a sample.
const PATIENCE: Duration = Duration::from_secs(5);

/// The workers of a pass, as the thread that takes the batches sees them. Batches come in the order of their jobs,
/// for any speed of the workers.
pub(super) struct Crew<B> {
    shared: Arc<Shared<B>>,
    threads: Vec<thread::JoinHandle<()>>,
    settings: Settings,
    /// True once no more batches will come.
    over: bool,
}

struct Shared<B> {
    /// Locked by one worker at a time, never while `state` is locked.
    feed: Mutex<Feed<B>>,
    state: Mutex<State<B>>,
    /// Signals that a batch was loaded, or a worker has ended.
    arrived: Condvar,
    /// Signals that a batch was taken, or the pass is closed.
    room: Condvar,
    /// The sample that each worker is at.
    current: Vec<AtomicUsize>,
}

struct State<B> {
    /// Loaded batches by the numbers of their jobs.
    loaded: BTreeMap<usize, Result<(Vec<usize>, B)>>,
    /// The number of jobs taken from the feed.
    issued: usize,
    /// The number of batches returned.
    returned: usize,
    /// True if the feed has no more jobs, or the pass is abandoned.
    closed: bool,
    /// The number of workers that have not ended.
    alive: usize,
    /// The number of workers whose `worker_init_fn` has not returned. A pass does not end before they have, since one
    /// may fail.
    starting: usize,
    /// The error of a worker that could not start.
    failed: Option<Error>,
}

impl<B> Shared<B> {
    fn state(&self) -> MutexGuard<'_, State<B>> {
        // The state is consistent whenever its lock is free.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, failed: Option<Error>) {
        let mut state = self.state();
        state.closed = true;
        state.failed = state.failed.take().or(failed);
        self.room.notify_all();
        self.arrived.notify_all();
    }
}

/// Counts a worker as ended when it is dropped, even by a panic.
struct Ends<B>(Arc<Shared<B>>);

impl<B> Drop for Ends<B> {
    fn drop(&mut self) {
        self.0.state().alive -= 1;
        self.0.arrived.notify_all();
    }
}

impl<B: Send + 'static> Crew<B> {
    pub(super) fn start(feed: Feed<B>, pass: Pass, settings: &Settings) -> Crew<B> {
        let workers = settings.workers;
        let shared = Arc::new(Shared {
            feed: Mutex::new(feed),
            state: Mutex::new(State {
                loaded: BTreeMap::new(),
                issued: 0,
                returned: 0,
                closed: false,
                alive: 0,
                starting: workers,
                failed: None,
            }),
            arrived: Condvar::new(),
            room: Condvar::new(),
            current: (0..workers).map(|_| AtomicUsize::new(IDLE)).collect(),
        });
        let mut threads = Vec::with_capacity(workers);
        for id in 0..workers {
            shared.state().alive += 1;
            let (ends, its_settings) = (Ends(shared.clone()), settings.clone());
            let thread = thread::Builder::new().name(format!("kiln-data-{id}"));
            match thread.spawn(move || work(&ends.0, id, pass, &its_settings)) {
                Ok(handle) => threads.push(handle),
                Err(e) => {
                    let message = format!("worker {id} can't start: {e}");
                    shared.close(Some(invalid("DataLoader", message, settings.loc)));
                    break;
                }
            }
        }
        Crew {
            shared,
            threads,
            settings: settings.clone(),
            over: false,
        }
    }

    /// The next batch in order.
    pub(super) fn next(&mut self) -> Option<Result<(Vec<usize>, B)>> {
        if self.over {
            return None;
        }
        let deadline = self.settings.timeout.map(|t| (Instant::now(), t));
        let mut state = self.shared.state();
        loop {
            if let Some(e) = state.failed.take() {
                self.over = true;
                return Some(Err(e));
            }
            let number = state.returned;
            if let Some(batch) = state.loaded.remove(&number) {
                state.returned += 1;
                self.shared.room.notify_all();
                return Some(batch);
            }
            if state.closed && number == state.issued && state.starting == 0 {
                self.over = true;
                return None;
            }
            if state.alive == 0 {
                self.over = true;
                return Some(Err(self.error("the workers have died")));
            }
            let lock = match deadline {
                None => self.shared.arrived.wait(state),
                Some((start, timeout)) => {
                    let left = timeout.saturating_sub(start.elapsed());
                    if left.is_zero() {
                        drop(state);
                        self.over = true;
                        return Some(Err(self.timeout_error(timeout)));
                    }
                    let waited = self.shared.arrived.wait_timeout(state, left);
                    waited
                        .map(|w| w.0)
                        .map_err(|e| PoisonError::new(e.into_inner().0))
                }
            };
            state = lock.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn timeout_error(&self, timeout: Duration) -> Error {
        let current = self.shared.current.iter().enumerate();
        let busy = current.filter_map(|(worker, current)| match current.load(Ordering::Relaxed) {
            IDLE => None,
            index => Some(format!("worker {worker} is at sample {index}")),
        });
        let busy: Vec<String> = busy.collect();
        let busy = match busy.is_empty() {
            true => "no worker is at a sample".to_string(),
            false => busy.join(", "),
        };
        self.error(&format!("no batch came within {timeout:?}: {busy}"))
    }

    fn error(&self, message: &str) -> Error {
        invalid("DataLoader", message, self.settings.loc)
    }
}

/// The loop of a worker: takes a job when there is room for its batch, and runs it.
fn work<B>(shared: &Shared<B>, id: usize, pass: Pass, settings: &Settings) {
    if let Some(init) = &settings.worker_init {
        let seed = derive(derive(pass.seed, pass.epoch), u64::MAX - id as u64);
        let what = format!("worker_init_fn of worker {id}");
        let started = catch_panic(&what, settings.loc, || with_seed(seed, || init(id)));
        if let Err(e) = started {
            return shared.close(Some(e));
        }
    }
    shared.state().starting -= 1;
    shared.arrived.notify_all();
    loop {
        let mut feed = shared.feed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = shared.state();
        while !state.closed && state.issued >= state.returned.saturating_add(settings.prefetch) {
            let room = shared.room.wait(state);
            state = room.unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return;
        }
        drop(state);
        let job = match catch_panic("starting a batch", settings.loc, || Ok(feed.next())) {
            Ok(Some(job)) => job,
            Ok(None) => return shared.close(None),
            Err(e) => return shared.close(Some(e)),
        };
        let number = {
            let mut state = shared.state();
            state.issued += 1;
            state.issued - 1
        };
        drop(feed);
        let batch = catch_panic("loading a batch", settings.loc, || job(&shared.current[id]));
        shared.current[id].store(IDLE, Ordering::Relaxed);
        shared.state().loaded.insert(number, batch);
        shared.arrived.notify_all();
    }
}

impl<B> Drop for Crew<B> {
    fn drop(&mut self) {
        self.shared.close(None);
        let patience = self.settings.timeout.unwrap_or(PATIENCE).min(PATIENCE);
        let state = self.shared.state();
        let ended = self
            .shared
            .arrived
            .wait_timeout_while(state, patience, |s| s.alive > 0);
        let all_ended = ended.is_ok_and(|(state, _)| state.alive == 0);
        if all_ended {
            for thread in self.threads.drain(..) {
                // An error of a worker has already been reported by its batch.
                let _ = thread.join();
            }
        }
    }
}
