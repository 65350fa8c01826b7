//! Elements that excluded loads give.

/// A cache line.
#[derive(Copy, Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub [u8; 64]);

/// What excluded loads give, as memory has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fills {
    pub(super) lines: Vec<Line>,
    /// Lanes that may read it.
    pub(super) lanes: i64,
    /// Whether a run along the innermost axis is excluded as a whole or not at all.
    pub(super) whole: bool,
}
