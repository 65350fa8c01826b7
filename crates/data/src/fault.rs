//! How errors of this crate are made.

use kiln_tensor::{Error, ErrorKind};
use std::panic::Location;

/// An argument that doesn't fit.
pub(crate) fn invalid(
    op: &str,
    message: impl Into<String>,
    loc: &'static Location<'static>,
) -> Error {
    Error::new(ErrorKind::Value, op, message, loc)
}
