//! The memory that operations touch, and the time that they take.

use super::{Call, Kind, RankCall};
use crate::clock::Costs;
use kiln_gpu_emulator::{Memory, Trail};
use std::fmt;

impl RankCall {
    /// The bytes of the operand of a collective operation that this rank reads.
    pub(super) fn operand_bytes(&self) -> usize {
        match &self.call {
            Call::Collective { kind, of, .. } => match kind {
                Kind::ReduceScatter(_) => of.bytes() * self.comm.ranks(),
                Kind::Broadcast(root) if *root != self.comm.rank => 0,
                _ => of.bytes(),
            },
            Call::Messages { sent, .. } => sent.iter().map(|m| m.of.bytes()).sum(),
        }
    }

    /// The memory that it touches.
    pub fn trail(&self, memory: &Memory) -> Trail {
        match &self.call {
            Call::Collective {
                kind,
                of,
                input,
                output,
            } => {
                let result_bytes = match kind {
                    Kind::AllGather => of.bytes() * self.comm.ranks(),
                    Kind::Reduce(_, root) if *root != self.comm.rank => 0,
                    _ => of.bytes(),
                };
                Trail::of(
                    memory,
                    &[(*input, self.operand_bytes())],
                    &[(*output, result_bytes)],
                )
            }
            Call::Messages { sent, received } => {
                let [sent, received] = [sent, received].map(|messages| {
                    let ranges = messages.iter().map(|m| (m.at, m.of.bytes()));
                    ranges.collect::<Vec<_>>()
                });
                Trail::of(memory, &sent, &received)
            }
        }
    }

    /// The time that it takes: a launch, and the bytes that a rank of a ring sends.
    pub fn cost(&self, costs: Costs) -> f64 {
        let n = self.comm.ranks() as f64;
        let rounds = match &self.call {
            Call::Collective { kind, .. } => match kind {
                Kind::AllReduce(_) => 2.0 * (n - 1.0) / n,
                Kind::ReduceScatter(_) => (n - 1.0) / n,
                Kind::AllGather => n - 1.0,
                Kind::Reduce(..) | Kind::Broadcast(_) => 1.0,
            },
            Call::Messages { .. } => 1.0,
        };
        let bytes = match &self.call {
            Call::Collective {
                kind: Kind::Broadcast(_),
                of,
                ..
            } => of.bytes(),
            _ => self.operand_bytes(),
        };
        costs.launch + costs.byte * rounds * bytes as f64
    }
}

impl fmt::Display for RankCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.call {
            Call::Collective { kind, of, .. } => write!(f, "{kind} of {of}"),
            Call::Messages { sent, received } => {
                write!(
                    f,
                    "nccl messages: {} sent, {} received",
                    sent.len(),
                    received.len()
                )
            }
        }
    }
}
