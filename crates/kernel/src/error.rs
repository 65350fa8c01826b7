//! Errors of loading and running plans.

use kiln_base::{DType, LevelError};
use kiln_plan::SiteKind;

/// An error of loading a plan, or of a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plan contradicts itself; nothing of it was run.
    #[error("the plan is damaged: {0}")]
    Plan(String),
    /// The wrong number of inputs.
    #[error("the plan takes {expected} inputs, found {found}")]
    InputCount {
        /// The number that the plan takes.
        expected: usize,
        /// The number that the caller gave.
        found: usize,
    },
    /// An input of another dtype.
    #[error("input {input}: expected dtype {expected}, found {found}")]
    InputDType {
        /// The number of the input.
        input: usize,
        /// The dtype that the plan takes.
        expected: DType,
        /// The dtype that the caller gave.
        found: DType,
    },
    /// An input of another shape.
    #[error("input {input}: expected shape [{expected}], found {found:?}")]
    InputShape {
        /// The number of the input.
        input: usize,
        /// The shape that the plan takes, with symbols by name.
        expected: String,
        /// The shape that the caller gave.
        found: Vec<i64>,
    },
    /// A symbolic size below the minimum of the plan.
    #[error("input {input}: size `{name}` is {value}, the plan needs at least {min}")]
    Symbol {
        /// The number of the input.
        input: usize,
        /// The symbol.
        name: String,
        /// Its value.
        value: i64,
        /// The smallest legal value.
        min: i64,
    },
    /// An operation does not apply to tensors of these sizes.
    #[error("{op} needs {size} to be at least 0, and it is {value} for {symbols}")]
    Size {
        /// The op, such as `conv`.
        op: String,
        /// The graph node.
        node: u32,
        /// The expression of sizes, with symbols by name.
        size: String,
        /// Its value.
        value: i64,
        /// The values of the symbols.
        symbols: String,
    },
    /// The data made an operation undefined. Nothing that was donated has been touched.
    #[error("{}", data_error(op, *kind, *index, *bound))]
    Data {
        /// Index into the plan's sites.
        site: u32,
        /// The op, such as `gather`.
        op: String,
        /// The kind of error.
        kind: SiteKind,
        /// The graph node.
        node: u32,
        /// The offending index (the dividend for a division by zero).
        index: i64,
        /// The exclusive upper bound of the index (0 for a division by zero).
        bound: i64,
    },
    /// The kernel of a custom op failed. Nothing that was donated has been touched.
    #[error("{op}: {text}")]
    Custom {
        /// The op's name.
        op: String,
        /// The error message of the kernel.
        text: String,
        /// The graph node.
        node: u32,
    },
    /// The plan calls a custom op that this program has not registered.
    #[error("{0}")]
    NotRegistered(String),
    /// There is no memory, or none within the limit.
    #[error("out of memory: {requested} bytes requested, {allocated} in use, limit {}{}",
        limit.map_or("none".to_string(), |l| format!("{l} bytes")), largest(holders))]
    OutOfMemory {
        /// The bytes requested.
        requested: usize,
        /// The bytes in use.
        allocated: usize,
        /// The limit, if one is set.
        limit: Option<usize>,
        /// The largest holders with their bytes, where known.
        holders: Vec<(String, usize)>,
    },
    /// A CPU level that does not exist or that this machine lacks.
    #[error(transparent)]
    Level(#[from] LevelError),
    /// A buffer was made or read with the wrong dtype or size.
    #[error("{0}")]
    Buffer(String),
    /// This process was forked from one in which other threads computed; see [`crate::fork`].
    #[error(
        "this process was forked from one in which other threads had computed too, and what these held is \
         lost: fork before they begin or once they have ended, or start a program instead"
    )]
    Forked,
    /// CUDA is not available, or something in it failed.
    #[error("{0}")]
    Cuda(String),
    /// The run was ended by its [`Cancel`](crate::cancel::Cancel). Nothing that was donated has been touched.
    #[error("the run was cancelled")]
    Cancelled,
    /// A bug in the runtime; please report it.
    #[error("internal error of the runtime: {0}")]
    Internal(String),
}

fn largest(holders: &[(String, usize)]) -> String {
    let holder = |(holder_name, bytes): &(String, usize)| format!("{bytes} by {holder_name}");
    match holders {
        [] => String::new(),
        holders => {
            let list: Vec<String> = holders.iter().map(holder).collect();
            format!("; most is held: {}", list.join(", "))
        }
    }
}

fn data_error(op: &str, kind: SiteKind, index: i64, bound: i64) -> String {
    match kind {
        SiteKind::IndexOutOfRange => format!("{op}: index {index} is outside 0..{bound}"),
        SiteKind::DivisionByZero => format!("{op}: integer division of {index} by zero"),
        SiteKind::Custom => format!("{op}: its kernel failed"),
    }
}

/// Shorthand for a result with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An [`Error::Plan`] from format arguments.
#[macro_export]
macro_rules! damaged {
    ($($arg:tt)*) => { $crate::error::Error::Plan(format!($($arg)*)) };
}
pub use crate::damaged;
