//! The registers of AMX.

/// The maximum number of rows of a tile.
pub(crate) const ROWS: usize = 16;
/// The maximum number of bytes of a row.
pub(crate) const BYTES: usize = 64;

/// A configured tile.
#[derive(Copy, Clone)]
pub(crate) struct Tile {
    pub rows: usize,
    pub bytes: usize,
    pub words: [[u32; BYTES / 4]; ROWS],
}
