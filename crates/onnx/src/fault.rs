//! Errors.

use kiln_tensor::{Error, ErrorKind, on_behalf_of_caller};

/// The folder of this crate's source.
const SOURCE: &str = {
    let this = file!();
    this.split_at(this.len() - "fault.rs".len()).0
};

/// Runs what a public function does: its errors, and those of the operations that it records, are at the caller's line.
#[track_caller]
pub(crate) fn for_caller<T>(f: impl FnOnce() -> T) -> T {
    on_behalf_of_caller(SOURCE, f)
}

/// Returns an error about a model or its inputs.
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::invalid("onnx", message)
}

/// Returns an error about what Kiln can't run.
pub(crate) fn unsupported(message: impl Into<String>) -> Error {
    Error::at_caller(ErrorKind::Unsupported, "onnx", message)
}
