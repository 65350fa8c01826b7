//! The thread that makes every call of MPI.
//!
//! It starts operations without blocking and tests them until they are done or late, so a rank that does not come is
//! an error and no hang. In front of each operation the ranks exchange descriptions of it. So those that are missing
//! are known by number, and different calls are an error on all ranks.
//!
//! Once a rank is late the engine is broken: nothing is called any more, MPI's clean-up included, and memory that MPI
//! may still write to is never freed.

use super::library::{Api, Count, Handle, constant};
use super::port::{Job, Port};
use super::reduction::Reductions;
use crate::transport::MAX_TIMEOUT;
use kiln_base::DType;
use kiln_base::collective::Kind;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A group of MPI's: its number with the engine, this rank, and how many there are.
#[derive(Copy, Clone)]
pub(super) struct Membership {
    pub group: usize,
    pub rank: usize,
    pub ranks: usize,
}

/// A communicator.
pub(super) struct Group {
    pub comm: Handle,
    pub rank: usize,
    pub ranks: usize,
}

/// Memory that MPI reads or writes, with the requests for it. Where one of them is not done, the memory is never freed.
#[derive(Default)]
pub(super) struct Pending {
    pub requests: Vec<Handle>,
    /// The other rank of each request; empty for those of all ranks.
    pub peers: Vec<usize>,
    pub memory: Vec<Vec<u8>>,
}

impl Pending {
    pub fn add(&mut self, request: Handle, peer: usize) {
        self.requests.push(request);
        self.peers.push(peer);
    }

    /// The positions of the requests that are not done.
    pub fn undone(&self) -> impl Iterator<Item = usize> {
        let requests = self.requests.iter().enumerate();
        let undone = requests.filter(|(_, r)| **r != constant::NO_REQUEST);
        undone.map(|(i, _)| i)
    }

    pub fn is_done(&self) -> bool {
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
    pub(super) timeout: Duration,
    pub(super) groups: Vec<Group>,
    reductions: Reductions,
    /// Messages that their receivers have not taken yet.
    pub(super) sent: Vec<Pending>,
    /// The number of threads that wait for a result.
    waiting: Arc<AtomicUsize>,
    /// The fault after which MPI is not called any more.
    fault: Option<String>,
    ended: bool,
}

/// True once MPI was initialised in this process.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The longest time without testing what is being sent.
const IDLE: Duration = Duration::from_millis(1);

impl Engine {
    /// Starts the thread and initialises MPI in it.
    ///
    /// # Errors
    /// If MPI can't be initialised.
    pub fn start(api: Api, timeout: Duration) -> Result<(Port, Membership), String> {
        if STARTED.swap(true, Ordering::Relaxed) {
            return Err(
                "MPI was initialised in this process before, which it can be only once".into(),
            );
        }
        let (port, received) = Port::new();
        let (reply, started) = channel();
        let waiting = port.waiting.clone();
        let run = move || match Engine::new(api, timeout, waiting) {
            Ok(mut engine) => {
                let _ = reply.send(Ok(engine.member(0)));
                engine.serve(&received);
            }
            Err(e) => {
                let _ = reply.send(Err(e));
            }
        };
        let thread = std::thread::Builder::new().name("kiln-mpi".into());
        thread.spawn(run).map_err(|e| e.to_string())?;
        let member = started.recv().map_err(|e| e.to_string())??;
        Ok((port, member))
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
            timeout: timeout.min(MAX_TIMEOUT),
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

    fn member(&self, group: usize) -> Membership {
        let Group { rank, ranks, .. } = self.groups[group];
        Membership { group, rank, ranks }
    }

    /// Returns a status of MPI as a result.
    fn check(&self, called: &str, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let mut text = [0u8; constant::MAX_ERROR_STRING];
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
        Ok(self.member(self.groups.len() - 1))
    }

    /// Makes a communicator of some ranks of the world, all of which have agreed to it.
    ///
    /// # Errors
    /// If MPI can't.
    pub fn subgroup(&mut self, ranks: &[usize], number: usize) -> Result<Membership, String> {
        self.check_usable()?;
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

    pub(super) fn check_usable(&self) -> Result<(), String> {
        match &self.fault {
            Some(text) => Err(format!("communication failed before: {text}")),
            None => Ok(()),
        }
    }

    /// Starts an operation of all ranks. The first memory is the result's.
    pub(super) fn start_collective(
        &mut self,
        group: usize,
        kind: Kind,
        dtype: DType,
        call: &str,
        input: Vec<u8>,
        len: usize,
    ) -> Result<Pending, String> {
        let Group { comm, rank, ranks } = self.groups[group];
        let (of_mpi, op) = match kind.reducer() {
            Some(reducer) => self.reductions.of(&self.api, reducer, dtype)?,
            None => (constant::BYTE, null_mut()),
        };
        let size = match kind.reducer() {
            Some(_) => dtype.size(),
            None => 1,
        };
        let (n_in, n_out) = ((input.len() / size) as Count, (len / size) as Count);
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
                Kind::AllReduce(_) => (api.all_reduce)(x, y, n_in, of_mpi, op, comm, &mut request),
                Kind::Reduce(_, root) => {
                    let root = root as c_int;
                    let x = match root as usize == rank {
                        true => constant::IN_PLACE,
                        false => x,
                    };
                    (api.reduce)(x, y, n_in, of_mpi, op, root, comm, &mut request)
                }
                Kind::ReduceScatter(_) => {
                    (api.reduce_scatter)(x, y, n_out, of_mpi, op, comm, &mut request)
                }
                Kind::Broadcast(root) => {
                    (api.broadcast)(y, n_in, of_mpi, root as c_int, comm, &mut request)
                }
                Kind::AllGather => {
                    (api.all_gather)(x, n_in, of_mpi, y, n_in, of_mpi, comm, &mut request)
                }
                Kind::Gather { root, .. } => {
                    let root = root as c_int;
                    (api.gather)(x, n_in, of_mpi, y, n_in, of_mpi, root, comm, &mut request)
                }
                Kind::Scatter { root, .. } => {
                    let root = root as c_int;
                    (api.scatter)(x, n_out, of_mpi, y, n_out, of_mpi, root, comm, &mut request)
                }
                Kind::AllToAll => {
                    let chunk = n_in / ranks as Count;
                    (api.all_to_all)(x, chunk, of_mpi, y, chunk, of_mpi, comm, &mut request)
                }
                Kind::Barrier | Kind::Send(_) | Kind::Receive(_) => 0,
            }
        };
        if let Err(text) = self.check(call, status) {
            return Err(self.mark_broken(text));
        }
        Ok(Pending {
            requests: vec![request],
            peers: Vec::new(),
            memory: vec![output, input],
        })
    }

