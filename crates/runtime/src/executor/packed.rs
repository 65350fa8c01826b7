//! Packed weights that are kept.

use kiln_kernel::memory::Storage;
use std::sync::{Arc, Weak};

/// The packed weights of a program.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The description of the layout: the plan, the level, and each kernel's schedule. Runs take packed weights if
    /// this equals their own description.
    pub layout: String,
    /// The weights, each aligned to [`ALIGN`](kiln_kernel::memory::ALIGN).
    pub bytes: Arc<Storage>,
}

/// Packed weights and the contents of the parameters that they were computed from.
pub(super) struct Stored {
    pub(super) contents: Vec<Weak<u64>>,
    pub(super) packed: Packed,
}
