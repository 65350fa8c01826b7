//! How a product is cut into blocks.

use super::MatMul;
use crate::sums::{ROWS, rows_of};
use crate::tile::affine::ceil;
use kiln_plan::{self as plan, Algorithm};

/// Blocks are halved down to this power of two of multiply-adds, unless the algorithm says another...
const BLOCK_WORK: u8 = 25;
/// ...or they hold whole rows...
const ROWS_WORK: u8 = 27;
/// ...and this many elements, where an epilogue wants them hot...
const BLOCK_ELEMENTS: i64 = 1 << 17;
/// ...where an operand is made for each block, of so many elements...
const MADE_ELEMENTS: i64 = 1 << 18;
/// ...but not below this many rows or columns.
const BLOCK_SIDE: i64 = 192;
/// How many times as much work a block of whole rows is, and how many of these there are at least, where there
/// are so many rows.
const PACKS_ALL: i64 = 4;
const LEAST_BLOCKS: i64 = 8;

/// A block of one product.
pub(super) struct Block {
    pub(super) batch: i64,
    pub(super) row: i64,
    pub(super) rows: i64,
    pub(super) col: i64,
    pub(super) cols: i64,
}

/// What is behind a product.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    Nothing,
    /// Work on each element.
    Elements,
    /// Work on each row.
    Rows,
}

impl Behind {
    pub(crate) fn of(p: &plan::MatMul) -> Behind {
        match &p.epilogue {
            None => Behind::Nothing,
            Some(e) if e.over_rows() => Behind::Rows,
            Some(_) => Behind::Elements,
        }
    }

    /// The work of a block, as [`Algorithm::Panels`] has it, where the plan leaves it open.
    pub(super) fn block_work(self) -> u8 {
        match self {
            Behind::Rows => ROWS_WORK,
            _ => BLOCK_WORK,
        }
    }
}

/// The rows and columns of a block.
fn block(batch: &[i64], (m, k, n): (i64, i64, i64), behind: Behind, most: i64) -> (i64, i64) {
    let (mut rows, mut cols) = (m.max(1), n.max(1));
    if behind == Behind::Rows {
        // Each block packs the whole right matrix.
        let wanted = most * PACKS_ALL / (k * n).max(1);
        return (whole_rows(batch, (m, n), wanted, ROWS), cols);
    }
    let hot = behind == Behind::Elements;
    let large = |rows: i64, cols: i64| {
        let elements = rows.saturating_mul(cols);
        elements.saturating_mul(k.max(1)) > most || hot && elements > BLOCK_ELEMENTS
    };
    // Halves are rounded up to whole register tiles of the kernels behind.
    let half = |x: i64| (x / 2 + 47) / 48 * 48;
    while large(rows, cols) {
        if rows >= 2 * BLOCK_SIDE && (rows >= cols || hot) {
            rows = half(rows);
        } else if cols >= 2 * BLOCK_SIDE {
            cols = half(cols);
        } else if rows >= 2 * BLOCK_SIDE {
            rows = half(rows);
        } else {
            break;
        }
    }
    (rows, cols)
}

/// How many of `m` whole rows a block holds, if that is to be about so many: whole register tiles of `tile` rows, few
/// enough to stay hot, and blocks enough for threads to share.
fn whole_rows(batch: &[i64], (m, n): (i64, i64), wanted: i64, tile: i64) -> i64 {
    let hot = BLOCK_ELEMENTS / n.max(1);
    let shared = ceil(m * batch.iter().product::<i64>(), LEAST_BLOCKS).min(m);
    ceil(wanted.min(hot).min(shared).max(1), tile) * tile
}

impl MatMul {
    /// How many whole rows a block of register tiles holds, if that is to be about so many.
    pub(super) fn whole_rows(&self, wanted: i64) -> i64 {
        whole_rows(&self.batch, (self.m, self.n), wanted, rows_of(self.level))
    }

    /// The algorithm that it is computed by, with this behind it; of panels that are the same, the smallest.
    pub(crate) fn computed_by(&self, behind: Behind, fixed: bool) -> Algorithm {
        let most = match self.algorithm {
            Algorithm::Auto if fixed && self.packable => return Algorithm::Packed,
            Algorithm::Auto => behind.block_work(),
            Algorithm::Panels(most) => most,
            chosen => return chosen,
        };
        let cut = |most: u8| block(&self.batch, (self.m, self.k, self.n), behind, 1 << most);
        let same = Algorithm::PANELS.into_iter().find(|p| cut(*p) == cut(most));
        Algorithm::Panels(same.unwrap_or(most))
    }

    /// The rows and columns of a block of at most this power of two of multiply-adds.
    pub(super) fn cut(&self, most: u8) -> (i64, i64) {
        let sizes = (self.m, self.k, self.n);
        let (mut rows, mut cols) = block(&self.batch, sizes, self.behind, 1 << most);
        // What is made stays in the second-level cache.
        let made = ceil(MADE_ELEMENTS / self.k.max(1), 48).max(1) * 48;
        if self.lhs.made.is_some() {
            rows = rows.min(made);
        }
        if self.rhs.made.is_some() && self.behind != Behind::Rows {
            cols = cols.min(made);
        }
        (rows, cols)
    }

    /// How many blocks of so many rows and columns there are.
    pub(super) fn blocks_of(&self, (rows, cols): (i64, i64)) -> i64 {
        let batch: i64 = self.batch.iter().product();
        batch * ceil(self.m, rows) * ceil(self.n, cols)
    }

    /// Block number `i` of these. Rows change first: columns are read for all of them while they are hot.
    pub(super) fn block_of(&self, (rows, cols): (i64, i64), i: i64) -> Block {
        let (down, across) = (ceil(self.m, rows), ceil(self.n, cols));
        let (row, col) = (i % down * rows, i / down % across * cols);
        Block {
            batch: i / (down * across),
            row,
            rows: rows.min(self.m - row),
            col,
            cols: cols.min(self.n - col),
        }
    }
}
