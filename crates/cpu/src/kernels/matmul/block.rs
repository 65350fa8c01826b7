//! The blocking of a product.

use super::MatMul;
use super::pack::READ_ROWS;
use kiln_jit::contraction::even_rows;
use kiln_kernel::affine::ceil;
use kiln_kernel::sums::tile_rows;
use kiln_plan::Algorithm;
use kiln_plan::cost::{ProductEpilogue, block, whole_rows};
use kiln_plan::schedule::{MAX_VECTORS, TILE, VECTORS, lanes, max_rows};

/// The maximum number of elements of an operand that its prologue computes for a block.
const PROLOGUE_ELEMENTS: i64 = 1 << 18;

/// A block of one product, or of a part of its sums.
pub(super) struct ProductBlock {
    pub(super) part: i64,
    pub(super) batch: i64,
    pub(super) row: i64,
    pub(super) rows: i64,
    pub(super) col: i64,
    pub(super) cols: i64,
    /// The range of K.
    pub(super) terms: (i64, i64),
}

/// The division of a product into blocks.
#[derive(Default)]
pub(super) struct Grid {
    /// The rows and columns of a block.
    pub(super) block: (i64, i64),
    down: i64,
    across: i64,
    /// True if blocks of the same rows are consecutive; otherwise blocks of the same columns, which then stay in the
    /// cache.
    by_rows: bool,
    pub(super) count: i64,
    /// The multiply-adds of a block.
    pub(super) cost: i64,
    /// The number of parts of K.
    parts: i64,
}

/// The number of results of a block of a product with a vector.
const VECTOR_BLOCK: i64 = 64;
/// The cost of reading an element of the matrix there, in multiply-adds of a large product.
const VECTOR_WORK: i64 = 8;
/// The minimum number of steps of K in a part.
const PART_TERMS: i64 = 1024;
/// The maximum number of parts, and of elements of all parts.
const MAX_PARTS: i64 = 32;
const PART_ELEMENTS: i64 = 1 << 20;
/// The multiply-adds of a block of a product with packed panels.
const BLOCK_WORK: i64 = 1 << 20;
/// The maximum number of register tiles of a column of such a block: these and a panel stay in the second-level cache.
const BLOCK_TILES: i64 = 8;
/// The same for AMX, where one call computes all tiles.
const BLOCK_STRIP: i64 = 16;
/// The maximum number of results whose accumulators are all kept in memory until an epilogue on whole rows, with AMX.
/// Threads then divide B among them, which is read from far memory, instead of the rows.
const WAITING_SUMS: i64 = 1 << 19;
/// The number of blocks across in this case.
const WAITING_BLOCKS: i64 = 4;
/// The words of A in a block of K in this case, which stay in the second-level cache. Tests lower it to cover this in
/// small products.
const NEAR_WORDS: i64 = if cfg!(test) { 1 << 7 } else { 1 << 17 };

/// The multiply-adds of a block of a small product.
const SMALL_WORK: i64 = 1 << 18;
/// The divisor of the rows of such a block.
const SMALL_ROWS: i64 = 8;
/// The minimum number of columns of such a block, where there are enough.
const MIN_COLUMNS: i64 = 96;

