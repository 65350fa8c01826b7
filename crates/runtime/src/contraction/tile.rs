//! Register tiles of a contraction: some rows by some vectors of columns, summed over steps.
//!
//! `out[r, j] = Σ_t Σ_s a[t, r, s] · b[t, s, j]`: elements of the left operand are spread over vectors one by one,
//! vectors of the right one are read side by side, and all sums of a tile stay in registers. An element is summed in
//! order, whatever the tile.

use super::finish::Finish;
use crate::tile::affine::ceil;
use kiln_base::{DType, Level};
use std::sync::Arc;

/// A register tile, for known sizes. All distances are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub level: Level,
    /// F32 or F64.
    pub dtype: DType,
    pub rows: u8,
    /// Columns; what the last vector has beyond them is neither read nor written.
    pub columns: u16,
    pub left: Left,
    /// The distance of two steps of the right operand; taps follow each other.
    pub right: i64,
    /// Whether the right operand holds whole vectors, whatever the columns.
    pub padded: bool,
    /// How far behind what is read of the right operand the caches are asked for more of it, for later tiles; 0 for
    /// nothing.
    pub ahead: i64,
    /// Steps of a tap, and taps.
    pub steps: u32,
    pub taps: u32,
    /// The distance of two rows of the result.
    pub out: i64,
    /// Whether sums are added to what the result holds.
    pub adds: bool,
    /// What is done with them, which then writes results of its own.
    pub finish: Option<Arc<Finish>>,
}

/// Where the rows of the left operand lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// A matrix: the distances of two rows and of two steps. There is one tap.
    Matrix { row: i64, step: i64 },
    /// At addresses that a list has, one a tap and row; steps lie side by side.
    Listed,
}

/// What a tile's function is called with.
#[repr(C)]
pub(crate) struct Call {
    /// The first row of the left operand, or the list of its rows.
    pub left: *const u8,
    pub right: *const u8,
    pub out: *mut u8,
    /// For each access of what is done with the sums where it lies for the first of them.
    pub finish: *const *mut u8,
}

/// The most rows of a tile whose rows are listed: their addresses are in general registers.
const LISTED_ROWS: u8 = 12;
/// Lanes of a vector.
pub(crate) fn lanes(level: Level, dtype: DType) -> u16 {
    let bytes = match level {
        Level::Avx512 => 64,
        _ => 32,
    };
    bytes / dtype.size() as u16
}

/// The rows of a tile of so many vectors, at most: sums, a vector of each column and what they are multiplied with are
/// in registers, and with VEX the mask of the last vector.
pub(crate) fn most_rows(level: Level, vectors: u8, listed: bool) -> u8 {
    let registers: u8 = if level == Level::Avx512 { 32 } else { 15 };
    let rows = (registers - vectors - 1) / vectors;
    match listed {
        true => rows.min(LISTED_ROWS),
        false => rows,
    }
}

/// Rows of a tile where there are `all` of them and a tile has `most`: none has many less than the others.
pub(crate) fn even_rows(all: i64, most: u8) -> i64 {
    let all = all.max(1);
    ceil(all, ceil(all, i64::from(most)))
}

impl Tile {
    /// What people see it as, beside others of its kind.
    #[cfg(all(target_arch = "x86_64", unix))]
    pub(super) fn name(&self, kind: &str) -> String {
        let (level, dtype, rows) = (self.level, self.dtype, self.rows);
        let (columns, taps, steps) = (self.columns, self.taps, self.steps);
        let finish = self.finish.as_ref().map_or("", |_| ", finished");
        format!("{kind}, {level:?} {dtype:?} {rows}x{columns}, {taps} x {steps} steps{finish}")
    }

    /// All that printed code depends on.
    #[cfg(all(target_arch = "x86_64", unix))]
    pub(super) fn key(&self) -> Vec<u8> {
        let flags = [b'c', self.level as u8, self.dtype as u8, self.rows];
        let [padded, adds] = [self.padded, self.adds].map(u8::from);
        let (listed, row, step) = match self.left {
            Left::Listed => (1, 0, 0),
            Left::Matrix { row, step } => (0, row, step),
        };
        let numbers = [row, step, self.right, self.ahead, self.out];
        let counts = [u32::from(self.columns), self.steps, self.taps];
        let mut key = flags.to_vec();
        key.extend([padded, adds, listed]);
        key.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
        key.extend(counts.iter().flat_map(|n| n.to_le_bytes()));
        key.extend(self.finish.iter().flat_map(|f| f.key()));
        key
    }

    /// Whether code is printed for its level, and all of its distances fit into instructions.
    #[cfg(all(target_arch = "x86_64", unix))]
    pub(super) fn is_printed(&self) -> bool {
        if self.level == Level::Baseline {
            return false;
        }
        let rows = i64::from(self.rows);
        let steps = i64::from(self.steps);
        let (row, step) = match self.left {
            Left::Matrix { row, step } => (row, step),
            Left::Listed => (0, self.dtype.size() as i64),
        };
        let fits = |n: i64| i32::try_from(n).is_ok();
        let farthest = (rows.saturating_mul(row.saturating_abs()))
            .saturating_add(8i64.saturating_mul(step.saturating_abs()));
        fits(farthest)
            && fits(steps.saturating_mul(step))
            && fits(self.ahead)
            && fits(8i64.saturating_mul(self.right))
            && fits(rows.saturating_mul(self.out))
    }
}
