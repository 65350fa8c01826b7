//! The thread that makes every call of MPI.
//!
//! It starts operations without blocking and tests them until they are done or late, so a rank that does not come is
//! an error and no hang. In front of each operation the ranks exchange descriptions of it. So those that are missing
//! are known by number, and different calls are an error on all ranks.
//!
//! Once a rank is late the engine is broken: nothing is called any more, MPI's clean-up included, and memory that MPI
//! may still write to is never freed.

use super::library::{Api, Count, Handle, constant};
use super::reduction::Reductions;
use crate::signature;
use crate::transport::LONGEST_TIMEOUT;
use kiln_base::DType;
use kiln_base::collective::{Kind, Reducer};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// A request to the engine's thread.
type Job = Box<dyn FnOnce(&mut Engine) + Send>;

/// A way to the engine's thread.
#[derive(Clone)]
pub(super) struct Port {
    jobs: Sender<Job>,
    /// The number of threads that wait for a result.
    waiting: Arc<AtomicUsize>,
}

/// The result of a job, once it is there.
pub(super) struct Reply<T> {
    result: Receiver<Result<T, String>>,
    waiting: Arc<AtomicUsize>,
}

fn ended() -> String {
    "communication has ended".into()
}

impl<T> Reply<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// The job's, or if communication has ended.
    pub fn wait(self) -> Result<T, String> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let result = self.result.recv().unwrap_or_else(|_| Err(ended()));
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

impl Port {
    /// Has a function run on the engine's thread, after those posted before.
    ///
    /// # Errors
    /// If communication has ended.
    pub fn post<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Engine) -> Result<T, String> + Send + 'static,
    ) -> Result<Reply<T>, String> {
        let (reply, result) = channel();
        let job: Job = Box::new(move |engine| {
            // Nobody waits any more after an error of another step.
            let _ = reply.send(f(engine));
        });
        self.jobs.send(job).map_err(|_| ended())?;
        let waiting = self.waiting.clone();
        Ok(Reply { result, waiting })
    }

    /// Runs a function on the engine's thread and waits for its result.
    ///
    /// # Errors
    /// Its error, or if communication has ended.
    pub fn ask<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Engine) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        self.post(f)?.wait()
    }

    /// Waits for what is being sent, and ends MPI.
    ///
    /// # Errors
    /// If something is not received in time, or after a fault.
    pub fn close(&self) -> Result<(), String> {
        self.ask(Engine::close)
    }
}

/// A group of MPI's: its number with the engine, this rank, and how many there are.
#[derive(Copy, Clone)]
pub(super) struct Membership {
    pub group: usize,
    pub rank: usize,
    pub ranks: usize,
}

/// A communicator.
struct Group {
    comm: Handle,
    rank: usize,
    ranks: usize,
}

/// Memory that MPI reads or writes, with the requests for it. Where one of them is not done, the memory is never freed.
#[derive(Default)]
struct Pending {
    requests: Vec<Handle>,
    /// The other rank of each request; empty for those of all ranks.
    peers: Vec<usize>,
    memory: Vec<Vec<u8>>,
}

impl Pending {
    fn add(&mut self, request: Handle, peer: usize) {
        self.requests.push(request);
        self.peers.push(peer);
    }

    /// The positions of the requests that are not done.
    fn undone(&self) -> impl Iterator<Item = usize> {
        let requests = self.requests.iter().enumerate();
        let undone = requests.filter(|(_, r)| **r != constant::NO_REQUEST);
        undone.map(|(i, _)| i)
    }

    fn is_done(&self) -> bool {
        self.undone().next().is_none()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_done() {
            std::mem::forget(std::mem::take(&mut self.memory));
        }
    }
}

/// The state of the thread.
pub(super) struct Engine {
    api: Api,
    timeout: Duration,
    groups: Vec<Group>,
    reductions: Reductions,
    /// Messages that their receivers have not taken yet.
    sent: Vec<Pending>,
    /// The number of threads that wait for a result.
    waiting: Arc<AtomicUsize>,
    /// The fault after which MPI is not called any more.
    fault: Option<String>,
    ended: bool,
}

/// The tags of messages.
const CALLS: c_int = 1;
const MESSAGES: c_int = 2;

/// The longest time without testing what is being sent.
const IDLE: Duration = Duration::from_millis(1);

