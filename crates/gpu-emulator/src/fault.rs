//! The faults of kernels.

use std::fmt;

/// The kind of a [`Fault`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// An access outside every live allocation, shared memory or local memory.
    OutOfBounds,
    /// An address that is not a multiple of the access's size.
    Misaligned,
    /// A read of memory that was never written.
    Uninitialised,
    /// Two warps access the same shared memory, one of them writing, with no barrier between.
    SharedRace,
    /// Two blocks of a launch access the same global memory, one of them writing.
    GlobalRace,
    /// Data of an asynchronous copy or product that was not waited for.
    MissingWait,
    /// Registers, memory or an mbarrier that another unit uses without the fence that makes them visible to it.
    MissingFence,
    /// Threads that should act together do not arrive together.
    Divergence,
    /// No warp can continue.
    Deadlock,
    /// The kernel runs longer than allowed.
    Endless,
    /// `trap`, an assertion of the kernel's own.
    Trap,
    /// An instruction used against its rules.
    Misuse,
    /// A launch that hardware would refuse.
    Launch,
}

/// A fault of a kernel: its kind, its place in the code, and its thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The kind of the fault.
    pub kind: FaultKind,
    /// A description of the fault.
    pub message: String,
    /// The kernel.
    pub kernel: String,
    /// The block, where known.
    pub block: Option<[u32; 3]>,
    /// The thread in its block, where known.
    pub thread: Option<[u32; 3]>,
    /// The line of the PTX and its text.
    pub ptx: Option<(u32, String)>,
    /// File and line of the CUDA source, if the PTX has line information.
    pub source: Option<(String, u32)>,
}

impl Fault {
    /// A fault of the whole launch.
    pub(crate) fn of_kernel(kernel: &str, raised: Raised) -> Fault {
        Fault {
            kind: raised.kind,
            message: raised.message,
            kernel: kernel.to_string(),
            block: None,
            thread: None,
            ptx: None,
            source: None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "{:?} in kernel {}: {}",
            self.kind, self.kernel, self.message
        )?;
        if let Some([x, y, z]) = self.block {
            write!(f, "\n  block ({x}, {y}, {z})")?;
        }
        if let Some([x, y, z]) = self.thread {
            write!(f, ", thread ({x}, {y}, {z})")?;
        }
        if let Some((line, text)) = &self.ptx {
            write!(f, "\n  at PTX line {line}: {text}")?;
        }
        if let Some((file, line)) = &self.source {
            write!(f, "\n  from {file}:{line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// A fault before its place is added: kind, message and perhaps the lane.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Raised {
    pub kind: FaultKind,
    pub message: String,
    pub lane: Option<usize>,
}

impl Raised {
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Raised {
        Raised {
            kind,
            message: message.into(),
            lane: None,
        }
    }

    /// The same fault, of one lane.
    pub fn of_lane(mut self, lane: usize) -> Raised {
        self.lane = Some(lane);
        self
    }
}

/// The result of executing a piece of a kernel.
pub(crate) type Outcome<T> = Result<T, Raised>;
