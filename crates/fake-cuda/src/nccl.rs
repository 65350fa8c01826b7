//! Communicators: what the ranks of NCCL's operations exchange. Ranks are threads of this process, each with a device.
//!
//! An operation is an item of its stream. It waits until all ranks have reached theirs; who waits for it executes the
//! other ranks' streams as far as it needs. Ranks that reach different operations are an error of the communicator,
//! which hangs until it is aborted, as on hardware.

mod call;
mod reduce;
mod traffic;

use crate::config::Config;
use crate::status::{Failure, Status, failure};
pub(crate) use call::{Call, Elements, Kind, Message, RankCall, op};
use kiln_gpu_emulator::Memory;
use reduce::reduce;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// `ncclSystemError`
pub(crate) const SYSTEM_ERROR: Status = 2;
/// `ncclInvalidArgument`
pub(crate) const INVALID_ARGUMENT: Status = 4;
/// `ncclInvalidUsage`
pub(crate) const INVALID_USAGE: Status = 5;

/// A communicator, seen from a rank.
#[derive(Clone, Debug)]
pub(crate) struct Comm {
    world: Arc<World>,
    pub rank: usize,
}

#[derive(Debug)]
struct World {
    ranks: usize,
    state: Mutex<State>,
    joined: Condvar,
}

/// Messages on their way.
type Mail = VecDeque<(Elements, Vec<u8>)>;

#[derive(Debug, Default)]
struct State {
    /// By rank, its device once it has joined.
    devices: Vec<Option<usize>>,
    /// By rank, the stream of its last call.
    streams: Vec<Option<usize>>,
    aborted: Vec<bool>,
    /// By rank, its operation that has not ended.
    current: Vec<Option<Current>>,
    /// By rank, the number of collective operations that it has reached.
    reached: Vec<usize>,
    /// Operations that some rank has reached and not all have ended, by number.
    operations: BTreeMap<usize, Operation>,
    /// Messages that were not taken yet, by sender and receiver.
    mail: HashMap<(usize, usize), Mail>,
    /// The numbers of messages that were sent and taken, by sender and receiver.
    sent: HashMap<(usize, usize), usize>,
    taken: HashMap<(usize, usize), usize>,
    /// By rank, the number of calls that were captured.
    captures: Vec<usize>,
    /// The time from which on no operation goes on.
    free: f64,
    error: Option<String>,
}

#[derive(Debug)]
struct Operation {
    kind: Kind,
    of: Elements,
    captured: Option<usize>,
    first: usize,
    operands: Vec<Option<Vec<u8>>>,
    /// The time at which the last rank so far was ready, and that of the end, once a rank has got the result.
    ready: f64,
    end: Option<f64>,
    ended: usize,
}

#[derive(Debug)]
enum Current {
    /// The collective operation of this number.
    Collective(usize),
    /// The messages that are still to come, and the receivers of those sent with the numbers that they take.
    Messages(Vec<Message>, Vec<(usize, usize)>),
}

/// Worlds by their unique id, which not all ranks have joined.
static OPEN: Mutex<BTreeMap<u64, Arc<World>>> = Mutex::new(BTreeMap::new());
/// The communicators of ranks by handle.
static COMMS: Mutex<BTreeMap<usize, Comm>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The longest time that a rank waits for the others to join.
const JOINING: Duration = Duration::from_secs(60);

impl Comm {
    /// Joins a world, once all its ranks are there; returns the handle.
    pub fn join(id: u64, ranks: usize, rank: usize, device: usize) -> Result<usize, Failure> {
        if rank >= ranks {
            let why = format!("rank {rank} of {ranks}");
            return Err(failure(INVALID_ARGUMENT, why));
        }
        let world = lock(&OPEN)
            .entry(id)
            .or_insert_with(|| World::new(ranks))
            .clone();
        let mut state = lock(&world.state);
        if world.ranks != ranks || state.devices[rank].is_some() {
            let why = format!("rank {rank} of {ranks} in a world of {}", world.ranks);
            return Err(failure(INVALID_ARGUMENT, why));
        }
        if state.devices.contains(&Some(device)) {
            let why = format!("Duplicate GPU detected : rank {rank} is on device {device}");
            return Err(failure(INVALID_USAGE, why));
        }
        state.devices[rank] = Some(device);
        world.joined.notify_all();
        let deadline = Instant::now() + JOINING;
        while state.devices.contains(&None) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failure(SYSTEM_ERROR, "not all ranks have joined"));
            }
            let waited = world.joined.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        lock(&OPEN).remove(&id);
        let mut comms = lock(&COMMS);
        let handle = comms.keys().next_back().map_or(0x100, |last| last + 0x10);
        comms.insert(handle, Comm { world, rank });
        Ok(handle)
    }

    pub fn find(handle: usize) -> Result<Comm, Failure> {
        let comm = lock(&COMMS).get(&handle).cloned();
        comm.ok_or_else(|| failure(INVALID_ARGUMENT, "no such communicator"))
    }

    /// Ends a communicator; with `abort` its operations end too, without results.
    pub fn end(handle: usize, abort: bool) -> Result<(), Failure> {
        let comm = lock(&COMMS).remove(&handle);
        let comm = comm.ok_or_else(|| failure(INVALID_ARGUMENT, "no such communicator"))?;
        lock(&comm.world.state).aborted[comm.rank] |= abort;
        Ok(())
    }

    /// The error that an operation has met.
    pub fn error(&self) -> Option<String> {
        lock(&self.world.state).error.clone()
    }

    pub fn ranks(&self) -> usize {
        self.world.ranks
    }

    pub fn device(&self) -> usize {
        lock(&self.world.state).devices[self.rank].unwrap_or_default()
    }

    /// True if it is the same rank's.
    pub fn is(&self, other: &Comm) -> bool {
        self.rank == other.rank && Arc::ptr_eq(&self.world, &other.world)
    }

    /// The number of a call that is captured.
    pub fn capture(&self) -> usize {
        let captures = &mut lock(&self.world.state).captures[self.rank];
        *captures += 1;
        *captures - 1
    }

    /// Notes the stream of a call.
    pub fn uses(&self, stream: usize) {
        lock(&self.world.state).streams[self.rank] = Some(stream);
    }
}

