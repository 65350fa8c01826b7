//! Packed weights that are kept.

use kiln_kernel::memory::Storage;
use std::sync::{Arc, Weak};

/// The packed weights of a program.
#[derive(Clone, Debug)]
pub struct Packed {
    /// What they are packed for: the plan, the level, and how each kernel is cut. Runs take packed weights if this is
    /// what they would say of their own.
    pub layout: String,
    /// The weights, each from a multiple of [`ALIGN`](kiln_kernel::memory::ALIGN) on.
    pub bytes: Arc<Storage>,
}

/// Packed weights that were made of these parameters' contents.
pub(super) struct Stored {
    pub(super) contents: Vec<Weak<u64>>,
    pub(super) packed: Packed,
}
