//! The faults of code.

use std::fmt;

/// The kind of a [`Fault`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Bytes that are not an instruction, or an instruction that is not interpreted.
    Unknown,
    /// An access outside the memory that the code was given.
    OutOfBounds,
    /// A write to memory that may only be read.
    ReadOnly,
    /// An address that is not a multiple of the alignment that the instruction needs.
    Misaligned,
    /// Execution outside the code: of constants, or of the gap before them.
    NotCode,
    /// The code runs longer than allowed.
    Endless,
    /// The stack pointer or a callee-saved register differs on return, or tiles are in use then.
    NotKept,
    /// Tiles that are not configured, or whose sizes do not fit each other.
    Tiles,
    /// A condition on a flag that has no defined value.
    UndefinedFlag,
}

/// A fault of code: its kind and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of the fault.
    pub kind: FaultKind,
    /// A description of the fault.
    pub message: String,
    /// The offset of the instruction in the code, in bytes.
    pub offset: usize,
    /// The instruction.
    pub instruction: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Fault {
            kind,
            message,
            offset,
            instruction,
        } = self;
        write!(f, "{kind:?} at {offset:04x} `{instruction}`: {message}")
    }
}

impl std::error::Error for Fault {}

/// A fault before the place is added.
#[derive(Clone, Debug)]
pub(crate) struct Raised {
    pub kind: FaultKind,
    pub message: String,
}

/// The result of executing an instruction.
pub(crate) type Outcome<T> = Result<T, Raised>;

/// A fault as an outcome.
pub(crate) fn raise<T>(kind: FaultKind, message: impl Into<String>) -> Outcome<T> {
    let message = message.into();
    Err(Raised { kind, message })
}
