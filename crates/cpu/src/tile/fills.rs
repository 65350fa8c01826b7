//! The values that loads give outside their limits.

/// A cache line.
#[derive(Copy, Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub [u8; 64]);

/// The fill value of a load, repeated in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fills {
    pub(super) lines: Vec<Line>,
    /// The number of lanes that may read it at once.
    pub(super) lanes: i64,
    /// True if a run along the innermost axis is excluded as a whole or not at all.
    pub(super) uniform: bool,
}
