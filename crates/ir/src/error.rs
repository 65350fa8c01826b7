//! The error of an op that does not apply.

/// The reason that an op does not apply to its operands. The text names the problem; the layer that shows it adds the
/// op, the operands and the user's source line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OpError(pub String);

impl OpError {
    /// An error from anything printable.
    pub fn new(text: impl Into<String>) -> OpError {
        OpError(text.into())
    }
}

/// Returns early with an [`OpError`] built from a format string unless a condition holds.
#[macro_export]
macro_rules! ensure {
    ($cond:expr, $($message:tt)*) => {
        if !$cond {
            return Err($crate::OpError(format!($($message)*)));
        }
    };
}
