//! Products of few rows, or small ones, in register tiles. Both matrices are read where they lie; of the right
//! one only the columns that fill no vector are copied, or all of them where columns lie in memory side by side.

use super::{Block, MatMul, Work, run_blocks};
use crate::error::Result;
use crate::memory::{Storage, room};
use crate::simd::compiled;
use crate::sums::{Lane, ROWS, RegisterSums, SLACK, Sums, rows_of};
use crate::tile::Failures;
use kiln_plan::cost::Behind;

/// Multiply-adds of a block.
const BLOCK_WORK: i64 = 1 << 18;

/// Columns that a block has at least, where there are so many.
const LEAST_COLUMNS: i64 = 96;

/// What a thread keeps from block to block.
#[derive(Default)]
struct Scratch {
    /// The copied columns of a right matrix, and which: its number and the block's first column.
    rhs: Option<Storage>,
    holds: Option<(i64, i64)>,
    /// Raw results of some rows.
    flat: Option<Storage>,
}

impl MatMul {
    /// Rows and columns of a block: all columns, as long as eight rows of them are no more than its work; then
    /// as many rows as are.
    fn small_cut(&self) -> (i64, i64) {
        let eight = (ROWS * self.k).max(1);
        if self.behind == Behind::Rows {
            let wanted = ROWS * BLOCK_WORK / (eight * self.n).max(1);
            return (self.whole_rows(wanted), self.n);
        }
        let cols = (BLOCK_WORK / eight).max(LEAST_COLUMNS).min(self.n.max(1));
        ((BLOCK_WORK / (eight * cols)).max(1) * ROWS, cols)
    }

    /// Elements of the copy of a thread and of its raw results.
    pub(super) fn small_workspace(&self) -> i64 {
        let (_, cols) = self.small_cut();
        (self.k + ROWS) * (cols + SLACK)
    }

    /// Runs a product in register tiles.
    ///
    /// # Safety
    /// As [`MatMul::run`].
    pub(super) unsafe fn small<T: Lane>(
        &self,
        args: &[*mut u8],
        parallel: bool,
        failures: &Failures,
    ) {
        let cut = self.small_cut();
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (self.blocks_of(cut), cut.0 * cut.1 * self.k.max(1)),
            launch,
            |i, args, scratch, work| unsafe {
                self.small_block::<T>(args, &self.block_of(cut, i), scratch, work)
            },
        );
    }

    unsafe fn small_block<T: Lane>(
        &self,
        args: &[*mut u8],
        b: &Block,
        scratch: &mut Scratch,
        work: &mut Work,
    ) -> Result<()> {
        let rhs = self.at::<T>(&self.rhs, args, b.batch, 0, b.col);
        // Columns up to here are read in place, the others in the copy.
        let whole = match self.rhs.col {
            1 => b.cols / SLACK * SLACK,
            _ => 0,
        };
        let copied = b.cols - whole + SLACK;
        let copy = room::<T>(&mut scratch.rhs, self.k * copied)?;
        let pitch = b.cols + SLACK;
        let flat = room::<T>(&mut scratch.flat, ROWS * pitch)?;
        let first = (b.batch * self.m + b.row) * self.n + b.col;
        let (dst, step) = match self.epilogue {
            Some(_) => (work.scratch::<T>(b.rows * b.cols)?, b.cols),
            None => (
                args[self.out].cast::<T>().wrapping_offset(first as isize),
                self.n,
            ),
        };
        if scratch.holds != Some((b.batch, b.col)) {
            // SAFETY: linking proved the operand within its buffer; the copy has the room.
            unsafe { self.copy_rest(rhs, (whole, b.cols), copy, copied) };
            scratch.holds = Some((b.batch, b.col));
        }
        let tile = rows_of(self.level);
        for row in (0..b.rows).step_by(tile as usize) {
            let count = tile.min(b.rows - row);
            let sums = |x: *const T, x_pitch: i64, from: i64, to: i64| Sums {
                x,
                x_pitch: x_pitch as isize,
                channels: self.k as isize,
                taps: &[0],
                weights: self.at(&self.lhs, args, b.batch, b.row + row, 0),
                weight_row: self.lhs.row as isize,
                weight_step: self.lhs.col as isize,
                rows: count as usize,
                positions: (to - from) as usize,
                dst: flat.wrapping_offset(from as isize),
                pitch: pitch as usize,
            };
            // SAFETY: linking proved the operands within their buffers; the copy and the raw results have
            // slack for whole vectors.
            unsafe {
                let run = compiled::<RegisterSums<T>, _>(self.level);
                if whole > 0 {
                    run(sums(rhs, self.rhs.row, 0, whole));
                }
                run(sums(copy, copied, whole, b.cols));
                for r in 0..count {
                    let from = flat.offset((r * pitch) as isize);
                    let to = dst.offset(((row + r) * step) as isize);
                    std::ptr::copy_nonoverlapping(from, to, b.cols as usize);
                }
            }
        }
        // SAFETY: the raw results are there.
        unsafe { work.finish((dst, step), first, (b.rows, self.n), b.cols) };
        Ok(())
    }

    /// Copies some columns of a right matrix to rows that far apart.
    ///
    /// # Safety
    /// Both have their elements.
    unsafe fn copy_rest<T: Lane>(
        &self,
        from: *const T,
        (first, end): (i64, i64),
        to: *mut T,
        pitch: i64,
    ) {
        for k in 0..self.k {
            for j in first..end {
                // SAFETY: the caller's.
                unsafe {
                    let from = from.offset((k * self.rhs.row + j * self.rhs.col) as isize);
                    *to.offset((k * pitch + j - first) as isize) = *from;
                }
            }
        }
    }
}
