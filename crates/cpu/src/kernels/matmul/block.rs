//! The blocking of a product.

use super::MatMul;
use kiln_kernel::affine::ceil;
use kiln_kernel::sums::rows_of;
use kiln_plan::cost::{ProductEpilogue, block, whole_rows};

/// The most elements of an operand that its prologue computes for a block.
const PROLOGUE_ELEMENTS: i64 = 1 << 18;

/// A block of one product.
pub(super) struct ProductBlock {
    pub(super) batch: i64,
    pub(super) row: i64,
    pub(super) rows: i64,
    pub(super) col: i64,
    pub(super) cols: i64,
}

/// The multiply-adds of a block of a small product.
const SMALL_WORK: i64 = 1 << 18;
/// The divisor of the rows of such a block.
const SMALL_ROWS: i64 = 8;
/// The least columns of such a block, where there are enough.
const LEAST_COLUMNS: i64 = 96;

impl MatMul {
    /// Returns the number of whole rows in a block of register tiles that is to have about `wanted` rows.
    pub(super) fn whole_rows(&self, wanted: i64) -> i64 {
        whole_rows(&self.batch, (self.m, self.n), wanted, rows_of(self.level))
    }

    /// Returns the rows and columns of a block that the schedule gives: whole rows where the epilogue needs them.
    fn scheduled_block(&self) -> Option<(i64, i64)> {
        let (rows, cols) = (self.schedule.block_rows()?, self.schedule.block_columns()?);
        let cols = match self.epilogue_kind {
            ProductEpilogue::Rows => self.n.max(1),
            _ => cols.min(self.n.max(1)),
        };
        Some((rows.min(self.m.max(1)), cols))
    }

    /// Returns the rows and columns of a block.
    pub(super) fn cut(&self) -> (i64, i64) {
        let sizes = (self.m, self.k, self.n);
        let usual = || block(&self.batch, sizes, self.epilogue_kind);
        let (mut rows, mut cols) = self.scheduled_block().unwrap_or_else(usual);
        // An operand from a prologue stays in the second-level cache.
        let most = ceil(PROLOGUE_ELEMENTS / self.k.max(1), 48).max(1) * 48;
        if self.lhs.prologue.is_some() {
            rows = rows.min(most);
        }
        if self.rhs.prologue.is_some() && self.epilogue_kind != ProductEpilogue::Rows {
            cols = cols.min(most);
        }
        (rows, cols)
    }

    /// Returns the rows and columns of a block of a small product. It has all columns, if eight such rows fit into its
    /// work, and then as many rows as fit.
    pub(super) fn small_block(&self) -> (i64, i64) {
        if let Some(given) = self.scheduled_block() {
            return given;
        }
        let eight = (SMALL_ROWS * self.k).max(1);
        if self.epilogue_kind == ProductEpilogue::Rows {
            let wanted = SMALL_ROWS * SMALL_WORK / (eight * self.n).max(1);
            return (self.whole_rows(wanted), self.n);
        }
        let cols = (SMALL_WORK / eight).max(LEAST_COLUMNS).min(self.n.max(1));
        ((SMALL_WORK / (eight * cols)).max(1) * SMALL_ROWS, cols)
    }

    /// Returns the number of blocks of this size.
    pub(super) fn blocks_of(&self, (rows, cols): (i64, i64)) -> i64 {
        let batch: i64 = self.batch.iter().product();
        batch * ceil(self.m, rows) * ceil(self.n, cols)
    }

    /// Returns block number `i` of this size. Rows vary fastest, so that columns are reused while they are in the
    /// cache.
    pub(super) fn block_of(&self, (rows, cols): (i64, i64), i: i64) -> ProductBlock {
        let (down, across) = (ceil(self.m, rows), ceil(self.n, cols));
        let (row, col) = (i % down * rows, i / down % across * cols);
        ProductBlock {
            batch: i / (down * across),
            row,
            rows: rows.min(self.m - row),
            col,
            cols: cols.min(self.n - col),
        }
    }
}
