//! A group, and the thread that watches over its operations.

use super::api::{Api, Comm};
use crate::signature;
use crate::store::{Report, Status, Store, Vote};
use kiln_base::collective::{Communicator, DeviceCall, DeviceGraph, DeviceRun, Kind};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The time between looks while operations go on.
const BUSY: Duration = Duration::from_millis(20);
/// The time between reports while none does, by which rank 0 knows that this rank is alive.
const IDLE: Duration = Duration::from_secs(1);
/// The longest time that a rank waits for the votes of the others.
const VOTING: Duration = Duration::from_secs(5);

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
    /// A connection for votes.
    votes: Store,
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
    /// The graphs with its operations.
    graphs: Vec<Weak<dyn DeviceGraph>>,
    /// The number of the operation in front of which the last vote was, and the number of votes there.
    voted: (u64, u32),
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
            graphs: Vec::new(),
            voted: (0, 0),
            fault: None,
        };
        let votes = store.reconnect()?;
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
            votes,
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
        let graphs = std::mem::take(&mut state.graphs);
        drop(state);
        self.changed.notify_all();
        release(&graphs);
        comm.map_or(Ok(()), |comm| self.api.end(comm, false))
    }

    /// Ends communication, whatever goes on.
    pub fn stop(&self) {
        let mut state = self.lock();
        if state.comm.is_none() {
            return;
        }
        let (from, calls) = state.take_unreported();
        drop(state);
        // The others may still wait for the end of the last operations, which this rank has begun.
        let _ = self.votes.report(self.report(from, calls, None));
        self.fail(None, "communication has ended".into());
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
            let (from, calls) = state.take_unreported();
            drop(state);
            let state = self.api.state(comm);
            let state = state.and_then(|()| store.report(self.report(from, calls, None)));
            if let Err(text) = state.and_then(|status| self.judge(status)) {
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
        let graphs = std::mem::take(&mut state.graphs);
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
        release(&graphs);
        let _ = self.api.end(comm, true);
    }

    /// Notes operations as begun, and returns the communicator for a call of NCCL, which `calling` counts.
    fn begin(&self, calls: &[DeviceCall]) -> Result<Comm, String> {
        let mut state = self.lock();
        let comm = state.comm()?;
        for call in calls {
            let text = signature::describe(call.kind, call.dtype, call.input.1, call.output.1);
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
        }
        self.calling.fetch_add(1, Ordering::SeqCst);
        drop(state);
        self.changed.notify_all();
        Ok(comm)
    }

    /// Ends what [`Member::begin`] began.
    fn end_call<T>(&self, result: T) -> T {
        self.calling.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn issue(&self, comm: Comm, call: &DeviceCall) -> Result<(), String> {
        let rank_and_size = (self.rank, self.members.len());
        self.end_call(self.api.enqueue(comm, rank_and_size, call))
    }
}

/// Destroys graphs, which NCCL waits for when a communicator ends.
fn release(graphs: &[Weak<dyn DeviceGraph>]) {
    let alive = graphs.iter().filter_map(Weak::upgrade);
    alive.for_each(|graph| graph.release());
}

impl State {
    /// The communicator, unless communication has ended.
    fn comm(&self) -> Result<Comm, String> {
        match &self.fault {
            Some(fault) => Err(format!("communication failed before: {fault}")),
            None => self.comm.ok_or_else(|| "communication has ended".into()),
        }
    }

    /// The operations that the store does not know, and the number of the first.
    fn take_unreported(&mut self) -> (u64, Vec<String>) {
        let calls = std::mem::take(&mut self.unreported);
        (self.begun - calls.len() as u64, calls)
    }

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
        let comm = self.begin(std::slice::from_ref(call))?;
        self.issue(comm, call)
    }

    fn agree(&self, proposal: &str) -> Option<u64> {
        let mut state = self.lock();
        state.comm().ok()?;
        let (number, voted) = (state.begun, state.voted);
        let round = if voted.0 == number { voted.1 + 1 } else { 0 };
        state.voted = (number, round);
        drop(state);
        let vote = Vote {
            group: self.name.clone(),
            rank: self.rank,
            members: self.members.clone(),
            number,
            round,
            proposal: proposal.into(),
        };
        // If the store can't be asked, the operation itself fails.
        let agreed = self.votes.vote(vote, VOTING).unwrap_or(false);
        agreed.then_some(number)
    }

    fn capture(&self, call: &DeviceCall) -> Result<(), String> {
        let comm = self.begin(&[])?;
        self.issue(comm, call)
    }

    fn replay(
        &self,
        calls: &[DeviceCall],
        launch: &mut dyn FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        self.begin(calls)?;
        self.end_call(launch())
    }

    fn hold(&self, graph: Weak<dyn DeviceGraph>) {
        let mut state = self.lock();
        state.graphs.retain(|g| g.strong_count() > 0);
        match state.comm {
            Some(_) => state.graphs.push(graph),
            None => {
                drop(state);
                release(&[graph]);
            }
        }
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
