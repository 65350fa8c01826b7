//! The state of an optimiser in mixed-precision training.

use kiln_tensor::Tensor;

/// The flags of an optimiser in mixed-precision training.
#[derive(Default)]
pub(crate) struct AmpStatus {
    /// True if it was given to [`initialize`](crate::amp::initialize).
    pub(crate) initialized: bool,
    /// True if its gradients are scaled.
    pub(crate) scaled: bool,
    /// Where this is true, its next step changes nothing.
    pub(crate) skip: Option<Tensor>,
}
