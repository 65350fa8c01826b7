//! How errors of this crate are made.

use kiln_tensor::{Error, ErrorKind};
use std::fmt::Display;
use std::panic::Location;
use std::path::Path;

/// The folder of this crate's source, whose lines are not the user's.
pub(crate) const SOURCE: &str = {
    let this = file!();
    this.split_at(this.len() - "fault.rs".len()).0
};

/// An argument or content that doesn't fit, at the user's line.
#[track_caller]
pub(crate) fn invalid(op: &str, message: impl Into<String>) -> Error {
    Error::invalid(op, message)
}

/// A file that can't be read or written, at the caller's line.
#[track_caller]
pub(crate) fn io(op: &str, path: &Path, e: impl Display) -> Error {
    let message = format!("{}: {e}", path.display());
    Error::new(ErrorKind::Io, op, message, Location::caller())
}
