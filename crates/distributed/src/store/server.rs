//! The server, in threads of rank 0.

use super::ledger::Ledger;
use super::secret::{MAC, NONCE, is_equal, mac, nonce, secret};
use super::{MAGIC, Reply, Request, read, write};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The server of a store. Dropping it ends it.
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    ended: AtomicBool,
}

#[derive(Default)]
struct State {
    values: BTreeMap<String, Vec<u8>>,
    numbers: BTreeMap<String, i64>,
    ledger: Ledger,
    /// The ranks that have said that they end.
    left: BTreeSet<usize>,
}

impl Server {
    /// Opens a store on a port; 0 is any that is free.
    ///
    /// # Errors
    /// If the port is taken.
    pub fn open(port: u16) -> Result<Server, String> {
        let listener = TcpListener::bind(("0.0.0.0", port)).map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => format!(
                "port {port} is taken, perhaps by another job on this machine: choose another MASTER_PORT"
            ),
            _ => format!("the store can't open port {port}: {e}"),
        })?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        let shared = Arc::new(Shared::default());
        let accepting = shared.clone();
        let accept = move || {
            for stream in listener.incoming().flatten() {
                if accepting.ended.load(Ordering::Relaxed) {
                    return;
                }
                let shared = accepting.clone();
                let serve = move || drop(shared.serve(stream));
                // Without a thread the connection is closed, and the client tries again.
                let _ = std::thread::Builder::new()
                    .name("kiln-store".into())
                    .spawn(serve);
            }
        };
        let thread = std::thread::Builder::new().name("kiln-store".into());
        thread.spawn(accept).map_err(|e| e.to_string())?;
        Ok(Server { address, shared })
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Waits until this number of ranks have left, for at most this time.
    pub fn wait_for_leaving(&self, ranks: usize, timeout: Duration) {
        let state = self.shared.lock();
        let some_stay = |state: &mut State| state.left.len() < ranks;
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, timeout, some_stay);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port()));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a connection until it ends.
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let rank = welcome(&mut stream)?;
        let served = self.requests(&mut stream, rank);
        let mut state = self.lock();
        if !state.left.contains(&rank) {
            state.ledger.gone.insert(rank);
        }
        drop(state);
        self.changed.notify_all();
        served
    }

    fn requests(&self, stream: &mut TcpStream, rank: usize) -> io::Result<()> {
        loop {
            let request = read(stream)?;
            self.lock().ledger.see(rank);
            let reply = self.reply(request, rank);
            write(stream, &reply)?;
        }
    }

    fn reply(&self, request: Request, rank: usize) -> Reply {
        let mut state = self.lock();
        let reply = match request {
            Request::Set(key, value) => {
                state.values.insert(key, value);
                Reply::Done
            }
            Request::Add(key, more) => {
                let number = state.numbers.entry(key).or_default();
                *number = number.wrapping_add(more);
                Reply::Number(*number)
            }
            Request::Get(key, millis) => {
                let deadline = Instant::now().checked_add(Duration::from_millis(millis));
                loop {
                    if let Some(value) = state.values.get(&key) {
                        return Reply::Value(Some(value.clone()));
                    }
                    let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
                    let left = left.unwrap_or(Duration::from_secs(3600));
                    if left.is_zero() {
                        return Reply::Value(None);
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
            Request::Report(report) => Reply::Status(state.ledger.report(report)),
            Request::Vote(vote, millis) => {
                let deadline = Instant::now() + Duration::from_millis(millis);
                state.ledger.vote(&vote);
                // The last vote decides for those that wait.
                self.changed.notify_all();
                loop {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if let Some(agreed) = state.ledger.decide(&vote, left.is_zero()) {
                        break Reply::Agreed(agreed);
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
            Request::Leave => {
                state.left.insert(rank);
                Reply::Done
            }
        };
        drop(state);
        self.changed.notify_all();
        reply
    }
}

/// Lets in who knows the secret; returns its rank.
fn welcome(stream: &mut TcpStream) -> io::Result<usize> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let server_nonce = nonce()?;
    stream.write_all(&[&MAGIC[..], &server_nonce].concat())?;
    let mut answer = [0; 4 + NONCE + MAC];
    stream.read_exact(&mut answer)?;
    let (rank, sent_mac) = answer.split_at(4);
    let (theirs, proof) = sent_mac.split_at(NONCE);
    let secret = secret();
    let expected = mac(&secret, &[b"client", &server_nonce, theirs, rank]);
    if !proof
        .first_chunk()
        .is_some_and(|proof| is_equal(proof, &expected))
    {
        return Err(io::Error::other("another secret"));
    }
    stream.write_all(&mac(&secret, &[b"server", &server_nonce, theirs, rank]))?;
    stream.set_read_timeout(None)?;
    let rank = rank.first_chunk().copied().unwrap_or_default();
    Ok(u32::from_le_bytes(rank) as usize)
}
