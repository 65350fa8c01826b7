//! The memory that a run needs.

/// Bytes that a run needs, known before it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// The arena of one run.
    pub peak: usize,
    /// The maximum number of bytes of temporaries that are alive at one step.
    pub lower_bound: usize,
    /// The memory of *prepare* while it runs: its arena, and weights that it computes and then packs.
    pub prepare_peak: usize,
    /// Results of *prepare* that runs use.
    pub prepared: usize,
    /// Outputs, without those in donated memory or passed through.
    pub outputs: usize,
    /// Constants of the plan.
    pub constants: usize,
    /// The part of these bytes that begins as zeros since it is not known that all of it is written.
    pub cleared: usize,
}

/// A part of the arena and the steps that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    /// The first buffer of the plan that it holds; `None` for scratch memory of a step.
    pub buffer: Option<u32>,
    /// Its start in the arena, in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub bytes: usize,
    /// The first step that uses it; concurrent steps count as one.
    pub first: usize,
    /// The last step that uses it.
    pub last: usize,
}
