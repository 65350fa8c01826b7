//! Figures of host or GPU memory.

/// The bytes of all storages.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// The bytes in use.
    pub allocated: usize,
    /// The peak number of bytes in use, since [`reset_peak`](crate::memory::reset_peak) if it was called.
    pub peak: usize,
    /// The bytes taken from the system: in use or kept for reuse.
    pub reserved: usize,
    /// The limit on `allocated`, if one is set.
    pub limit: Option<usize>,
}
