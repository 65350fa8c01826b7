//! The locations of buffers.

/// The location of a buffer during a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Loc {
    Input(usize),
    /// Index into the slots of the bound plan.
    Slot(usize),
    Constant(usize),
    Prepared(usize),
    /// Byte offset in the arena.
    Arena(usize),
}
