//! What can be wrong with code.

use std::fmt;

/// The kind of a [`Fault`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Bytes that are no instruction, or one that is not interpreted.
    Unknown,
    /// An access outside the memory that the code was given.
    OutOfBounds,
    /// A write to memory that may only be read.
    ReadOnly,
    /// An address that is not a multiple of what the instruction needs.
    Misaligned,
    /// Execution of what is no code: constants, or what fills the gap before them.
    NotCode,
    /// The code runs longer than allowed.
    Endless,
    /// The stack pointer or a register that a function must keep has another value on return, or tiles are in use then.
    NotKept,
    /// Tiles that are not configured, or not so that they fit each other.
    Tiles,
    /// A decision by a flag that has no defined value.
    UndefinedFlag,
}

/// A fault of code: what and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What kind of fault.
    pub kind: FaultKind,
    /// What happened.
    pub message: String,
    /// Bytes of code before the instruction.
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

impl Raised {
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Raised {
        Raised {
            kind,
            message: message.into(),
        }
    }
}

/// The result of executing an instruction.
pub(crate) type Outcome<T> = Result<T, Raised>;
