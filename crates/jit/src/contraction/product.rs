//! Products of matrices with any strides, on one thread.
//!
//! K is blocked so that operands stay in the caches, and B is cut into panels of columns. A panel is packed first if it
//! is read often, or if its columns are not contiguous. So is A if the elements of its rows have a large stride. An
//! element is summed in the order of K, for any blocking.

use super::grid::{Columns, Order, PanelSource, TileGrid};
use super::kernel::{Left, Output};
use super::tile::{RightSide, Rows, Tile, even_rows};
use kiln_base::{Features, Instruction};
use kiln_kernel::affine::ceil;
use kiln_kernel::bugs::bug;
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::transpose::{copy_rows, transpose};
use kiln_kernel::sums::Lane;
use kiln_kernel::view::{Plain, View, ViewMut};
use kiln_plan::schedule::Cpu;
use kiln_plan::schedule::{MAX_VECTORS, VECTORS, lanes, max_rows, panel_columns};
use std::cell::RefCell;

/// The steps of K before the next panel (KC), unless a schedule says otherwise.
pub const TERMS: i64 = 512;
/// The rows of a block whose part of A stays in the second-level cache: larger blocks are processed in parts.
const ROWS: i64 = 384;
/// The minimum number of passes over a panel for which it is packed.
const MIN_PASSES: i64 = 3;
/// The minimum stride of the elements of a row for which A is packed, in bytes.
const FAR_STRIDE: i64 = 256;
/// A pitch of rows that is a multiple of this many bytes makes rows collide in cache sets: A is copied then too,
const CONFLICTING_PITCH: i64 = 2048;
/// with this many elements of padding between rows.
const ROW_PADDING: i64 = 16;

/// A matrix: a view whose index 0 is its first element, and the strides of rows and columns, in elements.
pub type Matrix<'a, T> = (View<'a, T>, i64, i64);

/// Contiguous panels of B: their elements, and the steps of K and columns of each. The contents after the matrix's last
/// column are arbitrary. Only [`PackedPanels`] has them, so that nobody reads panels that were not packed.
#[derive(Copy, Clone)]
pub struct Panels<'a, T> {
    first: View<'a, T>,
    terms: i64,
    columns: i64,
}

/// A packed B, for the products that read it.
#[derive(Default)]
pub struct PackedPanels {
    copy: Option<Storage>,
    /// The bytes of all panels, their steps of K, and the columns of each.
    bytes: i64,
    terms: i64,
    columns: i64,
}

impl PackedPanels {
    /// Packs a matrix of `terms` steps of K and `n` columns, for products by an instruction.
    ///
    /// # Errors
    /// If there is no memory.
    ///
    /// # Panics
    /// If the view lacks elements.
    pub fn pack<T: Plain>(
        &mut self,
        (level, by): (Features, Instruction),
        (x, row, col): Matrix<T>,
        (terms, n): (i64, i64),
    ) -> Result<()> {
        let columns = panel_columns(level, by, n);
        let len = ceil(n, columns) * columns * terms;
        let to = ViewMut::<T>::room(&mut self.copy, len)?;
        (self.bytes, self.terms, self.columns) = (len * size_of::<T>() as i64, terms, columns);
        for column in (0..n).step_by(columns as usize) {
            let from = (x.shift(column * col), row, col);
            let sizes = (terms, columns.min(n - column));
            pack(level, from, sizes, (to.shift(column * terms), columns));
        }
        Ok(())
    }

    /// Returns the panels; there are none before the first matrix.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn panels<T: Plain>(&mut self) -> Result<Panels<'_, T>> {
        Ok(Panels {
            first: *ViewMut::<u8>::room(&mut self.copy, self.bytes)?.cast(),
            terms: self.terms,
            columns: self.columns,
        })
    }
}

