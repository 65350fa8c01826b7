//! The key-value store by which ranks find each other: a server on rank 0, and its clients.
//!
//! A connection begins with a handshake that proves to both sides that the other knows the secret
//! (`KILN_STORE_SECRET`). Then come requests and replies: their length, and JSON. Nothing is encrypted.

mod ledger;
mod secret;
mod server;

pub(crate) use crate::signature::late_text as late_ranks;
pub(crate) use ledger::Status;
use secret::{MAC, NONCE, mac, nonce, secret};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
pub(crate) use server::Server;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The greeting of a server.
const MAGIC: &[u8; 8] = b"KILNST02";
/// The maximum number of bytes of a request or reply.
const MAX_BYTES: usize = 1 << 20;
/// The time after which a silent rank counts as gone, and a silent server too.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// A request of a rank.
#[derive(Serialize, Deserialize)]
enum Request {
    Set(String, Vec<u8>),
    /// The value of a key; the server waits for it for at most so many milliseconds.
    Get(String, u64),
    /// Adds to a number, which begins as 0.
    Add(String, i64),
    Report(Report),
    /// A vote, and the milliseconds for which it waits for the others.
    Vote(Vote, u64),
    /// The last request of a rank.
    Leave,
}

/// The operations of a group that a rank has begun since its last report.
#[derive(Serialize, Deserialize)]
pub(crate) struct Report {
    pub group: String,
    /// This rank in the group, and the ranks of the world that are in it.
    pub rank: usize,
    pub members: Vec<usize>,
    /// The number of the first, and descriptions.
    pub from: u64,
    pub calls: Vec<String>,
    /// The fault that has ended communication on this rank.
    pub fault: Option<String>,
}

/// The vote of a rank on how all ranks issue the operations of a group that follow.
#[derive(Serialize, Deserialize)]
pub(crate) struct Vote {
    pub group: String,
    /// This rank in the group, and the ranks of the world that are in it.
    pub rank: usize,
    pub members: Vec<usize>,
    /// The number of the first of the operations, and of the votes in front of it.
    pub number: u64,
    pub round: u32,
    pub proposal: String,
}

/// A reply, whose type its request tells.
#[derive(Serialize)]
#[serde(untagged)]
enum Reply {
    Done,
    Agreed(bool),
    Value(Option<Vec<u8>>),
    Number(i64),
    Status(Status),
}

/// A connection to the store.
pub(crate) struct Store {
    stream: Mutex<TcpStream>,
    address: String,
    rank: usize,
}

