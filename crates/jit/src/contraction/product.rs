//! Products of matrices with any strides, on one thread.
//!
//! K is blocked so that operands stay in the caches, and B is cut into panels of columns. A panel is packed first if it
//! is read often, or if its columns are not contiguous. So is A if the elements of its rows are far apart. An element
//! is summed in the order of K, whatever the blocking.

use super::kernel::Kernels;
use super::tile::{Call, RightSide, Rows, Tile, even_rows, strips};
use kiln_base::{Features, Instruction};
use kiln_kernel::affine::ceil;
use kiln_kernel::bugs::bug;
use kiln_kernel::error::Result;
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::simd::compiled;
use kiln_kernel::simd::transpose::{Transpose, TransposeKernel};
use kiln_kernel::sums::Lane;
use kiln_plan::schedule::Cpu;
use kiln_plan::schedule::{MOST_VECTORS, VECTORS, lanes, most_rows, panel_columns};
use std::cell::RefCell;

/// The steps of K before the next panel (KC), unless a schedule says otherwise.
pub const TERMS: i64 = 512;
/// The rows of a block whose part of A stays in the second-level cache: larger blocks are processed in parts.
const ROWS: i64 = 384;
/// The least number of passes over a panel for which it is packed.
const WALKS: i64 = 3;
/// The least stride of the elements of a row for which A is packed, in bytes.
const FAR: i64 = 256;
/// A pitch of rows that is a multiple of this many bytes makes rows collide in cache sets: A is copied then too,
const MEETS: i64 = 2048;
/// with this many elements of padding between rows.
const APART: i64 = 16;

/// A matrix: the address of its first element, and the strides of rows and columns, in elements.
pub type Matrix<T> = (*const T, i64, i64);

/// Contiguous panels of B: their address, and the steps of K and columns of each. The contents after the matrix's last
/// column are arbitrary.
#[derive(Copy, Clone)]
pub struct Panels<T> {
    pub at: *const T,
    pub terms: i64,
    pub columns: i64,
}

/// The B of a product.
#[derive(Copy, Clone)]
pub enum Right<T> {
    /// The matrix in place; its panels are packed where that pays.
    Lies(Matrix<T>),
    /// The same, with contiguous columns, readable in whole vectors, and with rows that do not collide in the caches:
    /// nothing is packed.
    Apart(Matrix<T>),
    Packed(Panels<T>),
}

impl<T> Right<T> {
    /// Returns the part from a step of K and a column on; a panel must start there.
    pub fn part_from(self, term: i64, column: i64) -> Right<T> {
        let at = |(x, row, col): Matrix<T>| {
            let x = x.wrapping_offset((term * row + column * col) as isize);
            (x, row, col)
        };
        match self {
            Right::Lies(x) => Right::Lies(at(x)),
            Right::Apart(x) => Right::Apart(at(x)),
            Right::Packed(p) => Right::Packed(Panels {
                at: at((p.at, p.columns, p.terms)).0,
                ..p
            }),
        }
    }
}

impl<T> From<Matrix<T>> for Right<T> {
    fn from(x: Matrix<T>) -> Right<T> {
        Right::Lies(x)
    }
}

/// The memory that a thread copies matrices into.
#[derive(Default)]
struct Copies {
    left: Option<Storage>,
    right: Option<Storage>,
    kernels: Kernels,
}

thread_local! {
    static COPIES: RefCell<Copies> = RefCell::default();
}

/// As [`multiply_as`], for floats, without a schedule.
///
/// # Errors
/// As [`multiply_as`].
///
/// # Safety
/// As [`multiply_as`].
pub unsafe fn multiply<T: Lane>(
    level: Features,
    sizes: (i64, i64, i64),
    out: (*mut T, i64),
    left: Matrix<T>,
    right: impl Into<Right<T>>,
    adds: bool,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        let how = (Instruction::of_numbers(T::DTYPE), level, None);
        multiply_as(how, sizes, out, left, right, adds)
    }
}

/// Computes `out = left · right`, or adds that to `out` with `adds`, for matrices of `m` by `k` and `k` by `n`. Rows of
/// the result are `pitch` elements apart, with contiguous columns. The elements are words of the instruction's terms,
/// which have as many bits as the type. A schedule may give the register tile and the block of K.
///
/// # Errors
/// If there is no memory for copies or code.
///
/// # Safety
/// All elements exist, and nobody else uses those of the result. The processor has the level.
pub unsafe fn multiply_as<T: Lane>(
    (by, level, schedule): (Instruction, Features, Option<&Cpu>),
    (m, n, k): (i64, i64, i64),
    (out, pitch): (*mut T, i64),
    left: Matrix<T>,
    right: impl Into<Right<T>>,
    adds: bool,
) -> Result<()> {
    let right = right.into();
    let terms_at_once = schedule.and_then(|s| s.terms).map_or(TERMS, i64::from);
    COPIES.with_borrow_mut(|copies| {
        let mut from = 0;
        while from < k || from == 0 {
            let terms = (k - from).min(terms_at_once);
            for row in (0..m).step_by(ROWS as usize) {
                let sizes = (ROWS.min(m - row), n, terms);
                let adds = bug("the next terms are not added", adds || from > 0, |_| adds);
                let cut = Blocking::new((by, level, schedule), sizes, adds, left, right);
                let at = |(x, row, col): Matrix<T>, i: i64, j: i64| {
                    (x.wrapping_offset((i * row + j * col) as isize), row, col)
                };
                let out = out.wrapping_offset((row * pitch) as isize);
                // SAFETY: the caller's; the parts lie within the matrices.
                unsafe {
                    cut.run(
                        (out, pitch),
                        at(left, row, from),
                        right.part_from(from, 0),
                        copies,
                    )?;
                }
            }
            from += terms_at_once;
        }
        Ok(())
    })
}

