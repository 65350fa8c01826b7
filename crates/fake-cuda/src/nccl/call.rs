//! The calls of ranks.

use super::{Comm, INVALID_ARGUMENT};
use crate::status::{Failure, failure};
use std::fmt;

/// Elements of a dtype.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elements {
    pub count: usize,
    /// `ncclDataType_t`
    pub dtype: usize,
}

/// The names of dtypes, and the bytes of an element.
const DTYPES: [(&str, usize); 12] = [
    ("int8", 1),
    ("uint8", 1),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("float16", 2),
    ("float32", 4),
    ("float64", 8),
    ("bfloat16", 2),
    ("float8e4m3", 1),
    ("float8e5m2", 1),
];

const OPS: [&str; 5] = ["sum", "prod", "max", "min", "avg"];

impl Elements {
    pub fn new(count: usize, dtype: i32) -> Result<Elements, Failure> {
        match usize::try_from(dtype).ok().filter(|d| *d < DTYPES.len()) {
            Some(dtype) => Ok(Elements { count, dtype }),
            None => Err(failure(INVALID_ARGUMENT, format!("dtype {dtype}"))),
        }
    }

    pub fn bytes(self) -> usize {
        self.count * DTYPES[self.dtype].1
    }
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, DTYPES[self.dtype].0)
    }
}

/// A collective operation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce(usize),
    Reduce(usize, usize),
    Broadcast(usize),
    AllGather,
    ReduceScatter(usize),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Kind::AllReduce(op) => write!(f, "ncclAllReduce({})", OPS[op]),
            Kind::Reduce(op, root) => write!(f, "ncclReduce({}, root {root})", OPS[op]),
            Kind::Broadcast(root) => write!(f, "ncclBroadcast(root {root})"),
            Kind::AllGather => f.write_str("ncclAllGather"),
            Kind::ReduceScatter(op) => write!(f, "ncclReduceScatter({})", OPS[op]),
        }
    }
}

/// Returns a reduction's number.
pub(crate) fn op(op: i32) -> Result<usize, Failure> {
    let known = usize::try_from(op).ok().filter(|op| *op < OPS.len());
    known.ok_or_else(|| failure(INVALID_ARGUMENT, format!("reduction {op}")))
}

/// A message to or from a rank.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Message {
    pub peer: usize,
    pub at: u64,
    pub of: Elements,
}

/// A rank's part in an operation.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Collective {
        kind: Kind,
        /// The elements that the call counts: the operand's, or the result's of a reduce-scatter.
        of: Elements,
        input: u64,
        output: u64,
    },
    /// Messages that are exchanged together.
    Messages {
        sent: Vec<Message>,
        received: Vec<Message>,
    },
}

/// An item of a stream.
#[derive(Clone, Debug)]
pub(crate) struct RankCall {
    pub comm: Comm,
    pub call: Call,
    /// The number of the captured call, unless it is made for a stream.
    pub captured: Option<usize>,
}
