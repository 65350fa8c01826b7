//! Bulk copies from shared memory that a warp has begun.

use crate::lanes::LANES;

/// The bulk copies of a warp to global memory whose sources are not known to have been read.
#[derive(Default)]
pub(crate) struct Stores {
    pub pending: Vec<Store>,
    /// The open group of each lane.
    pub groups: [u32; LANES],
}

/// A bulk copy of a lane from `len` bytes of shared memory.
pub(crate) struct Store {
    pub lane: usize,
    pub group: u32,
    pub from: usize,
    pub len: usize,
}

impl Stores {
    /// A lane with stores that were never waited for.
    pub fn unfinished(&self) -> Option<usize> {
        self.pending.first().map(|s| s.lane)
    }
}
