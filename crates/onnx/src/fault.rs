//! Errors.

use kiln_tensor::{Error, ErrorKind};

/// Returns an error about a model or its inputs.
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::invalid("onnx", message)
}

/// Returns an error about what Kiln can't run.
pub(crate) fn unsupported(message: impl Into<String>) -> Error {
    Error::at_caller(ErrorKind::Unsupported, "onnx", message)
}
