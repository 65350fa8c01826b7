//! A group, and the thread that watches over its operations.

use super::api::{Api, Comm};
use crate::signature;
use crate::store::{Report, Status, Store};
use kiln_base::collective::{Communicator, DeviceCall, DeviceRun, Kind};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time between looks while operations go on.
const BUSY: Duration = Duration::from_millis(20);
/// The time between reports while none does, by which rank 0 knows that this rank is alive.
const IDLE: Duration = Duration::from_secs(1);

/// A group of NCCL's, seen from one of its ranks.
pub(super) struct Member {
    api: &'static Api,
    gpu: u32,
    name: String,
    rank: usize,
    members: Vec<usize>,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
    /// The number of threads that are in a call of NCCL.
    calling: AtomicUsize,
}

struct State {
    /// `None` once communication has ended.
    comm: Option<Comm>,
    /// The number of collective operations so far, and the descriptions of those that the store does not know.
    begun: u64,
    unreported: Vec<String>,
    /// The operations that have not ended.
    open: VecDeque<Open>,
    /// The runs that have not ended, and the number of operations of each.
    runs: VecDeque<(Arc<dyn DeviceRun>, usize)>,
    fault: Option<String>,
}

/// An operation that has not ended.
struct Open {
    call: String,
    waits_for: Awaited,
    since: Instant,
}

/// The ranks that an operation waits for.
#[derive(Copy, Clone)]
enum Awaited {
    /// All of them, in the operation of this number.
    All(u64),
    One(usize),
}

