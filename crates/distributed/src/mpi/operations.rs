//! The operations of groups, made of messages and requests.

use super::engine::{Engine, Group, Pending};
use super::library::Handle;
use crate::signature;
use kiln_base::DType;
use kiln_base::collective::{Kind, Reducer};
use std::ffi::c_int;

/// The tags of messages.
const CALLS: c_int = 1;
const MESSAGES: c_int = 2;

impl Engine {
    /// Takes part in an operation; returns its result, which has this number of bytes.
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
        self.check_usable()?;
        let call = signature::describe(kind, dtype, input.len(), len);
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
    pub(super) fn agree(&mut self, group: usize, call: &str) -> Result<(), String> {
        let Group { comm, rank, ranks } = self.groups[group];
        let peers: Vec<usize> = (0..ranks).filter(|r| *r != rank).collect();
        let mut pending = Pending::default();
        for other in &peers {
            let mut theirs = vec![0u8; signature::MAX_BYTES];
            let request = self.start_receive(comm, &mut theirs, *other, CALLS)?;
            pending.add(request, *other);
            pending.memory.push(theirs);
        }
        pending.memory.push(pad_description(call));
        for other in &peers {
            let own_memory = &pending.memory[peers.len()];
            let request = self.start_send(comm, own_memory, *other, CALLS)?;
            pending.add(request, *other);
        }
        self.wait(&mut pending)?;
        let late: Vec<usize> = (pending.undone())
            .filter_map(|i| peers.get(i).copied())
            .collect();
        if !late.is_empty() {
            let text = signature::missing(call, &late, ranks, self.timeout.as_secs_f64());
            return Err(self.mark_broken(text));
        }
        // Short messages that were not taken yet go on in the background.
        let mut descriptions: Vec<String> = vec![call.into(); ranks];
        for (other, theirs) in peers.iter().zip(&pending.memory) {
            descriptions[*other] = text(theirs);
        }
        if !pending.is_done() {
            self.sent.push(pending);
        }
        signature::check_agreement(rank, &descriptions)
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
        let is_empty = input.is_empty() && len == 0;
        if is_empty || matches!(kind, Kind::Barrier) {
            return Ok(input);
        }
        let mut pending = self.start_collective(group, kind, dtype, call, input, len)?;
        self.wait(&mut pending)?;
        if !pending.is_done() {
            let seconds = self.timeout.as_secs_f64();
            let text = format!("{call}: a rank was lost, since it did not end within {seconds} s");
            return Err(self.mark_broken(text));
        }
        let output = pending.memory.swap_remove(0);
        let Group { rank, ranks, .. } = self.groups[group];
        let is_elsewhere = matches!(kind, Kind::Reduce(_, root) if root as usize != rank);
        Ok(match kind.reducer() {
            Some(Reducer::Mean) if !is_elsewhere => divide(dtype, &output, ranks),
            _ => output,
        })
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
        pending.memory.extend([pad_description(call), message]);
        for step in 0..2 {
            let request = self.start_send(comm, &pending.memory[step], to, MESSAGES)?;
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
        let theirs = self.message(comm, from, call, ranks, signature::MAX_BYTES)?;
        let theirs = text(&theirs);
        if theirs != call {
            let text = format!("rank {from} sends another value than {call}: {theirs}");
            return Err(self.mark_broken(text));
        }
        self.message(comm, from, call, ranks, len)
    }

    /// Waits for a message of `len` bytes.
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
            return Err(self.mark_broken(text));
        }
        Ok(pending.memory.swap_remove(0))
    }
}

/// A description with room for any other.
fn pad_description(call: &str) -> Vec<u8> {
    let mut bytes = call.as_bytes().to_vec();
    bytes.resize(signature::MAX_BYTES, 0);
    bytes
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Sums divided by the number of ranks.
fn divide(dtype: DType, bytes: &[u8], ranks: usize) -> Vec<u8> {
    let means: Vec<f64> = dtype
        .floats(bytes)
        .iter()
        .map(|x| x / ranks as f64)
        .collect();
    dtype.float_bytes(&means)
}
