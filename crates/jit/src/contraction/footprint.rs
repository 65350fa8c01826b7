//! The memory that register tiles access.

/// The bytes around the addresses of a call that a kernel accesses.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Footprint {
    pub left: [i64; 2],
    pub right: [i64; 2],
    pub out: [i64; 2],
    /// The range of rows of the result, and its columns.
    pub rows: [i64; 2],
    pub columns: i64,
    /// The stride of tiles of a call, in bytes of the left operand and of the result, and in rows.
    pub strip: [i64; 3],
    /// The length of the list of taps, if it is read.
    pub taps: usize,
    /// For tiles whose left operand is a list of lines: the bytes of a line's weights, and those of a line of padding.
    pub weights: Option<[[i64; 2]; 2]>,
}

/// Returns the range that several tiles with this stride access: the empty one if that of one tile is empty.
#[inline(always)]
pub(super) fn strip([min, max]: [i64; 2], stride: i64, tiles: i64) -> [i64; 2] {
    if min >= max {
        return [0; 2];
    }
    let last = (tiles - 1) * stride;
    [min + last.min(0), max + last.max(0)]
}
