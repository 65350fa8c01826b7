//! The memory that register tiles access.

/// The bytes around the addresses of a call that a kernel accesses.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Footprint {
    pub left: [i64; 2],
    pub right: [i64; 2],
    pub out: [i64; 2],
    /// The rows of the result, and its columns.
    pub rows: [i64; 2],
    pub columns: i64,
    /// The distance of two tiles of a call, in bytes of the left operand and of the result, and in rows.
    pub strip: [i64; 3],
    /// The length of the list of taps, if it is read.
    pub taps: usize,
    /// For tiles whose left operand is a list of lines: the bytes of a line's weights, and those of a line of padding.
    pub weights: Option<[[i64; 2]; 2]>,
}

/// Returns what several tiles reach, `apart` apart; nothing if one reaches nothing, as where there are no taps.
#[inline(always)]
pub(super) fn strip([low, high]: [i64; 2], apart: i64, tiles: i64) -> [i64; 2] {
    if low >= high {
        return [0; 2];
    }
    let far = (tiles - 1) * apart;
    [low + far.min(0), high + far.max(0)]
}
