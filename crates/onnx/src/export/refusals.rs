//! Errors for what is not exported.

use kiln_ir::OpError;

/// The error for what has no counterpart.
pub(super) fn no_counterpart<T>(what: &str) -> Result<T, OpError> {
    Err(OpError(format!("ONNX has no counterpart of {what}")))
}

/// The error for what a later version has.
pub(super) fn needs_opset<T>(what: &str, opset: i64) -> Result<T, OpError> {
    Err(OpError(format!("{what} needs opset {opset}")))
}
