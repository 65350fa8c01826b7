//! Constructors of this crate's errors.

use kiln_tensor::{Error, ErrorKind};
use std::panic::Location;

/// The folder of this crate's source, whose lines are not the user's.
pub(crate) const SOURCE: &str = {
    let this = file!();
    this.split_at(this.len() - "fault.rs".len()).0
};

/// An error for an argument that doesn't fit.
pub(crate) fn invalid(
    op: &str,
    message: impl Into<String>,
    loc: &'static Location<'static>,
) -> Error {
    Error::new(ErrorKind::Value, op, message, loc)
}
