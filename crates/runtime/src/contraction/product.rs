//! Products of matrices that lie anywhere, on one thread.
//!
//! Sums are cut into lengths whose operands stay in the caches, the right matrix into panels of columns. Where a panel
//! is read often, or its columns don't lie side by side, it is copied first; so is the left matrix where the elements
//! of its rows lie far apart. An element is summed in order, however it is cut.

use super::kernel::Kernels;
use super::tile::{Call, Rows, Tile, even_rows, lanes, most_rows, panel_vectors};
use crate::bugs::bug;
use crate::error::Result;
use crate::memory::{Storage, room};
use crate::simd::compiled;
use crate::simd::transpose::{Transpose, Turn};
use crate::sums::Lane;
use crate::tile::affine::ceil;
use kiln_base::{DType, Level};
use std::cell::RefCell;

/// Terms that are summed before the next panel.
const TERMS: i64 = 512;
/// Rows whose terms stay in the second-level cache.
const ROWS: i64 = 384;
/// The most vectors of a panel where there are few rows.
const MOST_VECTORS: i64 = 8;
/// Walks over a panel from which on it is copied.
const WALKS: i64 = 3;
/// The distance of two elements of a row from which on the left matrix is copied, in bytes.
const FAR: i64 = 256;
/// Rows that are a multiple of so many bytes apart meet in the same sets of a cache: it is copied too, ...
const MEETS: i64 = 2048;
/// ...with so many elements between rows.
const APART: i64 = 16;

/// A matrix: its first element, and how far apart rows and columns are, in elements.
pub(crate) type Matrix<T> = (*const T, i64, i64);

/// What a thread copies matrices into.
#[derive(Default)]
struct Copies {
    left: Option<Storage>,
    right: Option<Storage>,
    kernels: Kernels,
}

thread_local! {
    static COPIES: RefCell<Copies> = RefCell::default();
}

/// As [`multiply_as`], of floats.
///
/// # Errors
/// As [`multiply_as`].
///
/// # Safety
/// As [`multiply_as`].
pub(crate) unsafe fn multiply<T: Lane>(
    level: Level,
    sizes: (i64, i64, i64),
    out: (*mut T, i64),
    left: Matrix<T>,
    right: Matrix<T>,
    adds: bool,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { multiply_as(T::DTYPE, level, sizes, out, left, right, adds) }
}

/// `out = left · right`, or with `adds` what is there and that, for matrices of `m` by `k` and `k` by `n`. Rows of the
/// result are that many elements apart, in which its columns lie side by side. The numbers are of the dtype, which has
/// as many bits as the type.
///
/// # Errors
/// If there is no memory for copies or code.
///
/// # Safety
/// All elements exist, and those of the result are nobody else's. The processor has the level.
pub(crate) unsafe fn multiply_as<T: Lane>(
    dtype: DType,
    level: Level,
    (m, n, k): (i64, i64, i64),
    (out, pitch): (*mut T, i64),
    left: Matrix<T>,
    right: Matrix<T>,
    adds: bool,
) -> Result<()> {
    COPIES.with_borrow_mut(|copies| {
        let mut from = 0;
        while from < k || from == 0 {
            let terms = (k - from).min(TERMS);
            for row in (0..m).step_by(ROWS as usize) {
                let sizes = (ROWS.min(m - row), n, terms);
                let adds = bug("the next terms are not added", adds || from > 0, |_| adds);
                let cut = Cut::new(dtype, level, sizes, adds);
                let at = |(x, row, col): Matrix<T>, i: i64, j: i64| {
                    (x.wrapping_offset((i * row + j * col) as isize), row, col)
                };
                let out = out.wrapping_offset((row * pitch) as isize);
                // SAFETY: the caller's; the parts lie within the matrices.
                unsafe {
                    cut.run(
                        (out, pitch),
                        at(left, row, from),
                        at(right, from, 0),
                        copies,
                    )?;
                }
            }
            from += TERMS;
        }
        Ok(())
    })
}

