//! Groups of ranks in the threads of one process.

use crate::signature;
use crate::transport::{DEFAULT_TIMEOUT, MAX_TIMEOUT, Transport};
use kiln_base::DType;
use kiln_base::collective::{Call, Communicator, Kind, Request};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The ranks of a group, and the number of groups that a rank made before it.
type GroupKey = (Vec<usize>, usize);

/// The groups of a world of threads.
pub(crate) struct World {
    timeout: Duration,
    rooms: Mutex<BTreeMap<GroupKey, Arc<Room>>>,
}

/// A rank's way to make groups.
pub(crate) struct InThreads {
    world: Arc<World>,
    rank: usize,
    is_process: bool,
}

impl Transport for InThreads {
    fn subgroup(&self, ranks: &[usize], number: usize) -> Result<Arc<dyn Communicator>, String> {
        let index = ranks.iter().position(|r| *r == self.rank);
        let index = index.ok_or("this rank is not in the group")?;
        Ok(Arc::new(self.world.member(ranks, number, index)))
    }

    fn is_process(&self) -> bool {
        self.is_process
    }
}

/// Returns a number that no other world in this process has.
pub(crate) fn unique_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the only rank of a world without a library.
pub(crate) fn single_rank() -> (Arc<dyn Communicator>, InThreads) {
    Arc::new(World::new(DEFAULT_TIMEOUT)).join(1, 0, true)
}

impl World {
    pub(crate) fn new(timeout: Duration) -> World {
        World {
            timeout: timeout.min(MAX_TIMEOUT),
            rooms: Mutex::default(),
        }
    }

    /// Returns a rank's group of so many ranks, and its way to make others.
    pub(crate) fn join(
        self: Arc<World>,
        ranks: usize,
        rank: usize,
        is_process: bool,
    ) -> (Arc<dyn Communicator>, InThreads) {
        let all_ranks: Vec<usize> = (0..ranks).collect();
        let member = Arc::new(self.member(&all_ranks, 0, rank));
        let transport = InThreads {
            world: self,
            rank,
            is_process,
        };
        (member, transport)
    }

    fn member(&self, ranks: &[usize], number: usize, rank: usize) -> Member {
        let mut rooms = self.rooms.lock().unwrap_or_else(|e| e.into_inner());
        let room = rooms.entry((ranks.to_vec(), number));
        let room = room.or_insert_with(|| Arc::new(Room::new(ranks.len())));
        let seat = Seat {
            room: room.clone(),
            rank,
            timeout: self.timeout,
        };
        Member { seat }
    }
}

/// Where the ranks of a group meet.
struct Room {
    ranks: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By rank, the parts in operations that not all ranks have begun.
    posts: Vec<VecDeque<Post>>,
    /// By rank, the number of operations that it has begun.
    begun: Vec<usize>,
    /// The results that were not taken yet, by rank and number of the operation.
    results: BTreeMap<(usize, usize), Result<Vec<u8>, String>>,
    /// By sender and receiver.
    mail: BTreeMap<(usize, usize), Mail>,
    gone: Vec<bool>,
    failed: Option<String>,
}

/// The messages of one rank to another. They have numbers, so one whose receiver has given up is not taken for the next.
#[derive(Default)]
struct Mail {
    /// The messages that were not taken yet, by number.
    posts: BTreeMap<usize, Post>,
    sent: usize,
    asked: usize,
}

/// A rank's part in an operation.
struct Post {
    signature: String,
    kind: Kind,
    dtype: DType,
    input: Vec<u8>,
}