impl World {
    fn new(ranks: usize) -> Arc<World> {
        let state = State {
            devices: vec![None; ranks],
            streams: vec![None; ranks],
            aborted: vec![false; ranks],
            current: (0..ranks).map(|_| None).collect(),
            reached: vec![0; ranks],
            captures: vec![0; ranks],
            ..State::default()
        };
        Arc::new(World {
            ranks,
            state: Mutex::new(state),
            joined: Condvar::new(),
        })
    }
}

impl RankCall {
    /// Does what can be done, ready at a time. Returns the time of the end, once the operation has ended.
    pub fn advance(
        &self,
        memory: &Memory,
        config: &Config,
        ready: f64,
    ) -> Result<Option<f64>, String> {
        let rank = self.comm.rank;
        let mut state = lock(&self.comm.world.state);
        if state.aborted[rank] {
            state.current[rank] = None;
            return Ok(Some(ready));
        }
        if state.current[rank].is_none() {
            let current = self.reach(memory, config, &mut state, ready)?;
            state.current[rank] = Some(current);
        }
        let hangs = match state.current[rank] {
            Some(Current::Collective(number)) => config.hangs == Some(number),
            _ => false,
        };
        if hangs || state.error.is_some() || !self.is_ready_in(&state) {
            return Ok(None);
        }
        let end = match state.current[rank].take() {
            Some(Current::Collective(number)) => self.finish(memory, config, &mut state, number)?,
            Some(Current::Messages(left, sent)) => {
                let left = self.take(memory, &mut state, left)?;
                if !left.is_empty() || !self.are_taken(&state, &sent) {
                    state.current[rank] = Some(Current::Messages(left, sent));
                    return Ok(None);
                }
                ready + config.costs.map_or(0.0, |costs| self.cost(costs))
            }
            None => return Ok(None),
        };
        Ok(Some(end))
    }

    /// True if this rank has reached an operation that has not ended.
    pub fn has_begun(&self) -> bool {
        lock(&self.comm.world.state).current[self.comm.rank].is_some()
    }

    /// True if advancing changes something.
    pub fn is_ready(&self) -> bool {
        self.is_ready_in(&lock(&self.comm.world.state))
    }

    fn is_ready_in(&self, state: &State) -> bool {
        match &state.current[self.comm.rank] {
            Some(Current::Collective(number)) => {
                let operation = state.operations.get(number);
                operation.is_some_and(|o| o.operands.iter().all(Option::is_some))
            }
            Some(Current::Messages(left, sent)) => {
                let is_there = |m: &Message| {
                    let mail = state.mail.get(&(m.peer, self.comm.rank));
                    mail.is_some_and(|mail| !mail.is_empty())
                };
                left.iter().any(is_there) || left.is_empty() && self.are_taken(state, sent)
            }
            None => true,
        }
    }

    /// True if the others have taken the messages of these numbers.
    fn are_taken(&self, state: &State, sent: &[(usize, usize)]) -> bool {
        sent.iter().all(|(to, number)| {
            let taken_count = state.taken.get(&(self.comm.rank, *to));
            taken_count.is_some_and(|taken_count| taken_count > number)
        })
    }

    /// The streams of the ranks that it waits for.
    pub fn awaited(&self) -> Vec<usize> {
        let state = lock(&self.comm.world.state);
        let peers: Vec<usize> = match &state.current[self.comm.rank] {
            Some(Current::Collective(_)) => (0..self.comm.world.ranks).collect(),
            Some(Current::Messages(left, sent)) => {
                let from = left.iter().map(|m| m.peer);
                from.chain(sent.iter().map(|(to, _)| *to)).collect()
            }
            None => Vec::new(),
        };
        peers.into_iter().filter_map(|p| state.streams[p]).collect()
    }

