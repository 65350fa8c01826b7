//! Products with a vector: one pass over the matrix in memory order.

#![allow(clippy::needless_range_loop)] // register tiles are indexed

use kiln_jit::contraction::Matrix;
use kiln_kernel::simd::vector::Vector;
use kiln_kernel::simd::{Features, Isa, Kernel, compiled};
use kiln_kernel::sums::Lane;
use kiln_kernel::view::span;
use std::marker::PhantomData;

/// The rows, or columns, that are processed together.
const TOGETHER: usize = 4;

/// `dst[i] = Σ_j matrix[i, j] · vector[j]`.
struct MatrixVector<T> {
    matrix: *const T,
    rows: usize,
    row: isize,
    cols: usize,
    col: isize,
    vector: *const T,
    dst: *mut T,
}

impl<T: Lane> MatrixVector<T> {
    /// # Safety
    /// The element exists.
    #[inline(always)]
    unsafe fn at(&self, i: usize, j: usize) -> *const T {
        self.matrix
            .wrapping_offset(i as isize * self.row + j as isize * self.col)
    }
}

struct Sweep<T>(PhantomData<T>);
impl<T: Lane> Kernel<MatrixVector<T>> for Sweep<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(b: MatrixVector<T>) {
        // SAFETY: the caller's.
        unsafe {
            if b.col == 1 {
                return dots::<T, I>(&b);
            }
            if b.row == 1 {
                return columns::<T, I>(&b);
            }
            for i in 0..b.rows {
                let mut sum = T::ZERO;
                for j in 0..b.cols {
                    sum = (*b.at(i, j)).mul_add::<I>(*b.vector.add(j), sum);
                }
                *b.dst.add(i) = sum;
            }
        }
    }
}

/// Computes the elements as dot products, for rows that are contiguous in memory.
#[inline(always)]
unsafe fn dots<T: Lane, I: Isa>(b: &MatrixVector<T>) {
    let lanes = T::Vector::<I>::LANES;
    let whole = b.cols / lanes * lanes;
    for first in (0..b.rows).step_by(TOGETHER) {
        // SAFETY: the caller's; where there are fewer rows, the last one is read again.
        unsafe {
            let mut rows = [b.matrix; TOGETHER];
            for (r, row) in rows.iter_mut().enumerate() {
                *row = b.at((first + r).min(b.rows - 1), 0);
            }
            let mut sums = [T::Vector::<I>::splat(T::ZERO); TOGETHER];
            for j in (0..whole).step_by(lanes) {
                let v = T::Vector::<I>::load(b.vector.add(j));
                for r in 0..TOGETHER {
                    sums[r] = T::Vector::<I>::load(rows[r].add(j)).mul_add(v, sums[r]);
                }
            }
            for r in 0..TOGETHER.min(b.rows - first) {
                let mut parts = [T::ZERO; 16];
                sums[r].store(parts.as_mut_ptr());
                let mut sum = parts[..lanes].iter().fold(T::ZERO, |sum, part| sum + *part);
                for j in whole..b.cols {
                    sum = (*rows[r].add(j)).mul_add::<I>(*b.vector.add(j), sum);
                }
                *b.dst.add(first + r) = sum;
            }
        }
    }
}

/// Adds a product to all elements at a time, for columns that are contiguous in memory.
#[inline(always)]
unsafe fn columns<T: Lane, I: Isa>(b: &MatrixVector<T>) {
    let lanes = T::Vector::<I>::LANES;
    let whole = b.rows / lanes * lanes;
    // SAFETY: the caller's.
    unsafe {
        (0..b.rows).for_each(|i| *b.dst.add(i) = T::ZERO);
        let together = b.cols / TOGETHER * TOGETHER;
        for first in (0..together).step_by(TOGETHER) {
            let mut factors = [T::Vector::<I>::splat(T::ZERO); TOGETHER];
            for (c, factor) in factors.iter_mut().enumerate() {
                *factor = T::Vector::<I>::splat(*b.vector.add(first + c));
            }
            for i in (0..whole).step_by(lanes) {
                let mut sum = T::Vector::<I>::load(b.dst.add(i));
                for c in 0..TOGETHER {
                    sum = T::Vector::<I>::load(b.at(i, first + c)).mul_add(factors[c], sum);
                }
                sum.store(b.dst.add(i));
            }
        }
        for j in 0..b.cols {
            // The remaining columns, and the elements after the last whole vector.
            let from = if j < together { whole } else { 0 };
            for i in from..b.rows {
                let sum = *b.dst.add(i);
                *b.dst.add(i) = (*b.at(i, j)).mul_add::<I>(*b.vector.add(j), sum);
            }
        }
    }
}

/// Computes `dst[i] = Σ_j matrix[i, j] · vector[j]` for these rows and columns of a matrix.
pub(super) fn matrix_vector<T: Lane>(
    level: Features,
    (matrix, row, col): Matrix<T>,
    (rows, cols): (i64, i64),
    vector: &[T],
    dst: &mut [T],
) {
    assert!(
        vector.len() as i64 >= cols && dst.len() as i64 >= rows,
        "a short vector"
    );
    let all = MatrixVector {
        matrix: matrix.address(span([(rows, row), (cols, col)])),
        rows: rows as usize,
        row: row as isize,
        cols: cols as usize,
        col: col as isize,
        vector: vector.as_ptr(),
        dst: dst.as_mut_ptr(),
    };
    // SAFETY: matrix and vectors have the elements.
    unsafe { compiled::<Sweep<T>, _>(level)(all) }
}
