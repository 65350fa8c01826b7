//! Constructors of this crate's errors.

use kiln_base::Loc;
use kiln_tensor::{Error, ErrorKind};
use std::io;
use std::panic::Location;
use std::path::Path;

/// The folder of this crate's source, whose lines are not the user's.
pub(crate) const SOURCE: &str = {
    let this = file!();
    this.split_at(this.len() - "fault.rs".len()).0
};

/// An error for an argument or content that doesn't fit, at the user's line. If the caller is a data set of this
/// crate, the error has no line, and a loader adds its own.
#[track_caller]
pub(crate) fn invalid(op: &str, message: impl Into<String>) -> Error {
    let e = Error::invalid(op, message);
    match e.loc().to_string().starts_with(SOURCE) {
        true => Error::new(e.kind(), op, e.message(), Loc::UNKNOWN),
        false => e,
    }
}

/// An error for a file that can't be read or written, at the caller's line, or as [`invalid`] for one whose content is
/// wrong.
#[track_caller]
pub(crate) fn io(op: &str, path: &Path, e: io::Error) -> Error {
    read_error(op, format!("{}: {e}", path.display()), e.kind())
}

/// An error of reading, with this message.
#[track_caller]
pub(crate) fn read_error(op: &str, message: String, kind: io::ErrorKind) -> Error {
    use io::ErrorKind::{InvalidData, InvalidInput, OutOfMemory, UnexpectedEof};
    let kind = match kind {
        InvalidData | InvalidInput | UnexpectedEof => return invalid(op, message),
        OutOfMemory => ErrorKind::Memory,
        _ => ErrorKind::Io,
    };
    Error::new(kind, op, message, Location::caller())
}

/// The error of reading wrong content.
pub(crate) fn damaged(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

/// An error for a request that Kiln does not support, at the caller's line.
#[track_caller]
pub(crate) fn unsupported(op: &str, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, op, message, Location::caller())
}

/// An index beyond the samples of a dataset.
#[track_caller]
pub(crate) fn out_of_range(set: &str, index: usize, len: usize) -> Error {
    let message = format!("the index {index} is out of range for {len} samples");
    invalid(set, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_this_crate_are_nobodys() {
        assert_eq!(*invalid("crop", "too large").loc(), Loc::UNKNOWN);
    }
}