impl MatMul {
    /// Returns the number of whole rows in a block of register tiles that is to have about `wanted` rows.
    pub(super) fn whole_rows(&self, wanted: i64) -> i64 {
        whole_rows(&self.batch, (self.m, self.n), wanted, tile_rows(self.level))
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
    fn block_size(&self) -> (i64, i64) {
        let sizes = (self.m, self.k, self.n);
        let default = || block(&self.batch, sizes, self.epilogue_kind);
        let (mut rows, mut cols) = self.scheduled_block().unwrap_or_else(default);
        // An operand from a prologue stays in the second-level cache.
        let max = ceil(PROLOGUE_ELEMENTS / self.k.max(1), 48).max(1) * 48;
        if self.lhs.prologue.is_some() {
            rows = rows.min(max);
        }
        if self.rhs.prologue.is_some() && self.epilogue_kind != ProductEpilogue::Rows {
            cols = cols.min(max);
        }
        (rows, cols)
    }

    /// Returns the rows and columns of a block of a small product: all columns, if eight such rows are within the work
    /// of a block, and as many rows as its work permits.
    fn small_block(&self) -> (i64, i64) {
        if let Some(block) = self.scheduled_block() {
            return block;
        }
        let column_work = (SMALL_ROWS * self.k).max(1);
        if self.epilogue_kind == ProductEpilogue::Rows {
            let rows = SMALL_ROWS * SMALL_WORK / (column_work * self.n).max(1);
            return (self.whole_rows(rows), self.n);
        }
        let cols = (SMALL_WORK / column_work)
            .max(MIN_COLUMNS)
            .min(self.n.max(1));
        (
            (SMALL_WORK / (column_work * cols)).max(1) * SMALL_ROWS,
            cols,
        )
    }

    /// Returns the division of the product into blocks.
    pub(super) fn grid(&self) -> Grid {
        let k = self.k.max(1);
        let (block, by_rows, cost) = match self.schedule.algorithm {
            Algorithm::Packed => {
                let (rows, panels) = self.packed_block_size();
                let cols = panels * self.panel;
                ((rows, cols), false, cols * rows.max(READ_ROWS) * k)
            }
            Algorithm::Parts => {
                let cost = self.m * self.n * ceil(self.k, self.parts());
                ((self.m.max(1), self.n.max(1)), false, cost)
            }
            Algorithm::Vector => {
                let block = if self.n == 1 {
                    (VECTOR_BLOCK, 1)
                } else {
                    (1, VECTOR_BLOCK)
                };
                (block, false, VECTOR_BLOCK * k * VECTOR_WORK)
            }
            // A part of B from a prologue is reused for all rows; otherwise a part of A from a prologue is reused for
            // all columns.
            algorithm => {
                let block = match algorithm {
                    Algorithm::Small => self.small_block(),
                    _ => self.block_size(),
                };
                (block, self.rhs.prologue.is_none(), block.0 * block.1 * k)
            }
        };
        let (down, across) = (ceil(self.m, block.0), ceil(self.n, block.1));
        let parts = self.parts();
        Grid {
            block,
            down,
            across,
            by_rows,
            count: parts * self.matrices() * down * across,
            cost,
            parts,
        }
    }

    /// Returns block number `i`.
    pub(super) fn block_of(&self, i: i64) -> ProductBlock {
        let grid = &self.grid;
        let per_matrix = grid.down * grid.across;
        let (matrix, index) = (i / per_matrix, i % per_matrix);
        let (row, col) = match grid.by_rows {
            true => (index / grid.across, index % grid.across),
            false => (index % grid.down, index / grid.down),
        };
        let (row, col) = (row * grid.block.0, col * grid.block.1);
        let parts = grid.parts;
        let (part, batch, terms) = match parts {
            1 => (0, matrix, (0, self.k)),
            _ => {
                let start = |part: i64| (self.k as i128 * part as i128 / parts as i128) as i64;
                let part = matrix / self.matrices();
                (
                    part,
                    matrix % self.matrices(),
                    (start(part), start(part + 1)),
                )
            }
        };
        ProductBlock {
            part,
            batch,
            row,
            rows: grid.block.0.min(self.m - row),
            col,
            cols: grid.block.1.min(self.n - col),
            terms,
        }
    }

    /// Returns the number of parts of K; it follows from the sizes and the schedule alone.
    pub(super) fn parts(&self) -> i64 {
        if self.schedule.algorithm != Algorithm::Parts {
            return 1;
        }
        if let Some(parts) = self.schedule.parts {
            return i64::from(parts).min(self.k.max(1));
        }
        let max = (PART_ELEMENTS / self.results().max(1)).min(MAX_PARTS);
        (self.k / PART_TERMS).min(max).max(2)
    }

    pub(super) fn panels_across(&self) -> i64 {
        ceil(self.n, self.panel)
    }

    /// Returns the largest number of rows of a register tile that reads this many panels.
    fn max_rows(&self, panels: i64) -> u8 {
        let vectors = panels * self.panel / i64::from(lanes(self.level, self.dtype));
        self.schedule
            .rows(max_rows(self.level, self.terms.instruction, vectors as u8))
    }

    /// Returns the number of rows of a register tile.
    pub(super) fn tile_rows(&self) -> i64 {
        even_rows(self.m, self.max_rows(1))
    }

    /// Returns the number of panels that a register tile reads at once. It is more than one if so few rows would make
    /// accumulators wait for each other, unless the schedule gives the tile.
    pub(super) fn panels_at_once(&self) -> i64 {
        let vectors = self.panel / i64::from(lanes(self.level, self.dtype));
        let by_tiles = self.terms.instruction.has_tiles();
        let fits = |panels: &i64| i64::from(self.max_rows(*panels)) >= self.m;
        match self.schedule.tile.is_some() || by_tiles || vectors < VECTORS || self.dtype.size() > 4
        {
            true => 1,
            false => (2..=MAX_VECTORS / vectors).rev().find(fits).unwrap_or(1),
        }
    }

    /// Returns the number of results whose accumulators are kept in memory until all are complete.
    pub(super) fn waiting_sums(&self) -> i64 {
        let keeps_sums = self.terms.instruction.has_tiles()
            && self.epilogue_kind == ProductEpilogue::Rows
            && self.register_epilogue.is_none()
            && self.lhs.prologue.is_none();
        if keeps_sums && self.results() <= WAITING_SUMS {
            self.results()
        } else {
            0
        }
    }

    /// Returns the largest number of rows of a block: whole register tiles, which stay in the second-level cache with a
    /// panel.
    pub(super) fn block_rows(&self) -> i64 {
        let (tile, by_tiles) = (self.tile_rows(), self.terms.instruction.has_tiles());
        match self.schedule.block_rows() {
            Some(rows) => ceil(rows, tile) * tile,
            None if by_tiles => tile * BLOCK_STRIP,
            None => tile * BLOCK_TILES,
        }
    }

    /// Returns the rows and panels of a block of a product with packed panels.
    fn packed_block_size(&self) -> (i64, i64) {
        let (tile, keeps_sums) = (self.tile_rows(), self.waiting_sums() > 0);
        let whole_rows = self.epilogue_kind == ProductEpilogue::Rows && !keeps_sums
            || self.lhs.prologue.is_some();
        let rows = match whole_rows {
            true => ceil(self.whole_rows(self.block_rows()), tile) * tile,
            false => self.m.clamp(1, self.block_rows()),
        };
        let (across, at_once) = (self.panels_across().max(1), self.panels_at_once());
        let panels = match self.schedule.block_columns() {
            _ if whole_rows => return (rows, across),
            Some(columns) => ceil(columns, self.panel).min(across),
            None if keeps_sums => ceil(across, WAITING_BLOCKS),
            None => {
                let work = rows.max(READ_ROWS) * self.panel * self.k.max(1);
                (BLOCK_WORK / work).clamp(1, across)
            }
        };
        (rows, ceil(panels, at_once) * at_once)
    }

    /// Returns the steps of K in a pass over packed panels: all, or where accumulators wait, a multiple of AMX's tile
    /// size.
    pub(super) fn steps_at_once(&self) -> i64 {
        let (rows, steps) = (self.grid.block.0, self.steps());
        let part = match self.waiting_sums() {
            0 => steps,
            _ => {
                let parts = ceil(rows * steps, NEAR_WORDS).max(1);
                let part = self.schedule.terms.map_or(ceil(steps, parts), i64::from);
                ceil(part, TILE.into()) * i64::from(TILE)
            }
        };
        part.max(1)
    }
}