/// The B of a product.
#[derive(Copy, Clone)]
pub enum Right<'a, T> {
    /// The matrix in place; its panels are packed if that is faster.
    Strided(Matrix<'a, T>),
    /// The same, with contiguous columns, readable in whole vectors, and with rows that do not collide in the caches:
    /// nothing is packed.
    Direct(Matrix<'a, T>),
    Packed(Panels<'a, T>),
}

impl<'a, T: Plain> Right<'a, T> {
    /// Returns the part from a step of K and a column on; a panel must start there.
    pub fn part_from(self, term: i64, column: i64) -> Right<'a, T> {
        let shift_by =
            |(x, row, col): Matrix<'a, T>| (x.shift(term * row + column * col), row, col);
        match self {
            Right::Strided(x) => Right::Strided(shift_by(x)),
            Right::Direct(x) => Right::Direct(shift_by(x)),
            Right::Packed(p) => Right::Packed(Panels {
                first: shift_by((p.first, p.columns, p.terms)).0,
                ..p
            }),
        }
    }
}

impl<'a, T> From<Matrix<'a, T>> for Right<'a, T> {
    fn from(x: Matrix<'a, T>) -> Right<'a, T> {
        Right::Strided(x)
    }
}

/// The memory that a thread copies matrices into.
#[derive(Default)]
struct Copies {
    left: Option<Storage>,
    right: Option<Storage>,
    grids: Grids,
}

/// The register tiles of recent products, so that a thread finds them without a lock.
#[derive(Default)]
struct Grids {
    list: Vec<(Tile, [i64; 2], TileGrid)>,
    /// The index of the last grid that was found.
    last: usize,
}

/// The maximum number of grids.
const CACHED_GRIDS: usize = 16;

impl Grids {
    /// Returns the tiles of `m` rows and `n` columns, of which this is a whole one.
    fn get(&mut self, tile: Tile, [m, n]: [i64; 2]) -> Result<&TileGrid> {
        let remainders = [m % i64::from(tile.rows.count), n % i64::from(tile.columns)];
        let is_equal = |(t, r, _): &(Tile, [i64; 2], TileGrid)| *r == remainders && *t == tile;
        if !self.list.get(self.last).is_some_and(is_equal) {
            self.last = match self.list.iter().position(is_equal) {
                Some(index) => index,
                None => {
                    let grid = TileGrid::new(&tile, [1, m, n], Order::default())?;
                    if self.list.len() == CACHED_GRIDS {
                        self.list.remove(0);
                    }
                    self.list.push((tile, remainders, grid));
                    self.list.len() - 1
                }
            };
        }
        Ok(&self.list[self.last].2)
    }
}

thread_local! {
    static COPIES: RefCell<Copies> = RefCell::default();
}

/// Writes the product of `left`, m × k, and `right`, k × n, to `out`, whose rows have this pitch, or `adds` it. The
/// elements are words of the instruction's terms, which have as many bits as the type. A schedule may give the register
/// tile and the block of K.
///
/// # Errors
/// If there is no memory for copies or code.
///
/// # Panics
/// If a view lacks elements.
pub fn multiply<T: Lane>(
    (by, level, schedule): (Instruction, Features, Option<&Cpu>),
    (m, n, k): (i64, i64, i64),
    (out, pitch): (ViewMut<T>, i64),
    (left, row, col): Matrix<T>,
    right: Right<T>,
    adds: bool,
) -> Result<()> {
    let terms_at_once = schedule.and_then(|s| s.terms).map_or(TERMS, i64::from);
    COPIES.with_borrow_mut(|copies| {
        let mut from = 0;
        while from < k || from == 0 {
            let terms = (k - from).min(terms_at_once);
            for first in (0..m).step_by(ROWS as usize) {
                let sizes = (ROWS.min(m - first), n, terms);
                let adds = bug("the next terms are not added", adds || from > 0, |_| adds);
                let left = (left.shift(first * row + from * col), row, col);
                let part = SubProduct::new((by, level, schedule), sizes, adds, (row, col), right);
                let out = (out.shift(first * pitch), pitch);
                part.run(out, left, right.part_from(from, 0), copies)?;
            }
            from += terms_at_once;
        }
        Ok(())
    })
}

/// A part of a product, and its register tiles.
struct SubProduct {
    by: Instruction,
    level: Features,
    m: i64,
    n: i64,
    k: i64,
    adds: bool,
    /// The rows of a register tile, and the columns of a panel.
    rows: i64,
    columns: i64,
}

impl SubProduct {
    fn new<T>(
        (by, level, schedule): (Instruction, Features, Option<&Cpu>),
        (m, n, k): (i64, i64, i64),
        adds: bool,
        (row, col): (i64, i64),
        right: Right<T>,
    ) -> SubProduct {
        let lanes = i64::from(lanes(level, by.sums));
        // AMX tile registers read rows with contiguous words, in whole vectors.
        let by_tiles = by.has_tiles() && row > 0 && col == 1;
        let (rows, vectors) = match right {
            Right::Packed(p) => (None, p.columns / lanes),
            Right::Direct(_) if by_tiles => (None, panel_columns(level, by, n) / lanes),
            _ => {
                let (rows, vectors) = shape((by, level, schedule), m, n);
                (Some(rows), vectors)
            }
        };
        let row_limit = match by_tiles {
            true => max_rows(level, by, vectors as u8),
            false => row_limit(level, by, vectors),
        };
        SubProduct {
            by,
            level,
            m,
            n,
            k,
            adds,
            rows: rows.unwrap_or_else(|| even_rows(m, row_limit)),
            columns: vectors * lanes,
        }
    }

    fn run<T: Lane>(
        self,
        (out, pitch): (ViewMut<T>, i64),
        left: Matrix<T>,
        right: Right<T>,
        copies: &mut Copies,
    ) -> Result<()> {
        if self.m * self.n == 0 {
            return Ok(());
        }
        let size = size_of::<T>() as i64;
        let (left, strides) = self.left(left, &mut copies.left)?;
        let is_reused = ceil(self.m, self.rows) >= MIN_PASSES;
        let packs = matches!(right, Right::Strided((.., col)) if is_reused || col != 1);
        let (step, padded) = match right {
            Right::Packed(p) => (p.columns, true),
            Right::Strided(_) if packs => (self.columns, true),
            Right::Strided((_, row, _)) => (row, false),
            Right::Direct((_, row, _)) => (row, true),
        };
        let side = RightSide {
            padded,
            ..RightSide::of_matrix(step * size)
        };
        let rows = Rows::of_matrix(self.rows, strides[0] * size);
        let tile = Tile {
            step: strides[1] * size,
            steps: self.k as u32,
            out: pitch * size,
            adds: self.adds,
            strip: [strides[2] * size, self.rows],
            ..Tile::new((self.level, self.by), rows, self.columns.min(self.n), side)
        };
        let grid = copies.grids.get(tile, [self.m, self.n])?;
        let ranges = [0..1, 0..self.m, 0..self.n];
        let (left, out) = (Left::Rows(left.bytes(), &[]), Output::Memory(out.bytes()));
        let (first, column) = match right {
            Right::Strided(matrix) if packs => {
                let to = ViewMut::room(&mut copies.right, self.k * self.columns)?;
                let product = &self;
                let mut panels = PackOnDemand {
                    product,
                    matrix,
                    to,
                };
                return grid.compute(ranges, left, &mut panels, out);
            }
            Right::Packed(p) => (p.first, p.terms),
            Right::Strided((first, ..)) | Right::Direct((first, ..)) => (first, 1),
        };
        let mut columns = Columns {
            first: first.bytes(),
            column: column * size,
        };
        grid.compute(ranges, left, &mut columns, out)
    }

    /// Returns the rows of A, and the strides of two rows of a tile, of two steps of K and of two tiles.
    fn left<'a, T: Lane>(
        &self,
        (left, row, col): Matrix<'a, T>,
        copy: &'a mut Option<Storage>,
    ) -> Result<(View<'a, T>, [i64; 3])> {
        let size = size_of::<T>() as i64;
        let rows = self.rows;
        let bytes = |n: i64| n.checked_mul(size).map_or(i64::MAX, i64::abs);
        let fits = bytes(row.saturating_mul(rows)).max(bytes(col.saturating_mul(self.k))) < 1 << 30;
        let is_reused = self.n > 2 * self.columns;
        let (has_far_stride, conflicts) = (
            bytes(col) >= FAR_STRIDE && self.k > 1,
            bytes(row) % CONFLICTING_PITCH == 0,
        );
        if fits && !(is_reused && (has_far_stride || conflicts && self.m > 1)) {
            return Ok((left, [row, col, row * rows]));
        }
        if col == 1 {
            let pitch = self.k + ROW_PADDING;
            let to = ViewMut::room(copy, self.m * pitch)?;
            for i in 0..self.m {
                to.copy(i * pitch, left.slice(i * row, self.k));
            }
            return Ok((*to, [pitch, 1, pitch * rows]));
        }
        let to = ViewMut::room(copy, (self.m + rows) * self.k)?;
        for first in (0..self.m).step_by(rows as usize) {
            let from = (left.shift(first * row), col, row);
            let sizes = (self.k, rows.min(self.m - first));
            pack(self.level, from, sizes, (to.shift(first * self.k), rows));
        }
        Ok((*to, [1, rows, rows * self.k]))
    }
}