impl Member {
    /// Starts the thread. `key` is the group's name in the store.
    pub fn new(
        api: &'static Api,
        comm: Comm,
        gpu: u32,
        store: Store,
        (name, rank, members): (String, usize, &[usize]),
        timeout: Duration,
    ) -> Result<Arc<Member>, String> {
        let state = State {
            comm: Some(comm),
            begun: 0,
            unreported: Vec::new(),
            open: VecDeque::new(),
            runs: VecDeque::new(),
            fault: None,
        };
        let member = Arc::new(Member {
            api,
            gpu,
            name,
            rank,
            members: members.to_vec(),
            timeout,
            state: Mutex::new(state),
            changed: Condvar::new(),
            calling: AtomicUsize::new(0),
        });
        let watching = member.clone();
        let thread = std::thread::Builder::new().name("kiln-nccl".into());
        let started = thread.spawn(move || watching.watch_over(&store));
        started.map_err(|e| e.to_string())?;
        Ok(member)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends communication, of which nothing is left to do.
    ///
    /// # Errors
    /// NCCL's.
    pub fn close(&self) -> Result<(), String> {
        let mut state = self.lock();
        let comm = state.comm.take();
        // They have ended, and hold this group.
        state.runs.clear();
        drop(state);
        self.changed.notify_all();
        comm.map_or(Ok(()), |comm| self.api.end(comm, false))
    }

    /// Ends communication, whatever goes on.
    pub fn stop(&self) {
        if self.lock().comm.is_some() {
            self.fail(None, "communication has ended".into());
        }
    }

    /// Looks at operations until communication ends.
    fn watch_over(&self, store: &Store) {
        loop {
            let state = self.lock();
            let pause = if state.open.is_empty() { IDLE } else { BUSY };
            let rests = |s: &mut State| s.comm.is_some() && (pause == BUSY || s.open.is_empty());
            let waited = self.changed.wait_timeout_while(state, pause, rests);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let Some(comm) = state.comm else {
                return;
            };
            state.drop_ended();
            let calls = std::mem::take(&mut state.unreported);
            let from = state.begun - calls.len() as u64;
            drop(state);
            let found = self.api.state(comm);
            let found = found.and_then(|()| store.report(self.report(from, calls, None)));
            if let Err(text) = found.and_then(|status| self.judge(status)) {
                return self.fail(Some(store), text);
            }
        }
    }

    fn report(&self, from: u64, calls: Vec<String>, fault: Option<String>) -> Report {
        Report {
            group: self.name.clone(),
            rank: self.rank,
            members: self.members.clone(),
            from,
            calls,
            fault,
        }
    }

    /// Errs if the other ranks have met a fault, or keep an operation waiting.
    fn judge(&self, status: Status) -> Result<(), String> {
        if let Some(text) = status.fault {
            return Err(text);
        }
        let state = self.lock();
        for Open {
            call,
            waits_for,
            since,
        } in &state.open
        {
            let late: Vec<usize> = match *waits_for {
                Awaited::One(peer) => vec![peer],
                Awaited::All(number) => {
                    let ranks = status.begun.iter().enumerate();
                    ranks
                        .filter(|(_, begun)| **begun <= number)
                        .map(|(r, _)| r)
                        .collect()
                }
            };
            let ranks = self.members.len();
            let gone = late.iter().find(|r| status.gone.contains(r));
            // The message of a rank that has ended may be on its way.
            if let (Some(gone), Awaited::All(_)) = (gone, waits_for) {
                return Err(format!("{call}: rank {gone} of {ranks} has ended"));
            }
            if since.elapsed() < self.timeout {
                continue;
            }
            let seconds = self.timeout.as_secs_f64();
            return Err(match late.is_empty() {
                true => format!("{call}: a rank was lost, since it did not end within {seconds} s"),
                false => signature::missing(call, &late, ranks, seconds),
            });
        }
        Ok(())
    }

    /// Ends communication with a fault, which the other ranks learn too.
    fn fail(&self, store: Option<&Store>, text: String) {
        let mut state = self.lock();
        state.fault.get_or_insert(text.clone());
        state.drop_ended();
        let (comm, begun) = (state.comm.take(), state.begun);
        let runs = std::mem::take(&mut state.runs);
        drop(state);
        self.changed.notify_all();
        // First: as soon as its operations are aborted, a run goes on.
        runs.iter().for_each(|(run, _)| run.fail());
        if let Some(store) = store {
            // If it can't be told, the others find it themselves.
            let _ = store.report(self.report(begun, Vec::new(), Some(text)));
        }
        let Some(comm) = comm else {
            return;
        };
        // A call that waits for others is aborted, but none is to begin with what is freed.
        let start = Instant::now();
        while self.calling.load(Ordering::SeqCst) > 0 && start.elapsed() < IDLE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.api.end(comm, true);
    }
}

impl State {
    /// Forgets the runs that have ended, with their operations.
    fn drop_ended(&mut self) {
        while self.runs.front().is_some_and(|(run, _)| run.has_ended()) {
            let count = self.runs.pop_front().map_or(0, |(_, count)| count);
            self.open.drain(..count);
        }
    }
}

impl Communicator for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.members.len()
    }

    fn gpu(&self) -> Option<u32> {
        Some(self.gpu)
    }

    fn enqueue(&self, call: &DeviceCall) -> Result<(), String> {
        let text = signature::of(call.kind, call.dtype, call.input.1, call.output.1);
        let mut state = self.lock();
        if let Some(fault) = &state.fault {
            return Err(format!("communication failed before: {fault}"));
        }
        let comm = state.comm.ok_or("communication has ended")?;
        let waits_for = match call.kind {
            Kind::Send(peer) | Kind::Receive(peer) => Awaited::One(peer as usize),
            _ => {
                state.unreported.push(text.clone());
                state.begun += 1;
                Awaited::All(state.begun - 1)
            }
        };
        state.open.push_back(Open {
            call: text,
            waits_for,
            since: Instant::now(),
        });
        self.calling.fetch_add(1, Ordering::SeqCst);
        drop(state);
        self.changed.notify_all();
        let enqueued = self
            .api
            .enqueue(comm, (self.rank, self.members.len()), call);
        self.calling.fetch_sub(1, Ordering::SeqCst);
        enqueued
    }

    fn watch(&self, run: Arc<dyn DeviceRun>) {
        let mut state = self.lock();
        if state.fault.is_some() {
            drop(state);
            return run.fail();
        }
        let known: usize = state.runs.iter().map(|(_, count)| count).sum();
        let count = state.open.len() - known;
        state.runs.push_back((run, count));
    }

    fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }
}