/// The blocking of a part of a product.
struct Blocking {
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

impl Blocking {
    fn new<T>(
        (by, level, schedule): (Instruction, Features, Option<&Cpu>),
        (m, n, k): (i64, i64, i64),
        adds: bool,
        left: Matrix<T>,
        right: Right<T>,
    ) -> Blocking {
        let lanes = i64::from(lanes(level, by.sums));
        // AMX tile registers read rows with contiguous words, in whole vectors.
        let by_tiles = by.has_tiles() && left.1 > 0 && left.2 == 1;
        let (rows, vectors) = match right {
            Right::Packed(p) => (None, p.columns / lanes),
            Right::Apart(_) if by_tiles => (None, panel_columns(level, by, n) / lanes),
            _ => {
                let (rows, vectors) = shape((by, level, schedule), m, n);
                (Some(rows), vectors)
            }
        };
        let most = match by_tiles {
            true => most_rows(level, by, vectors as u8),
            false => most(level, by, vectors),
        };
        let rows = rows.unwrap_or_else(|| even_rows(m, most));
        Blocking {
            by,
            level,
            m,
            n,
            k,
            adds,
            rows,
            columns: vectors * lanes,
        }
    }

    /// # Safety
    /// As [`multiply`].
    unsafe fn run<T: Lane>(
        self,
        (out, pitch): (*mut T, i64),
        left: Matrix<T>,
        right: Right<T>,
        copies: &mut Copies,
    ) -> Result<()> {
        let size = size_of::<T>() as i64;
        let rows = self.rows;
        // SAFETY: the caller's.
        let (left, apart) = unsafe { self.left(left, &mut copies.left)? };
        for column in (0..self.n).step_by(self.columns as usize) {
            let columns = self.columns.min(self.n - column);
            // SAFETY: the caller's; the panel lies within the matrix.
            let (panel, step, padded) = unsafe {
                let panel = right.part_from(0, column);
                self.panel(panel, columns, &mut copies.right)?
            };
            let tile = |count: i64| Tile {
                level: self.level,
                instruction: self.by,
                rows: Rows::of_matrix(count, apart[0] * size),
                columns: columns as u16,
                step: apart[1] * size,
                right: RightSide {
                    padded,
                    ..RightSide::of_matrix(step * size)
                },
                steps: self.k as u32,
                taps: 1,
                out: pitch * size,
                adds: self.adds,
                starts: false,
                strip: [apart[2] * size, rows],
                finish: None,
            };
            let whole = tile(rows.min(self.m));
            let mut kernel = copies.kernels.get(&whole)?;
            for (row, tiles) in strips(0..self.m, rows, whole.most()) {
                let count = rows.min(self.m - row);
                if count < rows && row > 0 {
                    kernel = copies.kernels.get(&tile(count))?;
                }
                let call = Call {
                    left: left
                        .wrapping_offset((row / rows * apart[2]) as isize)
                        .cast(),
                    right: panel.cast(),
                    out: out.wrapping_offset((row * pitch + column) as isize).cast(),
                    finish: std::ptr::null(),
                    taps: std::ptr::null(),
                    tiles: tiles as u64,
                };
                // SAFETY: the caller's; the tile lies within the part.
                unsafe { kernel.run(&call) };
            }
        }
        Ok(())
    }

    /// Returns the address of the first columns of B, the stride of steps of K, and true if whole vectors are readable.
    ///
    /// # Safety
    /// As [`multiply`].
    unsafe fn panel<T: Lane>(
        &self,
        right: Right<T>,
        columns: i64,
        copy: &mut Option<Storage>,
    ) -> Result<(*const T, i64, bool)> {
        let often = ceil(self.m, self.rows) >= WALKS;
        match right {
            Right::Packed(p) => Ok((p.at, p.columns, true)),
            Right::Lies(x) if often || x.2 != 1 => {
                let to = room::<T>(copy, self.k * self.columns)?;
                // SAFETY: the caller's; there is room for whole panels.
                unsafe { pack(self.level, x, (self.k, columns), (to, self.columns)) };
                Ok((to, self.columns, true))
            }
            Right::Lies((at, row, _)) => Ok((at, row, false)),
            Right::Apart((at, row, _)) => Ok((at, row, true)),
        }
    }

