//! Mixed precision, as an optimiser knows of it.

use kiln_tensor::Tensor;

/// What an optimiser knows of a training in mixed precision.
#[derive(Default)]
pub(crate) struct Mark {
    /// Whether it was given to [`initialize`](crate::amp::initialize).
    pub(crate) initialized: bool,
    /// Whether its gradients are scaled.
    pub(crate) scaled: bool,
    /// Where this is true, its next step changes nothing.
    pub(crate) skip: Option<Tensor>,
}