/// A B whose panels are packed on demand.
struct PackOnDemand<'a, T> {
    product: &'a SubProduct,
    matrix: Matrix<'a, T>,
    to: ViewMut<'a, T>,
}

impl<T: Plain> PanelSource for PackOnDemand<'_, T> {
    fn panel(&mut self, column: i64) -> Result<View<'_, u8>> {
        let (product, (x, row, col)) = (self.product, self.matrix);
        let sizes = (product.k, product.columns.min(product.n - column));
        let from = (x.shift(column * col), row, col);
        pack(product.level, from, sizes, (self.to, product.columns));
        Ok(*self.to.bytes())
    }
}

/// Returns the largest number of rows of a register tile. It is the limit of the vector instruction, because AMX tiles
/// may be unable to read A in place.
fn row_limit(level: Features, by: Instruction, vectors: i64) -> u8 {
    max_rows(level, by.in_vectors(), vectors as u8)
}

/// Returns the rows and vectors of a register tile: those of the schedule, or two vectors. Few rows get more vectors,
/// so that accumulators are independent.
#[inline]
pub fn shape(
    (by, level, schedule): (Instruction, Features, Option<&Cpu>),
    m: i64,
    n: i64,
) -> (i64, i64) {
    let lanes = i64::from(lanes(level, by.sums));
    let across = ceil(n, lanes);
    let limit = |vectors: i64| row_limit(level, by, vectors);
    if let Some([rows, vectors]) = schedule.and_then(|s| s.tile) {
        let vectors = i64::from(vectors).min(across.max(1));
        return (even_rows(m, rows.min(limit(vectors))), vectors);
    }
    let mut vectors = VECTORS.min(across.max(1));
    while vectors < MAX_VECTORS.min(across) && i64::from(limit(vectors + 1)) >= m {
        vectors += 1;
    }
    (even_rows(m, limit(vectors)), vectors)
}

/// Packs columns of a matrix into a panel whose rows have this pitch.
///
/// # Panics
/// If a view lacks elements.
pub fn pack<T: Plain>(
    level: Features,
    (from, row, col): Matrix<T>,
    (k, columns): (i64, i64),
    (to, pitch): (ViewMut<T>, i64),
) {
    if row == 1 {
        return transpose(level, (from, col), (columns, k), (to, pitch));
    }
    copy_rows((from, [row, col]), (k, columns), (to, pitch));
}