    pub(super) fn start_send(
        &mut self,
        comm: Handle,
        memory: &[u8],
        to: usize,
        tag: c_int,
    ) -> Result<Handle, String> {
        let mut request = constant::NO_REQUEST;
        let (address, len) = (memory.as_ptr().cast(), memory.len() as Count);
        // SAFETY: the memory lives until the request is done, or forever.
        let status = unsafe {
            (self.api.send)(
                address,
                len,
                constant::BYTE,
                to as c_int,
                tag,
                comm,
                &mut request,
            )
        };
        self.check(&format!("communication with rank {to}"), status)
            .map_err(|text| self.mark_broken(text))?;
        Ok(request)
    }

    pub(super) fn start_receive(
        &mut self,
        comm: Handle,
        memory: &mut [u8],
        from: usize,
        tag: c_int,
    ) -> Result<Handle, String> {
        let mut request = constant::NO_REQUEST;
        let (address, len) = (memory.as_mut_ptr().cast(), memory.len() as Count);
        // SAFETY: as for sending.
        let status = unsafe {
            (self.api.receive)(
                address,
                len,
                constant::BYTE,
                from as c_int,
                tag,
                comm,
                &mut request,
            )
        };
        self.check(&format!("communication with rank {from}"), status)
            .map_err(|text| self.mark_broken(text))?;
        Ok(request)
    }

    /// Tests requests until all are done or the time is over.
    pub(super) fn wait(&mut self, pending: &mut Pending) -> Result<(), String> {
        let deadline = Instant::now() + self.timeout;
        let mut iterations = 0u32;
        loop {
            if let Err(text) = self.test(pending) {
                return Err(self.mark_broken(text));
            }
            if pending.is_done() || Instant::now() >= deadline {
                return Ok(());
            }
            self.advance();
            self.check_usable()?;
            // Ranks may be more than cores: at first the others get their turn, later the thread sleeps. While nobody
            // waits, the cores are for computing.
            iterations += 1;
            match iterations < 5000 && self.waiting.load(Ordering::Relaxed) > 0 {
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
                let peer_text = match pending.peers.get(i) {
                    Some(rank) => format!("communication with rank {rank}"),
                    None => "communication".into(),
                };
                std::mem::forget(std::mem::take(&mut pending.memory));
                return self.check(&peer_text, status);
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
        let mut fault = None;
        sent.retain_mut(|pending| match self.test(pending) {
            Ok(()) => !pending.is_done(),
            Err(text) => {
                fault.get_or_insert(text);
                false
            }
        });
        self.sent = sent;
        if let Some(text) = fault {
            self.mark_broken(text);
        }
    }

    /// Notes a fault, after which nothing is called any more.
    pub(super) fn mark_broken(&mut self, text: String) -> String {
        self.sent.clear();
        self.fault.get_or_insert(text.clone());
        text
    }

    /// Waits until all that is sent was received.
    fn drain(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + self.timeout;
        while !self.sent.is_empty() {
            if Instant::now() >= deadline {
                return Err(self.mark_broken("a message was not received in time".into()));
            }
            self.advance();
            self.check_usable()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    pub(super) fn close(&mut self) -> Result<(), String> {
        self.check_usable()?;
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
