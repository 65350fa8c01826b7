//! Figures of memory, of the host or of a GPU.

/// Bytes of all storages.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// In use.
    pub allocated: usize,
    /// The most that were ever in use, or since [`reset_peak`](crate::memory::reset_peak).
    pub peak: usize,
    /// Taken from the system: in use or kept for reuse.
    pub reserved: usize,
    /// The limit on `allocated`, where one is set.
    pub limit: Option<usize>,
}