impl Room {
    fn new(ranks: usize) -> Room {
        let state = State {
            posts: (0..ranks).map(|_| VecDeque::new()).collect(),
            begun: vec![0; ranks],
            gone: vec![false; ranks],
            ..State::default()
        };
        Room {
            ranks,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A group of threads, seen from one of them.
struct Member {
    seat: Seat,
}

/// A rank's seat in a room.
#[derive(Clone)]
struct Seat {
    room: Arc<Room>,
    rank: usize,
    timeout: Duration,
}

impl Drop for Member {
    fn drop(&mut self) {
        let Seat { room, rank, .. } = &self.seat;
        room.lock().gone[*rank] = true;
        room.changed.notify_all();
    }
}

impl Seat {
    /// Waits until `ready` gives something. `late` are the ranks that are waited for.
    fn wait<T>(
        &self,
        what: &str,
        mut ready: impl FnMut(&mut State) -> Option<T>,
        late: impl Fn(&State) -> Vec<usize>,
    ) -> Result<T, String> {
        let deadline = Instant::now() + self.timeout;
        let mut state = self.room.lock();
        loop {
            if let Some(value) = ready(&mut state) {
                return Ok(value);
            }
            if let Some(text) = &state.failed {
                return Err(text.clone());
            }
            let late = late(&state);
            let gone: Vec<usize> = late.iter().copied().filter(|r| state.gone[*r]).collect();
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(gone) = gone.first() {
                let text = format!("{what}: rank {gone} of {} has ended", self.room.ranks);
                state.failed = Some(text);
            } else if left.is_zero() {
                let seconds = self.timeout.as_secs_f64();
                let text = signature::missing(what, &late, self.room.ranks, seconds);
                state.failed = Some(text);
            } else {
                let waited = self.room.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(|e| e.into_inner()).0;
                continue;
            }
            self.room.changed.notify_all();
        }
    }

    /// Posts this rank's part, and returns the number of the operation.
    fn post(&self, post: Post) -> Result<usize, String> {
        let mut state = self.room.lock();
        if let Some(text) = &state.failed {
            return Err(text.clone());
        }
        let number = state.begun[self.rank];
        state.begun[self.rank] += 1;
        state.posts[self.rank].push_back(post);
        if state.posts.iter().all(|posts| !posts.is_empty()) {
            let posts = state.posts.iter_mut().filter_map(VecDeque::pop_front);
            let results = results(&posts.collect::<Vec<_>>()).into_iter().enumerate();
            let numbered = results.map(|(rank, result)| ((rank, number), result));
            state.results.extend(numbered);
            self.room.changed.notify_all();
        }
        Ok(number)
    }

    /// Waits for the result of an operation.
    fn result(&self, number: usize, signature: &str) -> Result<Vec<u8>, String> {
        let result = |state: &mut State| state.results.remove(&(self.rank, number));
        let late = |state: &State| {
            let ranks = 0..self.room.ranks;
            ranks.filter(|r| state.begun[*r] <= number).collect()
        };
        self.wait(signature, result, late)?
    }

    fn receive(&self, from: usize, number: usize, signature: &str) -> Result<Vec<u8>, String> {
        let key = (from, self.rank);
        let mail = |state: &mut State| state.mail.get_mut(&key)?.posts.remove(&number);
        let post = self.wait(signature, mail, |_| vec![from])?;
        match post.signature == signature {
            true => Ok(post.input),
            false => Err(format!(
                "rank {from} sends another value than rank {} receives: {}, not {signature}",
                self.rank, post.signature
            )),
        }
    }
}

impl Communicator for Member {
    fn rank(&self) -> usize {
        self.seat.rank
    }

    fn ranks(&self) -> usize {
        self.seat.room.ranks
    }

    fn start(&self, call: Call<'_>) -> Result<Box<dyn Request>, String> {
        let Seat { room, rank, .. } = &self.seat;
        let signature = signature::describe(call.kind, call.dtype, call.input.len(), call.output);
        let post = Post {
            signature: signature.clone(),
            kind: call.kind,
            dtype: call.dtype,
            input: call.input.to_vec(),
        };
        let waits_for = match call.kind {
            Kind::Send(to) => {
                let mut state = room.lock();
                let mail = state.mail.entry((*rank, to as usize)).or_default();
                mail.posts.insert(mail.sent, post);
                mail.sent += 1;
                room.changed.notify_all();
                Awaited::Nothing
            }
            Kind::Receive(from) => {
                let mut state = room.lock();
                let mail = state.mail.entry((from as usize, *rank)).or_default();
                mail.asked += 1;
                Awaited::Message(from as usize, mail.asked - 1)
            }
            _ => Awaited::Result(self.seat.post(post)?),
        };
        Ok(Box::new(Started {
            seat: self.seat.clone(),
            signature,
            waits_for,
        }))
    }
}

/// An operation that was started.
struct Started {
    seat: Seat,
    signature: String,
    waits_for: Awaited,
}

enum Awaited {
    Nothing,
    /// The message of a rank, of this number.
    Message(usize, usize),
    /// The result of the operation of this number.
    Result(usize),
}

impl Drop for Started {
    /// Takes what nobody waits for any more.
    fn drop(&mut self) {
        let Seat { room, rank, .. } = &self.seat;
        let mut state = room.lock();
        match self.waits_for {
            Awaited::Nothing => (),
            Awaited::Message(from, number) => {
                let mail = state.mail.get_mut(&(from, *rank));
                mail.and_then(|mail| mail.posts.remove(&number));
            }
            Awaited::Result(number) => {
                state.results.remove(&(*rank, number));
            }
        }
    }
}

impl Request for Started {
    fn wait(self: Box<Self>, output: &mut [u8]) -> Result<(), String> {
        let Started {
            seat,
            signature,
            waits_for,
        } = &*self;
        let result = match waits_for {
            Awaited::Nothing => Vec::new(),
            Awaited::Message(from, number) => seat.receive(*from, *number, signature)?,
            Awaited::Result(number) => seat.result(*number, signature)?,
        };
        if result.len() != output.len() {
            return Err(format!("{signature}: the result has another size"));
        }
        output.copy_from_slice(&result);
        Ok(())
    }
}

/// The results of all ranks.
fn results(posts: &[Post]) -> Vec<Result<Vec<u8>, String>> {
    let signatures: Vec<String> = posts.iter().map(|p| p.signature.clone()).collect();
    let inputs: Vec<&[u8]> = posts.iter().map(|p| &p.input[..]).collect();
    let ranks = posts.len();
    let agree = signatures.iter().all(|s| *s == signatures[0]);
    let reducer = posts[0].kind.reducer().filter(|_| agree);
    let reduced = reducer.map(|r| r.reduce(posts[0].dtype, &inputs));
    let reduced = reduced.unwrap_or_default();
    let result = |(rank, post): (usize, &Post)| {
        signature::check_agreement(rank, &signatures)?;
        let chunk = |bytes: &[u8]| {
            let len = bytes.len() / ranks;
            bytes[rank * len..(rank + 1) * len].to_vec()
        };
        Ok(match post.kind {
            Kind::AllReduce(_) => reduced.clone(),
            Kind::Reduce(_, root) if root as usize == rank => reduced.clone(),
            Kind::ReduceScatter(_) => chunk(&reduced),
            Kind::Broadcast(root) => inputs[root as usize].to_vec(),
            Kind::AllGather | Kind::Gather { here: true, .. } => inputs.concat(),
            Kind::Gather { here: false, .. } => Vec::new(),
            Kind::Scatter { root, .. } => chunk(inputs[root as usize]),
            Kind::AllToAll => inputs.iter().flat_map(|x| chunk(x)).collect(),
            Kind::Reduce(..) | Kind::Barrier | Kind::Send(_) | Kind::Receive(_) => {
                post.input.clone()
            }
        })
    };
    posts.iter().enumerate().map(result).collect()
}
