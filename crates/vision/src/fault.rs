//! How errors of this crate are made.

use kiln_base::Loc;
use kiln_tensor::{Error, ErrorKind};
use std::fmt::Display;
use std::panic::Location;
use std::path::Path;

/// The folder of this crate's source, whose lines are not the user's.
pub(crate) const SOURCE: &str = {
    let this = file!();
    this.split_at(this.len() - "fault.rs".len()).0
};

/// An argument or content that doesn't fit, at the user's line. Where a data set of this crate called, there is none,
/// and a loader puts its own.
#[track_caller]
pub(crate) fn invalid(op: &str, message: impl Into<String>) -> Error {
    let e = Error::invalid(op, message);
    match e.loc().to_string().starts_with(SOURCE) {
        true => Error::new(e.kind(), op, e.message(), Loc::UNKNOWN),
        false => e,
    }
}

/// A file that can't be read or written, at the caller's line.
#[track_caller]
pub(crate) fn io(op: &str, path: &Path, e: impl Display) -> Error {
    let message = format!("{}: {e}", path.display());
    Error::new(ErrorKind::Io, op, message, Location::caller())
}

/// What Kiln does not do, at the caller's line.
#[track_caller]
pub(crate) fn unsupported(op: &str, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, op, message, Location::caller())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_this_crate_are_nobodys() {
        assert_eq!(*invalid("crop", "too large").loc(), Loc::UNKNOWN);
    }
}
