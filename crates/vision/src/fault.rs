//! How errors of this crate are made.

use kiln_tensor::{Error, ErrorKind};
use std::fmt::Display;
use std::panic::Location;
use std::path::Path;

/// An argument or content that doesn't fit, at the caller's line.
#[track_caller]
pub(crate) fn invalid(op: &str, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Value, op, message, Location::caller())
}

/// A file that can't be read or written, at the caller's line.
#[track_caller]
pub(crate) fn io(op: &str, path: &Path, e: impl Display) -> Error {
    let message = format!("{}: {e}", path.display());
    Error::new(ErrorKind::Io, op, message, Location::caller())
}