    /// Returns the address of the rows of A, and the strides of two rows of a tile, of two steps of K and of two tiles.
    ///
    /// # Safety
    /// As [`multiply`].
    unsafe fn left<T: Lane>(
        &self,
        (left, row, col): Matrix<T>,
        copy: &mut Option<Storage>,
    ) -> Result<(*const T, [i64; 3])> {
        let size = size_of::<T>() as i64;
        let rows = self.rows;
        let bytes = |n: i64| n.checked_mul(size).map_or(i64::MAX, i64::abs);
        let fits = bytes(row.saturating_mul(rows)).max(bytes(col.saturating_mul(self.k))) < 1 << 30;
        let again = self.n > 2 * self.columns;
        let (far, meets) = (bytes(col) >= FAR && self.k > 1, bytes(row) % MEETS == 0);
        if fits && !(again && (far || meets && self.m > 1)) {
            return Ok((left, [row, col, row * rows]));
        }
        // SAFETY: the caller's; there is room for whole tiles, or for rows and their padding.
        unsafe {
            if col == 1 {
                let pitch = self.k + APART;
                let to = room::<T>(copy, self.m * pitch)?;
                for i in 0..self.m {
                    let (from, to) = (
                        left.offset((i * row) as isize),
                        to.offset((i * pitch) as isize),
                    );
                    std::ptr::copy_nonoverlapping(from, to, self.k as usize);
                }
                return Ok((to, [pitch, 1, pitch * rows]));
            }
            let to = room::<T>(copy, (self.m + rows) * self.k)?;
            for first in (0..self.m).step_by(rows as usize) {
                let from = left.offset((first * row) as isize);
                let to = to.offset((first * self.k) as isize);
                pack(
                    self.level,
                    (from, col, row),
                    (self.k, rows.min(self.m - first)),
                    (to, rows),
                );
            }
            Ok((to, [1, rows, rows * self.k]))
        }
    }
}

/// Returns the largest number of rows of a register tile. It is the limit of the vector instruction, because AMX tiles
/// may be unable to read A in place.
fn most(level: Features, by: Instruction, vectors: i64) -> u8 {
    most_rows(level, by.in_vectors(), vectors as u8)
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
    let most = |vectors: i64| most(level, by, vectors);
    if let Some([rows, vectors]) = schedule.and_then(|s| s.tile) {
        let vectors = i64::from(vectors).min(across.max(1));
        return (even_rows(m, rows.min(most(vectors))), vectors);
    }
    let mut vectors = VECTORS.min(across.max(1));
    while vectors < MOST_VECTORS.min(across) && i64::from(most(vectors + 1)) >= m {
        vectors += 1;
    }
    (even_rows(m, most(vectors)), vectors)
}

/// Packs a B of `terms` steps of K and `n` columns, in panels for products by an instruction.
///
/// # Errors
/// If there is no memory.
///
/// # Safety
/// The elements exist. The processor has the level.
pub unsafe fn pack_panels<T: Lane>(
    (level, by): (Features, Instruction),
    x: Matrix<T>,
    (terms, n): (i64, i64),
    copy: &mut Option<Storage>,
) -> Result<Panels<T>> {
    let across = panel_columns(level, by, n);
    let to = room::<T>(copy, ceil(n, across) * across * terms)?;
    for column in (0..n).step_by(across as usize) {
        let from = x.0.wrapping_offset((column * x.2) as isize);
        let columns = across.min(n - column);
        // SAFETY: the caller's; there is room for whole panels.
        unsafe {
            let to = to.offset((column * terms) as isize);
            pack(level, (from, x.1, x.2), (terms, columns), (to, across));
        }
    }
    Ok(Panels {
        at: to,
        terms,
        columns: across,
    })
}

/// Packs columns of a matrix into a panel whose rows are `pitch` elements apart.
///
/// # Safety
/// The elements exist, and there is room for them. The processor has the level.
pub unsafe fn pack<T: Copy>(
    level: Features,
    (from, row, col): Matrix<T>,
    (k, columns): (i64, i64),
    (to, pitch): (*mut T, i64),
) {
    // SAFETY: the caller's.
    unsafe {
        if row == 1 {
            return compiled::<TransposeKernel<T>, _>(level)(Transpose {
                from,
                pitch: col as isize,
                rows: columns as usize,
                columns: k as usize,
                to,
                to_pitch: pitch as isize,
            });
        }
        for i in 0..k {
            let from = from.offset((i * row) as isize);
            let to = to.offset((i * pitch) as isize);
            match (col, columns) {
                (1, 32) => *to.cast::<[T; 32]>() = from.cast::<[T; 32]>().read(),
                (1, 16) => *to.cast::<[T; 16]>() = from.cast::<[T; 16]>().read(),
                (1, _) => std::ptr::copy_nonoverlapping(from, to, columns as usize),
                _ => (0..columns as isize)
                    .for_each(|j| *to.offset(j) = *from.offset(j * col as isize)),
            }
        }
    }
}