impl Engine {
    /// Starts the thread and initialises MPI in it.
    ///
    /// # Errors
    /// If MPI can't be initialised.
    pub fn start(api: Api, timeout: Duration) -> Result<(Port, Membership), String> {
        let (jobs, received) = channel::<Job>();
        let (reply, started) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let port = Port {
            jobs,
            waiting: waiting.clone(),
        };
        let run = move || match Engine::new(api, timeout, waiting) {
            Ok(mut engine) => {
                let _ = reply.send(Ok(engine.place(0)));
                engine.serve(&received);
            }
            Err(e) => {
                let _ = reply.send(Err(e));
            }
        };
        let thread = std::thread::Builder::new().name("kiln-mpi".into());
        thread.spawn(run).map_err(|e| e.to_string())?;
        let place = started.recv().map_err(|e| e.to_string())??;
        Ok((port, place))
    }

    fn new(api: Api, timeout: Duration, waiting: Arc<AtomicUsize>) -> Result<Engine, String> {
        let mut level = 0;
        // SAFETY: this is the first call, and all later ones are made in this thread.
        let status = unsafe {
            (api.init)(
                null_mut(),
                null_mut(),
                constant::THREAD_FUNNELED,
                &mut level,
            )
        };
        let mut engine = Engine {
            api,
            timeout: timeout.min(LONGEST_TIMEOUT),
            groups: Vec::new(),
            reductions: Reductions::default(),
            sent: Vec::new(),
            waiting,
            fault: None,
            ended: false,
        };
        engine.check("MPI_Init_thread", status)?;
        if level < constant::THREAD_FUNNELED {
            return Err("this MPI can't be called in a program of several threads".into());
        }
        engine.add(constant::WORLD)?;
        ignore_notices();
        Ok(engine)
    }

