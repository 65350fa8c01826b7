//! The work that streams and graphs execute.

use crate::cublaslt::Product;
use crate::graph::{GraphRun, Nodes};
use crate::nccl::RankCall;
use crate::status::{ILLEGAL_ADDRESS, LAUNCH_FAILED, LAUNCH_TIMEOUT, MISALIGNED_ADDRESS, Status};
use kiln_gpu_emulator::{Fault, FaultKind, Kernel, Program};
use std::sync::Arc;

/// A kernel with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct KernelNode {
    pub kernel: Arc<Kernel>,
    /// Keeps the global variables alive.
    pub _program: Arc<Program>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub parameters: Vec<u8>,
}

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum CopyEnd {
    Device(u64),
    Host(usize),
    /// The contents of pageable memory when the copy was submitted.
    Bytes(Arc<[u8]>),
}

/// An operation that a stream or a graph may hold.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Kernel(KernelNode),
    Copy {
        to: CopyEnd,
        from: CopyEnd,
        len: usize,
    },
    Fill {
        to: u64,
        value: u8,
        count: usize,
    },
    /// A rank's part in an operation of NCCL.
    Nccl(RankCall),
    /// A graph within a graph.
    Graph(Nodes),
    /// A product of cuBLASLt.
    Product(Box<Product>),
}

/// An item of a stream's queue.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Node(Node),
    Graph(Arc<GraphRun>),
    Free(u64),
    /// An event and the number of its recording.
    Record(usize, u64),
    Wait(usize, u64),
}

/// A fault: the status that the driver reports, and a description.
pub(crate) struct Broken {
    pub status: Status,
    pub text: String,
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Broken {
        let status = match fault.kind {
            FaultKind::OutOfBounds => ILLEGAL_ADDRESS,
            FaultKind::Misaligned => MISALIGNED_ADDRESS,
            FaultKind::Endless | FaultKind::Deadlock => LAUNCH_TIMEOUT,
            _ => LAUNCH_FAILED,
        };
        Broken {
            status,
            text: fault.to_string(),
        }
    }
}

pub(crate) fn illegal(text: impl ToString) -> Broken {
    Broken {
        status: ILLEGAL_ADDRESS,
        text: text.to_string(),
    }
}