    /// Gives the others what this rank has for them.
    fn reach(
        &self,
        memory: &Memory,
        config: &Config,
        state: &mut State,
        ready: f64,
    ) -> Result<Current, String> {
        let rank = self.comm.rank;
        let read = |address: u64, len: usize| {
            let mut bytes = vec![0; if config.executes { len } else { 0 }];
            let read = memory.read(address, &mut bytes);
            read.map(|_| bytes).map_err(|e| e.to_string())
        };
        match &self.call {
            Call::Collective {
                kind, of, input, ..
            } => {
                let number = state.reached[rank];
                state.reached[rank] += 1;
                let ranks = self.comm.world.ranks;
                let operation = state.operations.entry(number).or_insert_with(|| Operation {
                    kind: *kind,
                    of: *of,
                    captured: self.captured,
                    first: rank,
                    operands: vec![None; ranks],
                    ready,
                    end: None,
                    ended: 0,
                });
                operation.ready = operation.ready.max(ready);
                if (operation.kind, operation.of) != (*kind, *of) {
                    let Operation {
                        kind: other,
                        of: elements,
                        first,
                        ..
                    } = operation;
                    let text = format!(
                        "the ranks call different operations: rank {first} calls {other} of {elements}, rank {rank} \
                         calls {kind} of {of}"
                    );
                    state.error.get_or_insert(text);
                    return Ok(Current::Collective(number));
                }
                if operation.captured != self.captured {
                    let root = operation.first;
                    let text = format!(
                        "{kind} of {of}: ranks {root} and {rank} don't launch it from graphs of one capture, or both \
                         without"
                    );
                    state.error.get_or_insert(text);
                    return Ok(Current::Collective(number));
                }
                operation.operands[rank] = Some(read(*input, self.operand_bytes())?);
                Ok(Current::Collective(number))
            }
            Call::Messages { sent, received } => {
                let mut numbers = Vec::new();
                for message in sent {
                    let key = (rank, message.peer);
                    let bytes = read(message.at, message.of.bytes())?;
                    state
                        .mail
                        .entry(key)
                        .or_default()
                        .push_back((message.of, bytes));
                    let number = state.sent.entry(key).or_default();
                    numbers.push((message.peer, *number));
                    *number += 1;
                }
                Ok(Current::Messages(received.clone(), numbers))
            }
        }
    }

    /// Writes the result of an operation that all ranks have reached.
    fn finish(
        &self,
        memory: &Memory,
        config: &Config,
        state: &mut State,
        number: usize,
    ) -> Result<f64, String> {
        let (rank, ranks) = (self.comm.rank, self.comm.world.ranks);
        let Call::Collective {
            kind, of, output, ..
        } = &self.call
        else {
            return Ok(0.0);
        };
        let Some(operation) = state.operations.get_mut(&number) else {
            return Ok(0.0);
        };
        let start = operation.ready.max(state.free);
        let cost = config.costs.map_or(0.0, |costs| self.cost(costs));
        let end = *operation.end.get_or_insert(start + cost);
        state.free = state.free.max(end);
        let operands: Vec<&[u8]> = operation
            .operands
            .iter()
            .flatten()
            .map(|x| &x[..])
            .collect();
        let result = match *kind {
            _ if !config.executes => Vec::new(),
            Kind::AllReduce(op) => reduce(of.dtype, op, &operands),
            Kind::Reduce(op, root) if root == rank => reduce(of.dtype, op, &operands),
            Kind::Reduce(..) => Vec::new(),
            Kind::Broadcast(root) => operands[root].to_vec(),
            Kind::AllGather => operands.concat(),
            Kind::ReduceScatter(op) => {
                let len = of.bytes();
                reduce(of.dtype, op, &operands)[rank * len..(rank + 1) * len].to_vec()
            }
        };
        operation.ended += 1;
        if operation.ended == ranks {
            state.operations.remove(&number);
        }
        match result.is_empty() {
            true => Ok(()),
            false => memory.write(*output, &result),
        }
        .map_err(|e| e.to_string())?;
        Ok(end)
    }

    /// Takes the messages that are there; returns those that are not.
    fn take(
        &self,
        memory: &Memory,
        state: &mut State,
        messages: Vec<Message>,
    ) -> Result<Vec<Message>, String> {
        let rank = self.comm.rank;
        let mut left = Vec::new();
        for message in messages {
            let key = (message.peer, rank);
            let letter = state.mail.get_mut(&key).and_then(VecDeque::pop_front);
            let Some((elements, bytes)) = letter else {
                left.push(message);
                continue;
            };
            if elements != message.of {
                let text = format!(
                    "rank {} sends {elements}, and rank {rank} receives {}",
                    message.peer, message.of
                );
                state.error.get_or_insert(text);
                return Ok(vec![message]);
            }
            *state.taken.entry(key).or_default() += 1;
            if !bytes.is_empty() {
                memory
                    .write(message.at, &bytes)
                    .map_err(|e| e.to_string())?;
            }
        }
        Ok(left)
    }
}
