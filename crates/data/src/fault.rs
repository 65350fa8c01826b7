//! Constructors of this crate's errors.

use kiln_tensor::{Error, ErrorKind};
use std::panic::Location;

/// An error for an argument that doesn't fit.
pub(crate) fn invalid(
    op: &str,
    message: impl Into<String>,
    loc: &'static Location<'static>,
) -> Error {
    Error::new(ErrorKind::Value, op, message, loc)
}