impl Store {
    /// Connects as a rank, as soon as the server is there.
    ///
    /// # Errors
    /// If it does not come within the timeout, or has another secret.
    pub fn connect(address: &str, rank: usize, timeout: Duration) -> Result<Store, String> {
        let deadline = Instant::now() + timeout;
        loop {
            let why = match Store::try_connect(address, rank) {
                Ok(store) => return Ok(store),
                Err(Refusal::Final(text)) => return Err(text),
                Err(Refusal::NotYet(why)) => why,
            };
            if Instant::now() >= deadline {
                return Err(format!(
                    "rank 0 did not open the store at {address} within {} s: {why}",
                    timeout.as_secs_f64()
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn try_connect(address: &str, rank: usize) -> Result<Store, Refusal> {
        let not_yet = |e: io::Error| Refusal::NotYet(e.to_string());
        let mut tried = Refusal::NotYet("the name has no address".into());
        for to in address.to_socket_addrs().map_err(not_yet)? {
            let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5));
            match stream
                .map_err(not_yet)
                .and_then(|s| greet(s, address, rank))
            {
                Ok(stream) => {
                    return Ok(Store {
                        stream: Mutex::new(stream),
                        address: address.into(),
                        rank,
                    });
                }
                Err(refusal) => tried = refusal,
            }
        }
        Err(tried)
    }

    /// Another connection, which requests that wait do not hold up.
    pub fn reconnect(&self) -> Result<Store, String> {
        Store::connect(&self.address, self.rank, SILENCE)
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request, waits: Duration) -> Result<T, String> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = stream
            .set_read_timeout(Some(waits.saturating_add(SILENCE)))
            .and_then(|()| write(&mut stream, request))
            .and_then(|()| read(&mut stream));
        reply.map_err(|e| {
            format!(
                "rank 0 has ended: its store at {} does not answer ({e})",
                self.address
            )
        })
    }

    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        self.ask(&Request::Set(key.into(), value.into()), Duration::ZERO)
    }

    /// The value of a key, once it is there; `None` if it does not come within the timeout.
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>, String> {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.ask(&Request::Get(key.into(), millis), timeout)
    }

    /// Adds to a number, and returns the sum.
    pub fn add(&self, key: &str, more: i64) -> Result<i64, String> {
        self.ask(&Request::Add(key.into(), more), Duration::ZERO)
    }

    pub fn report(&self, report: Report) -> Result<Status, String> {
        self.ask(&Request::Report(report), Duration::ZERO)
    }

    /// True if all members vote for the same. Members that begin the operations without a vote, end, or don't come within
    /// the timeout vote for nothing.
    pub fn vote(&self, vote: Vote, timeout: Duration) -> Result<bool, String> {
        self.ask(&Request::Vote(vote, timeout.as_millis() as u64), timeout)
    }

    /// Waits until all members have come to a point, whose key no other has.
    ///
    /// # Errors
    /// Names the ranks that did not come.
    pub fn meet(&self, point: &str, members: &[usize], timeout: Duration) -> Result<(), String> {
        let complete = format!("{point}/all");
        let key_of = |rank: usize| format!("{point}/{rank}");
        self.set(&key_of(self.rank), &[])?;
        if self.add(&format!("{point}/count"), 1)? == members.len() as i64 {
            self.set(&complete, &[])?;
        }
        if self.get(&complete, timeout)?.is_some() {
            return Ok(());
        }
        let mut late = Vec::new();
        for rank in members {
            if self.get(&key_of(*rank), Duration::ZERO)?.is_none() {
                late.push(*rank);
            }
        }
        let seconds = timeout.as_secs_f64();
        Err(late_ranks(&late, members.len(), seconds))
    }

    /// Says that this rank has ended as it should.
    pub fn leave(&self) -> Result<(), String> {
        self.ask(&Request::Leave, Duration::ZERO)
    }
}

/// The reason why there is no connection.
enum Refusal {
    /// It may be there in a moment.
    NotYet(String),
    Final(String),
}

/// Takes part in the handshake.
fn greet(mut stream: TcpStream, address: &str, rank: usize) -> Result<TcpStream, Refusal> {
    let not_yet = |e: io::Error| Refusal::NotYet(e.to_string());
    let other = || {
        Refusal::Final(format!(
            "what answers at {address} is no store of Kiln: choose another port"
        ))
    };
    stream.set_nodelay(true).map_err(not_yet)?;
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .map_err(not_yet)?;
    let mut hello = [0; MAGIC.len() + NONCE];
    stream.read_exact(&mut hello).map_err(not_yet)?;
    let (magic, theirs) = hello.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(other());
    }
    let (secret, own) = (secret(), nonce().map_err(not_yet)?);
    let rank = (rank as u32).to_le_bytes();
    let proof = mac(&secret, &[b"client", theirs, &own, &rank]);
    let answer = [&rank[..], &own, &proof].concat();
    stream.write_all(&answer).map_err(not_yet)?;
    let mut proof = [0; MAC];
    let wrong = format!(
        "the store at {address} has another secret: KILN_STORE_SECRET has to be equal on all ranks"
    );
    stream
        .read_exact(&mut proof)
        .map_err(|_| Refusal::Final(wrong.clone()))?;
    match secret::is_equal(&proof, &mac(&secret, &[b"server", theirs, &own, &rank])) {
        true => Ok(stream),
        false => Err(Refusal::Final(wrong)),
    }
}

fn write(stream: &mut TcpStream, value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(value)?;
    let len = u32::try_from(text.len())
        .ok()
        .filter(|n| *n as usize <= MAX_BYTES);
    let len = len.ok_or_else(|| io::Error::other("a value of more than 1 MiB"))?;
    stream.write_all(&[&len.to_le_bytes()[..], &text].concat())
}

fn read<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<T> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_BYTES {
        return Err(io::Error::other("a value of more than 1 MiB"));
    }
    let mut text = vec![0; len];
    stream.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests;