/// How a part of a product is cut.
struct Cut {
    dtype: DType,
    level: Level,
    m: i64,
    n: i64,
    k: i64,
    adds: bool,
    /// Rows of a register tile, and columns of a panel.
    rows: i64,
    columns: i64,
}

impl Cut {
    fn new(dtype: DType, level: Level, (m, n, k): (i64, i64, i64), adds: bool) -> Cut {
        let (rows, vectors) = shape(level, dtype, m, n);
        Cut {
            dtype,
            level,
            m,
            n,
            k,
            adds,
            rows,
            columns: vectors * i64::from(lanes(level, dtype)),
        }
    }

    /// # Safety
    /// As [`multiply`].
    unsafe fn run<T: Lane>(
        self,
        (out, pitch): (*mut T, i64),
        left: Matrix<T>,
        right: Matrix<T>,
        copies: &mut Copies,
    ) -> Result<()> {
        let size = size_of::<T>() as i64;
        let rows = self.rows;
        // SAFETY: the caller's.
        let (left, apart) = unsafe { self.left(left, &mut copies.left)? };
        let tiles = ceil(self.m, rows);
        let copied = right.2 != 1 || tiles >= WALKS;
        let step = if copied { self.columns } else { right.1 };
        for column in (0..self.n).step_by(self.columns as usize) {
            let columns = self.columns.min(self.n - column);
            let panel = right.0.wrapping_offset((column * right.2) as isize);
            let panel = match copied {
                true => {
                    let to = room::<T>(&mut copies.right, self.k * self.columns)?;
                    // SAFETY: the caller's; there is room for whole panels.
                    unsafe {
                        pack(
                            self.level,
                            (panel, right.1, right.2),
                            (self.k, columns),
                            (to, self.columns),
                        )
                    };
                    to.cast_const()
                }
                false => panel,
            };
            let tile = |count: i64| Tile {
                level: self.level,
                dtype: self.dtype,
                rows: Rows::of_matrix(count, apart[0] * size),
                columns: columns as u16,
                step: apart[1] * size,
                right: step * size,
                padded: copied,
                steps: self.k as u32,
                ahead: 0,
                taps: 1,
                out: pitch * size,
                adds: self.adds,
                starts: false,
                finish: None,
            };
            let mut kernel = copies.kernels.get(&tile(rows.min(self.m)))?;
            for row in (0..self.m).step_by(rows as usize) {
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
                };
                // SAFETY: the caller's; the tile lies within the part.
                unsafe { kernel.run(&call) };
            }
        }
        Ok(())
    }

    /// Where the rows of the left matrix are read: the distances of two rows of a tile, of two terms and of two tiles.
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
        // SAFETY: the caller's; there is room for whole tiles, or for rows and what lies between them.
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

/// Rows and vectors of a register tile: two vectors, more where rows are few, so that sums don't wait for each other.
pub(crate) fn shape(level: Level, dtype: DType, m: i64, n: i64) -> (i64, i64) {
    let lanes = i64::from(lanes(level, dtype));
    let across = ceil(n, lanes);
    let most = |vectors: i64| most_rows(level, dtype, vectors as u8);
    let mut vectors = panel_vectors(level, dtype).min(across.max(1));
    while vectors < MOST_VECTORS.min(across) && i64::from(most(vectors + 1)) >= m {
        vectors += 1;
    }
    (even_rows(m, most(vectors)), vectors)
}

/// Copies columns of a matrix into a panel whose rows are `pitch` elements apart.
///
/// # Safety
/// The elements exist, and there is room for them. The processor has the level.
pub(crate) unsafe fn pack<T: Copy>(
    level: Level,
    (from, row, col): Matrix<T>,
    (k, columns): (i64, i64),
    (to, pitch): (*mut T, i64),
) {
    // SAFETY: the caller's.
    unsafe {
        if row == 1 {
            return compiled::<Turn<T>, _>(level)(Transpose {
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