    /// Runs jobs until the last port is gone.
    fn serve(&mut self, jobs: &Receiver<Job>) {
        while !self.ended {
            let job = match self.sent.is_empty() {
                true => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => jobs.recv_timeout(IDLE),
            };
            match job {
                Ok(job) => job(self),
                Err(RecvTimeoutError::Timeout) => self.advance(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn place(&self, group: usize) -> Membership {
        let Group { rank, ranks, .. } = self.groups[group];
        Membership { group, rank, ranks }
    }

    /// Turns a status of MPI's into an error.
    fn check(&self, called: &str, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let mut text = [0u8; constant::LONGEST_ERROR];
        let mut len = 0;
        // SAFETY: the text has room for the longest error.
        unsafe { (self.api.error_string)(status, text.as_mut_ptr().cast(), &mut len) };
        let text = String::from_utf8_lossy(&text[..(len as usize).min(text.len())]);
        Err(format!("{called} failed: {text}"))
    }

    /// Adds a communicator.
    fn add(&mut self, comm: Handle) -> Result<Membership, String> {
        let (mut rank, mut ranks) = (0, 0);
        // SAFETY: the communicator is MPI's, and this process is in it.
        unsafe {
            let status = (self.api.set_errors)(comm, constant::ERRORS_RETURN);
            self.check("MPI_Comm_set_errhandler", status)?;
            self.check("MPI_Comm_rank", (self.api.rank)(comm, &mut rank))?;
            self.check("MPI_Comm_size", (self.api.size)(comm, &mut ranks))?;
        }
        self.groups.push(Group {
            comm,
            rank: rank as usize,
            ranks: ranks as usize,
        });
        Ok(self.place(self.groups.len() - 1))
    }

    /// Makes a communicator of some ranks of the world, all of which have agreed to it.
    ///
    /// # Errors
    /// If MPI can't.
    pub fn subgroup(&mut self, ranks: &[usize], number: usize) -> Result<Membership, String> {
        self.usable()?;
        let ranks: Vec<c_int> = ranks.iter().map(|r| *r as c_int).collect();
        let (mut all, mut some, mut comm) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the ranks are those of the world, and all of them make this call.
        unsafe {
            let status = (self.api.group)(constant::WORLD, &mut all);
            self.check("MPI_Comm_group", status)?;
            let count = ranks.len() as c_int;
            let status = (self.api.include)(all, count, ranks.as_ptr(), &mut some);
            self.check("MPI_Group_incl", status)?;
            let status = (self.api.create)(constant::WORLD, some, number as c_int, &mut comm);
            self.check("MPI_Comm_create_group", status)?;
        }
        self.add(comm)
    }

    fn usable(&self) -> Result<(), String> {
        match &self.fault {
            Some(text) => Err(format!("communication failed before: {text}")),
            None => Ok(()),
        }
    }

    /// Takes part in an operation; returns the result of so many bytes.
    ///
    /// # Errors
    /// Names the ranks that did not come or that make another call.
    pub fn run(
        &mut self,
        group: usize,
        kind: Kind,
        dtype: DType,
        input: Vec<u8>,
        len: usize,
    ) -> Result<Vec<u8>, String> {
        self.usable()?;
        let call = signature::of(kind, dtype, input.len(), len);
        match kind {
            Kind::Send(to) => self.send(group, to as usize, &call, input),
            Kind::Receive(from) => self.receive(group, from as usize, &call, len),
            _ => {
                self.agree(group, &call)?;
                self.collective(group, kind, dtype, &call, input, len)
            }
        }
    }

    /// Exchanges the descriptions of calls with all other ranks.
    fn agree(&mut self, group: usize, call: &str) -> Result<(), String> {
        let Group { comm, rank, ranks } = self.groups[group];
        let others: Vec<usize> = (0..ranks).filter(|r| *r != rank).collect();
        let mut pending = Pending::default();
        for other in &others {
            let mut theirs = vec![0u8; signature::LONGEST];
            let request = self.start_receive(comm, &mut theirs, *other, CALLS)?;
            pending.add(request, *other);
            pending.memory.push(theirs);
        }
        pending.memory.push(padded(call));
        for other in &others {
            let own = &pending.memory[others.len()];
            let request = self.start_send(comm, own, *other, CALLS)?;
            pending.add(request, *other);
        }
        self.wait(&mut pending)?;
        let late: Vec<usize> = (pending.undone())
            .filter_map(|i| others.get(i).copied())
            .collect();
        if !late.is_empty() {
            let text = signature::missing(call, &late, ranks, self.timeout.as_secs_f64());
            return Err(self.broken(text));
        }
        // Short messages that were not taken yet go on in the background.
        let mut all: Vec<String> = vec![call.into(); ranks];
        for (other, theirs) in others.iter().zip(&pending.memory) {
            all[*other] = text(theirs);
        }
        if !pending.is_done() {
            self.sent.push(pending);
        }
        signature::agree(rank, &all)
    }

    fn collective(
        &mut self,
        group: usize,
        kind: Kind,
        dtype: DType,
        call: &str,
        input: Vec<u8>,
        len: usize,
    ) -> Result<Vec<u8>, String> {
        let Group { comm, rank, ranks } = self.groups[group];
        let is_empty = input.is_empty() && len == 0;
        if is_empty || matches!(kind, Kind::Barrier) {
            return Ok(input);
        }
        let (of_mpi, op) = match kind.reducer() {
            Some(reducer) => self.reductions.of(&self.api, reducer, dtype)?,
            None => (constant::BYTE, null_mut()),
        };
        let size = match kind.reducer() {
            Some(_) => dtype.size(),
            None => 1,
        };
        let (given, taken) = ((input.len() / size) as Count, (len / size) as Count);
        let mut output = match kind {
            Kind::Broadcast(_) | Kind::Reduce(..) => input.clone(),
            _ => vec![0u8; len],
        };
        let mut request = constant::NO_REQUEST;
        let (x, y) = (
            input.as_ptr().cast::<c_void>(),
            output.as_mut_ptr().cast::<c_void>(),
        );
        let api = &self.api;
        // SAFETY: operand and result have the lengths that all ranks have agreed on, and live until the request is
        // done, or forever.
        let status = unsafe {
            match kind {
                Kind::AllReduce(_) => (api.all_reduce)(x, y, given, of_mpi, op, comm, &mut request),
                Kind::Reduce(_, root) => {
                    let root = root as c_int;
                    let x = match root as usize == rank {
                        true => constant::IN_PLACE,
                        false => x,
                    };
                    (api.reduce)(x, y, given, of_mpi, op, root, comm, &mut request)
                }
                Kind::ReduceScatter(_) => {
                    (api.reduce_scatter)(x, y, taken, of_mpi, op, comm, &mut request)
                }
                Kind::Broadcast(root) => {
                    (api.broadcast)(y, given, of_mpi, root as c_int, comm, &mut request)
                }
                Kind::AllGather => {
                    (api.all_gather)(x, given, of_mpi, y, given, of_mpi, comm, &mut request)
                }
                Kind::Gather { root, .. } => {
                    let root = root as c_int;
                    (api.gather)(x, given, of_mpi, y, given, of_mpi, root, comm, &mut request)
                }
                Kind::Scatter { root, .. } => {
                    let root = root as c_int;
                    (api.scatter)(x, taken, of_mpi, y, taken, of_mpi, root, comm, &mut request)
                }
                Kind::AllToAll => {
                    let part = given / ranks as Count;
                    (api.all_to_all)(x, part, of_mpi, y, part, of_mpi, comm, &mut request)
                }
                Kind::Barrier | Kind::Send(_) | Kind::Receive(_) => 0,
            }
        };
        if let Err(text) = self.check(call, status) {
            return Err(self.broken(text));
        }
        let mut pending = Pending {
            requests: vec![request],
            peers: Vec::new(),
            memory: vec![output, input],
        };
        self.wait(&mut pending)?;
        if !pending.is_done() {
            let seconds = self.timeout.as_secs_f64();
            let text = format!("{call}: a rank was lost, since it did not end within {seconds} s");
            return Err(self.broken(text));
        }
        let mut output = pending.memory.swap_remove(0);
        if let Kind::AllReduce(Reducer::Mean) | Kind::ReduceScatter(Reducer::Mean) = kind {
            output = divided(dtype, &output, ranks);
        }
        if let Kind::Reduce(Reducer::Mean, root) = kind
            && root as usize == rank
        {
            output = divided(dtype, &output, ranks);
        }
        Ok(output)
    }

    /// Sends a description and a message, and does not wait for the receiver.
    fn send(
        &mut self,
        group: usize,
        to: usize,
        call: &str,
        message: Vec<u8>,
    ) -> Result<Vec<u8>, String> {
        let comm = self.groups[group].comm;
        let mut pending = Pending::default();
        pending.memory.extend([padded(call), message]);
        for part in 0..2 {
            let request = self.start_send(comm, &pending.memory[part], to, MESSAGES)?;
            pending.add(request, to);
        }
        self.sent.push(pending);
        Ok(Vec::new())
    }

    fn receive(
        &mut self,
        group: usize,
        from: usize,
        call: &str,
        len: usize,
    ) -> Result<Vec<u8>, String> {
        let Group { comm, ranks, .. } = self.groups[group];
        let theirs = self.message(comm, from, call, ranks, signature::LONGEST)?;
        let theirs = text(&theirs);
        if theirs != call {
            let text = format!("rank {from} sends another value than {call}: {theirs}");
            return Err(self.broken(text));
        }
        self.message(comm, from, call, ranks, len)
    }

    /// Waits for a message of so many bytes.
    fn message(
        &mut self,
        comm: Handle,
        from: usize,
        call: &str,
        ranks: usize,
        len: usize,
    ) -> Result<Vec<u8>, String> {
        let mut memory = vec![0u8; len];
        let request = self.start_receive(comm, &mut memory, from, MESSAGES)?;
        let mut pending = Pending {
            requests: vec![request],
            peers: vec![from],
            memory: vec![memory],
        };
        self.wait(&mut pending)?;
        if !pending.is_done() {
            let text = signature::missing(call, &[from], ranks, self.timeout.as_secs_f64());
            return Err(self.broken(text));
        }
        Ok(pending.memory.swap_remove(0))
    }

    fn start_send(
        &mut self,
        comm: Handle,
        memory: &[u8],
        to: usize,
        tag: c_int,
    ) -> Result<Handle, String> {
        let mut request = constant::NO_REQUEST;
        let (at, len) = (memory.as_ptr().cast(), memory.len() as Count);
        // SAFETY: the memory lives until the request is done, or forever.
        let status = unsafe {
            (self.api.send)(
                at,
                len,
                constant::BYTE,
                to as c_int,
                tag,
                comm,
                &mut request,
            )
        };
        self.check(&format!("communication with rank {to}"), status)
            .map_err(|text| self.broken(text))?;
        Ok(request)
    }

    fn start_receive(
        &mut self,
        comm: Handle,
        memory: &mut [u8],
        from: usize,
        tag: c_int,
    ) -> Result<Handle, String> {
        let mut request = constant::NO_REQUEST;
        let (at, len) = (memory.as_mut_ptr().cast(), memory.len() as Count);
        // SAFETY: as for sending.
        let status = unsafe {
            (self.api.receive)(
                at,
                len,
                constant::BYTE,
                from as c_int,
                tag,
                comm,
                &mut request,
            )
        };
        self.check(&format!("communication with rank {from}"), status)
            .map_err(|text| self.broken(text))?;
        Ok(request)
    }

    /// Tests requests until all are done or the time is over.
    fn wait(&mut self, pending: &mut Pending) -> Result<(), String> {
        let deadline = Instant::now() + self.timeout;
        let mut turns = 0u32;
        loop {
            if let Err(text) = self.test(pending) {
                return Err(self.broken(text));
            }
            if pending.is_done() || Instant::now() >= deadline {
                return Ok(());
            }
            self.advance();
            // Ranks may be more than cores: at first the others get their turn, later the thread sleeps. While nobody
            // waits, the cores are for computing.
            turns += 1;
            match turns < 5000 && self.waiting.load(Ordering::Relaxed) > 0 {
                true => std::thread::yield_now(),
                false => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    /// Tests the requests that are not done yet. After an error their memory is never freed.
    fn test(&self, pending: &mut Pending) -> Result<(), String> {
        for (i, request) in pending.requests.iter_mut().enumerate() {
            if *request == constant::NO_REQUEST {
                continue;
            }
            let mut done = 0;
            // SAFETY: the request is MPI's; a status is not asked for.
            let status = unsafe { (self.api.test)(request, &mut done, null_mut()) };
            if status != 0 {
                let with = match pending.peers.get(i) {
                    Some(rank) => format!("communication with rank {rank}"),
                    None => "communication".into(),
                };
                std::mem::forget(std::mem::take(&mut pending.memory));
                return self.check(&with, status);
            }
        }
        Ok(())
    }

    /// Goes on with what is being sent.
    fn advance(&mut self) {
        if self.fault.is_some() {
            return;
        }
        let mut sent = std::mem::take(&mut self.sent);
        sent.retain_mut(|pending| self.test(pending).is_ok() && !pending.is_done());
        self.sent = sent;
    }

    /// Notes a fault, after which nothing is called any more.
    fn broken(&mut self, text: String) -> String {
        self.sent.clear();
        self.fault.get_or_insert(text.clone());
        text
    }

    /// Waits until all that is sent was received.
    fn drain(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + self.timeout;
        while !self.sent.is_empty() {
            if Instant::now() >= deadline {
                return Err(self.broken("a message was not received in time".into()));
            }
            self.advance();
            std::thread::yield_now();
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        self.usable()?;
        self.drain()?;
        // All others are here too, so that the last call does not wait for them.
        self.agree(0, "destroy_process_group")?;
        self.drain()?;
        self.ended = true;
        // SAFETY: nothing is pending.
        let status = unsafe { (self.api.finalize)() };
        self.check("MPI_Finalize", status)
    }
}

/// Ignores the signal by which MPICH's `mpiexec` tells ranks that another one died, which would end them.
fn ignore_notices() {
    // SAFETY: the handler is the system's, and a handler of the program's is put back.
    unsafe {
        let before = libc::signal(libc::SIGUSR1, libc::SIG_IGN);
        if before != libc::SIG_DFL {
            libc::signal(libc::SIGUSR1, before);
        }
    }
}

/// A description with room for any other.
fn padded(call: &str) -> Vec<u8> {
    let mut bytes = call.as_bytes().to_vec();
    bytes.resize(signature::LONGEST, 0);
    bytes
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Sums divided by the number of ranks.
fn divided(dtype: DType, sums: &[u8], ranks: usize) -> Vec<u8> {
    let means: Vec<f64> = dtype
        .floats(sums)
        .iter()
        .map(|x| x / ranks as f64)
        .collect();
    dtype.float_bytes(&means)
}
