//! Products with a vector: one pass over the matrix in memory order.

#![allow(clippy::needless_range_loop)] // register tiles are indexed

use super::{EpilogueRunner, MatMul, Operand, run_blocks};
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::simd::vector::Vector;
use kiln_kernel::simd::{Isa, Kernel, compiled};
use kiln_kernel::sums::Lane;
use std::marker::PhantomData;

/// The elements of the result in a block.
const BLOCK: i64 = 64;
/// The rows, or columns, that are processed together.
const TOGETHER: usize = 4;
/// The cost of reading an element of the matrix, in multiply-adds of a large product.
const READ_WORK: i64 = 8;

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

impl MatMul {
    /// Runs a product with a vector.
    ///
    /// # Safety
    /// As [`MatMul::run`].
    pub(super) unsafe fn vector<T: Lane>(
        &self,
        args: &[*mut u8],
        parallel: bool,
        failures: &Failures,
    ) {
        let batch: i64 = self.batch.iter().product();
        let len = self.m * self.n;
        let across = ceil(len, BLOCK);
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        let work = BLOCK * self.k.max(1) * READ_WORK;
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (batch * across, work),
            launch,
            |i, args, copy, work| unsafe {
                let from = i % across * BLOCK;
                let part = (i / across, from, BLOCK.min(len - from));
                self.vector_block::<T>(args, part, copy, work)
            },
        );
    }

    unsafe fn vector_block<T: Lane>(
        &self,
        args: &[*mut u8],
        (b, from, rows): (i64, i64, i64),
        copy: &mut Option<Storage>,
        work: &mut EpilogueRunner,
    ) -> Result<()> {
        // The matrix with the result's index first, and the vector.
        let transposed = self.n != 1;
        let side = |x: &Operand| {
            if transposed {
                (x.col, x.row)
            } else {
                (x.row, x.col)
            }
        };
        let (matrix, vector) = match transposed {
            true => (&self.rhs, &self.lhs),
            false => (&self.lhs, &self.rhs),
        };
        let (row, col) = side(matrix);
        let step = if transposed { vector.col } else { vector.row };
        let first = b * self.m * self.n + from;
        let at = if transposed { (0, from) } else { (from, 0) };
        let matrix = self.at::<T>(matrix, args, b, at.0, at.1);
        let mut vector = self.at::<T>(vector, args, b, 0, 0);
        let dst = match self.epilogue {
            Some(_) => work.scratch::<T>(rows)?,
            None => args[self.out].cast::<T>().wrapping_offset(first as isize),
        };
        // SAFETY: linking proved the operands within their buffers.
        unsafe {
            if step != 1 {
                let to = room::<T>(copy, self.k)?;
                for j in 0..self.k as isize {
                    *to.offset(j) = *vector.offset(j * step as isize);
                }
                vector = to;
            }
            compiled::<Sweep<T>, _>(self.level)(MatrixVector {
                matrix,
                rows: rows as usize,
                row: row as isize,
                cols: self.k as usize,
                col: col as isize,
                vector,
                dst,
            });
            work.finish((dst, rows), first, (1, rows), rows);
        }
        Ok(())
    }
}
